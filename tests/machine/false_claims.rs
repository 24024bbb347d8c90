//! Engines with false claims. Each must be found by name, and the engines beside them with true claims must not.

use serde_json::Value;

use crate::support::record::{Record, case_of, files};
use crate::support::{Scratch, fake_engine, finish};

/// A run of some seconds with requests that are long enough for a verdict: a prompt of 512 tokens and 64 new ones.
struct Trial {
    scratch: Scratch,
    report: Value,
}

/// An engine with the same claim as all others: two threads. It keeps both busy.
const TRUE: (&str, &str) = ("true", "--busy-threads 2");

impl Trial {
    /// A run of engines, each with its name and settings.
    fn of(engines: &[(&str, &str)], options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let mut command = scratch.orchestrate();
        for (name, settings) in engines {
            command.arg("-e").arg(scratch.engine(name, &format!("--engine {name} {settings}")));
        }
        command.args(["--threads", "2", "--timeout", "60", "--json", "-"]).args(options);
        if !options.contains(&"--blocks") {
            command.args(["--blocks", "1"]);
        }
        let outcome = finish(command.arg("--results").arg(scratch.results()));
        scratch.assert_nothing_lives();
        Self { scratch, report: outcome.json() }
    }

    fn contradictions_of(&self, name: &str) -> Vec<&Value> {
        let contradictions = self.report["contradictions"].as_array().unwrap().iter();
        contradictions.filter(|contradiction| contradiction["engine"] == name).collect()
    }

    /// Checks that the report contradicts a claim of this engine with these words.
    #[track_caller]
    fn assert_contradicted(&self, name: &str, words: &[&str]) -> &Self {
        assert_eq!(case_of(&self.report, name)["contradicted"], true, "{}", self.report["warnings"]);
        self.assert_warned(name, words)
    }

    #[track_caller]
    fn assert_warned(&self, name: &str, words: &[&str]) -> &Self {
        let warnings = self.report["warnings"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let mut of_engine = warnings.filter(|warning| warning.starts_with(&format!("{name}: ")));
        let found = of_engine.any(|warning| words.iter().all(|words| warning.contains(words)));
        assert!(found, "no warning of `{name}` with {words:?}: {}", self.report["warnings"]);
        self
    }

    /// Checks that the report contradicts no claim of this engine, except the one about threads: on a busy machine no
    /// engine keeps two cores to itself.
    #[track_caller]
    fn assert_true(&self, name: &str) -> &Self {
        let mut contradictions = self.contradictions_of(name);
        contradictions.retain(|contradiction| contradiction["about"] != "threads");
        assert_eq!(contradictions, Vec::<&Value>::new());
        assert_eq!(case_of(&self.report, name)["contradicted"], false, "{}", self.report["warnings"]);
        self
    }

    /// The report of this record with other CPU times of an engine. `instead` takes the CPU time and the request's
    /// time, and returns CPU time and waiting time.
    fn counted(self, name: &str, instead: fn(u64, u64) -> (u64, u64)) -> Self {
        let Self { scratch, .. } = self;
        let [file] = &files(&scratch.results())[..] else { panic!("not one record of this trial") };
        let mut record = Record::read(file);
        for sample in record.samples_of_mut(name) {
            let ns = |field: &str| sample[field].as_u64().unwrap();
            let (cpu, waited) = instead(ns("cpu_ns"), ns("answered_ns") - ns("sent_ns"));
            (sample["cpu_ns"], sample["waited_ns"]) = (cpu.into(), waited.into());
        }
        record.write(file);
        let outcome = finish(scratch.orchestrate().arg("report").arg(file).args(["--format", "json"]));
        Self { scratch, report: outcome.json() }
    }
}

/// 64 tokens in about 200 ms.
const DECODE: &[&str] = &["--scenario", "decode", "--iterations", "3", "--warmup", "2"];
const SLOWLY: &str = "--per-token-ns 3000000";

#[test]
fn an_engine_that_reports_a_dtype_larger_than_its_memory_is_named() {
    let thin = r#"--loaded '{"weights_dtype":"f32","weights_bytes":800000000}'"#;
    let trial = Trial::of(&[("thin", thin), TRUE], DECODE);
    let words = ["states `f32` weights of 800 MB", "never held more than", "resident"];
    trial.assert_contradicted("thin", &words).assert_true("true");
}

/// This needs a measurement of `held`.
#[test]
fn an_engine_that_reports_a_narrow_dtype_and_holds_f32_is_named() {
    let fat = r#"--loaded '{"weights_dtype":"q4_0","weights_bytes":90000000}' --resident-bytes 700000000"#;
    let held = r#"--loaded '{"weights_dtype":"f32","weights_bytes":100000000}' --resident-bytes 100000000"#;
    let trial = Trial::of(&[("fat", fat), ("solid", held), TRUE], DECODE);
    trial.assert_contradicted("fat", &["states `q4_0` weights of 90.0 MB", "as much as f32 needs"]);
    trial.assert_true("solid").assert_true("true");
}

/// On a busy machine the report does not mention idle threads. So this test repeats the report with the times of a quiet
/// machine: there the false claim must be found, in that engine alone.
#[test]
fn an_engine_that_reports_two_threads_and_uses_one_is_named() {
    let [one, both] = [1, 2].map(|threads| format!("--busy-threads {threads} {SLOWLY}"));
    let trial = Trial::of(&[("idle", &one), ("busy", &both)], DECODE);
    let (idle, busy) = (Cores::of(&trial, "idle"), Cores::of(&trial, "busy"));
    assert!(idle.busy > 0.0 && idle.busy < 1.2, "{idle:?}");
    for (name, it) in [("idle", &idle), ("busy", &busy)] {
        assert_eq!(cores(&trial, name).is_some(), it.busy < 1.2 && it.waited <= 0.1, "{it:?}");
    }
    assert!(busy.busy > 0.0, "{busy:?}");
    let quiet = trial.counted("idle", |cpu, _| (cpu, 0)).counted("busy", |_, passed| (2 * passed, 0));
    quiet.assert_warned("idle", &["states 2 threads", "kept fewer cores busy", "in `decode`"]);
    assert_eq!((cores(&quiet, "idle").is_some(), cores(&quiet, "busy")), (true, None), "{}", quiet.report);
    // Both engines wait, and each has the share of one processor: nothing shows which of them would have used two.
    let crowded = ["idle", "busy"]
        .iter()
        .fold(quiet, |trial, name| trial.counted(name, |_, passed| (passed / 2, passed)));
    assert_eq!((cores(&crowded, "idle"), cores(&crowded, "busy")), (None, None), "{}", crowded.report);
}

/// Cores in use and cores waited for, from the measured requests of a record.
#[derive(Debug)]
struct Cores {
    busy: f64,
    waited: f64,
}

impl Cores {
    fn of(trial: &Trial, name: &str) -> Self {
        let record = Record::only_one_in(&trial.scratch.results());
        let sum = |field: &str| -> f64 {
            record.samples_of(name).iter().map(|it| it[field].as_u64().unwrap_or(0) as f64).sum()
        };
        let passed = sum("answered_ns") - sum("sent_ns");
        assert!(passed > 5e8, "{passed} ns");
        Self { busy: sum("cpu_ns") / passed, waited: sum("waited_ns") / passed }
    }
}

/// The number of cores in the warning about threads.
fn cores(trial: &Trial, name: &str) -> Option<f64> {
    let contradictions = trial.contradictions_of(name);
    let of_threads = contradictions.into_iter().find(|contradiction| contradiction["about"] == "threads")?;
    of_threads["observed"].as_str()?.split(' ').next()?.parse().ok()
}

#[test]
fn an_engine_that_reports_one_thread_and_uses_two_is_never_first() {
    let settings = format!("--loaded '{{\"threads\":1}}' --busy-threads 4 {SLOWLY}");
    let trial = Trial::of(&[("greedy", &settings)], DECODE);
    let words = ["states 1 thread, but kept"];
    // The number of cores depends on the machine. If it was higher than claimed, the report must say so.
    let Cores { busy, .. } = Cores::of(&trial, "greedy");
    if busy > 1.3 {
        trial.assert_contradicted("greedy", &words);
    } else {
        assert_eq!(cores(&trial, "greedy"), None, "{busy}");
    }
    // First the times of a machine with two free processors, then those of a true claim. The counter's own test checks
    // that all threads of a process are counted.
    let trial = trial.counted("greedy", |_, passed| (2 * passed, 0));
    trial.assert_contradicted("greedy", &words);
    let trial = trial.counted("greedy", |_, passed| (passed, 0));
    assert_eq!(cores(&trial, "greedy"), None, "{}", trial.report);
    trial.assert_true("greedy");
}

#[test]
fn an_engine_that_serves_from_a_prefix_cache_is_named() {
    let options = &["--scenario", "prefill", "--iterations", "2", "--warmup", "4"];
    let settings = "--first-token-ns 60000000";
    let cached = format!("{settings} --fault repeats_at_once");
    let trial = Trial::of(&[("cached", &cached), ("computed", settings)], options);
    let words = ["states no prefix cache", "answers a repeated prompt", "times as fast"];
    trial.assert_contradicted("cached", &words).assert_true("computed");
}

#[test]
fn an_engine_that_halves_its_times_is_named_with_any_end_time() {
    let [times, tokens] = ["early_times", "early_tokens"].map(|fault| format!("{SLOWLY} --fault {fault}"));
    // One request of each block is streamed, and a single one is no evidence.
    let options = [DECODE, &["--blocks", "3"]].concat();
    let trial = Trial::of(&[("times", &times), ("tokens", &tokens), ("true", SLOWLY)], &options);
    trial.assert_contradicted("times", &["its clock leaves out", "from `start_ns` to `end_ns`"]);
    trial.assert_contradicted("tokens", &["its last token is stamped", "before `end_ns`"]);
    // The streamed pass shows it too, token by token.
    for name in ["times", "tokens"] {
        trial.assert_contradicted(name, &["tokens arrive", "after their stamps"]);
    }
    trial.assert_true("true");
}

/// The clock of the request cannot show it: its total time is true.
#[test]
fn an_engine_that_stamps_all_tokens_at_the_end_is_named() {
    let late = format!("{SLOWLY} --fault bunched_times");
    let trial = Trial::of(&[("late", &late), ("true", SLOWLY)], DECODE);
    let words = ["stamps its tokens in `decode` within", "longer than a request for one token"];
    trial.assert_contradicted("late", &words).assert_true("true");
}

#[test]
fn an_engine_that_reports_f32_and_rounds_is_named() {
    let verifier = fake_engine().display().to_string();
    // The embedded model is in bf16 on disk, and f32 represents these numbers exactly.
    let options = [DECODE, &["--verifier", &verifier]].concat();
    let trial = Trial::of(&[("rounds", "--score-noise 0.004"), ("true", "")], &options);
    let words = ["states that it computes in `f32`", "from those of f32"];
    trial.assert_contradicted("rounds", &words).assert_true("true");
}

#[test]
fn a_rate_without_facts_is_refused_by_name() {
    let trial = Trial::of(&[("boasts", "--fault rate_without_facts"), TRUE], DECODE);
    let failure = &case_of(&trial.report, "boasts")["failure"];
    assert_eq!(failure["kind"], "protocol", "{failure}");
    assert_eq!(failure["message"], "a `summary` without its facts: `iterations` is empty");
    // The record has no rate.
    let record = std::fs::read_to_string(&files(&trial.scratch.results())[0]).unwrap();
    assert!(!record.contains("123456.7") && !trial.report.to_string().contains("123456.7"));
    trial.assert_true("true");
}

/// Its output is right in the output checks and in the first half of the measurement.
#[test]
fn an_engine_with_wrong_tokens_from_the_thirtieth_on_is_wrong() {
    let scratch = Scratch::new();
    let engine = |name: &str, settings: &str| scratch.engine(name, &format!("--engine {name} {settings}"));
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(engine("forged", "--wrong-from 30 --at 2")).arg("-e").arg(engine("true", ""));
    command.arg("--verifier").arg(engine("verifier", ""));
    command.args(["--blocks", "1", "--format", "markdown"]).args(DECODE);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let row = |name: &str| {
        let mut rows = outcome.stdout.lines().filter(|line| line.starts_with('|') && line.contains(name));
        rows.next().unwrap_or_else(|| panic!("{outcome:?}")).to_string()
    };
    assert!(row("forged").contains("wrong"), "{}", outcome.stdout);
    assert!(!row("true").contains("wrong") && !row("true").contains("unverified"), "{}", outcome.stdout);
}
