//! Engines with false claims. The report must name each of them, and must not name engines with true claims.

use serde_json::Value;

use crate::support::record::{Record, case_of, files};
use crate::support::{Scratch, fake_engine, finish};

/// A finished run of some seconds. If a claim is about times, its requests are long enough to refute the claim.
struct Trial {
    scratch: Scratch,
    report: Value,
}

/// An engine with true claims: it reports the requested two threads, and keeps two cores busy.
const TRUE_CLAIMS: (&str, &str) = ("true", "--busy-threads 2");

impl Trial {
    /// Runs engines, each with its name and settings.
    fn run(engines: &[(&str, &str)], options: &[&str]) -> Self {
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
        scratch.assert_no_processes_left();
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
        let mut engine_warnings = warnings.filter(|warning| warning.starts_with(&format!("{name}: ")));
        let is_warned = engine_warnings.any(|warning| words.iter().all(|words| warning.contains(words)));
        assert!(is_warned, "no warning of `{name}` with {words:?}: {}", self.report["warnings"]);
        self
    }

    #[track_caller]
    fn assert_not_contradicted(&self, name: &str) -> &Self {
        assert_eq!(self.contradictions_of(name), Vec::<&Value>::new());
        assert_eq!(case_of(&self.report, name)["contradicted"], false, "{}", self.report["warnings"]);
        self
    }

    /// Repeats the report with other CPU times of an engine. `change` takes the CPU time and the duration of a request,
    /// and returns the new CPU time and the time of waiting for a core, all in nanoseconds.
    fn with_cpu_times(self, name: &str, change: fn(u64, u64) -> (u64, u64)) -> Self {
        let Self { scratch, .. } = self;
        let [file] = &files(&scratch.results())[..] else { panic!("expected one record of this trial") };
        let mut record = Record::read(file);
        for sample in record.samples_of_mut(name) {
            let ns = |field: &str| sample[field].as_u64().unwrap();
            let (cpu, waited) = change(ns("cpu_ns"), ns("answered_ns") - ns("sent_ns"));
            (sample["cpu_ns"], sample["waited_ns"]) = (cpu.into(), waited.into());
        }
        record.write(file);
        let outcome = finish(scratch.orchestrate().arg("report").arg(file).args(["--format", "json"]));
        Self { scratch, report: outcome.json() }
    }
}

/// Requests for 64 tokens, which take about 200 ms with `SLOWLY`.
const DECODE: &[&str] = &["--scenario", "decode", "--depth", "0", "--iterations", "3", "--warmup", "2"];
const SLOWLY: &str = "--per-token-ns 3000000";

#[test]
fn an_engine_that_reports_weights_larger_than_its_memory_is_named() {
    let settings = r#"--loaded '{"weights_dtype":"f32","weights_bytes":800000000}'"#;
    let trial = Trial::run(&[TRUE_CLAIMS, ("thin", settings)], DECODE);
    let words = ["reports `f32` weights of 800 MB", "never held more than", "resident"];
    trial.assert_contradicted("thin", &words).assert_not_contradicted("true");
    // A reader of the table sees no ratio, and why the row has no rank.
    let [file] = &files(&trial.scratch.results())[..] else { panic!("expected one record of this trial") };
    let report = finish(trial.scratch.orchestrate().arg("report").arg(file));
    let row = report.stdout.lines().find(|line| line.starts_with("thin ")).unwrap();
    assert!(!row.contains('x'), "{}", report.stdout);
    report.assert_stdout(&["! `thin` has no rank, because a claim is contradicted"]);
}

/// The contradiction rests on the record's field `held`, the memory in use.
#[test]
fn an_engine_that_reports_a_narrow_dtype_and_holds_f32_is_named() {
    // The keys and values of a longer context may need this memory.
    let fat = r#"--context-tokens 4096 --loaded '{"weights_dtype":"q4_0","weights_bytes":90000000}' --resident-bytes 700000000"#;
    let solid = r#"--loaded '{"weights_dtype":"f32","weights_bytes":100000000}' --resident-bytes 100000000"#;
    let trial = Trial::run(&[("fat", fat), ("solid", solid), TRUE_CLAIMS], DECODE);
    trial.assert_contradicted("fat", &["reports `q4_0` weights of 90.0 MB", "as much as f32 needs"]);
    trial.assert_not_contradicted("solid").assert_not_contradicted("true");
}

/// On a busy machine the report does not mention idle threads. So this test repeats the report with the times of a quiet
/// machine. The repeated report must name only the engine with the false claim.
#[test]
fn an_engine_that_reports_two_threads_and_uses_one_is_named() {
    let [one_thread, two_threads] = [1, 2].map(|threads| format!("--busy-threads {threads} {SLOWLY}"));
    let trial = Trial::run(&[("idle", &one_thread), ("busy", &two_threads)], DECODE);
    let (idle, busy) = (Cores::of(&trial, "idle"), Cores::of(&trial, "busy"));
    // The warning needs less than 0.6 cores in use for each thread, and at most 0.1 cores that threads waited for.
    assert!(idle.used > 0.0 && idle.used < 1.2, "{idle:?}");
    for (name, it) in [("idle", &idle), ("busy", &busy)] {
        assert_eq!(is_warned_about_cores(&trial, name), it.used < 1.2 && it.waited_for <= 0.1, "{it:?}");
    }
    assert!(busy.used > 0.0, "{busy:?}");
    let quiet =
        trial.with_cpu_times("idle", |cpu, _| (cpu, 0)).with_cpu_times("busy", |_, elapsed| (2 * elapsed, 0));
    quiet.assert_warned("idle", &["reports 2 threads", "kept fewer cores busy", "in `decode`"]);
    // Idle threads are no advantage, so both engines keep their rank.
    quiet.assert_not_contradicted("idle").assert_not_contradicted("busy");
    assert!(!is_warned_about_cores(&quiet, "busy"), "{}", quiet.report);
    // Both engines mostly wait for a core, so the times do not show whether an engine would use two cores.
    let crowded = ["idle", "busy"]
        .iter()
        .fold(quiet, |trial, name| trial.with_cpu_times(name, |_, elapsed| (elapsed / 2, elapsed)));
    let warned = ["idle", "busy"].map(|name| is_warned_about_cores(&crowded, name));
    assert_eq!(warned, [false; 2], "{}", crowded.report);
}

/// The mean number of cores that an engine used, and of cores that its threads waited for, in the measured requests.
#[derive(Debug)]
struct Cores {
    used: f64,
    waited_for: f64,
}

impl Cores {
    fn of(trial: &Trial, name: &str) -> Self {
        let record = Record::only_one_in(&trial.scratch.results());
        let sum = |field: &str| -> f64 {
            record.samples_of(name).iter().map(|it| it[field].as_u64().unwrap_or(0) as f64).sum()
        };
        let elapsed = sum("answered_ns") - sum("sent_ns");
        assert!(elapsed > 5e8, "the requests are too short: {elapsed} ns");
        Self { used: sum("cpu_ns") / elapsed, waited_for: sum("waited_ns") / elapsed }
    }
}

/// Whether a warning compares the busy cores of this engine with its threads.
fn is_warned_about_cores(trial: &Trial, name: &str) -> bool {
    let warnings = trial.report["warnings"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
    let mut of_engine = warnings.filter(|it| it.starts_with(&format!("{name}: ")));
    of_engine.any(|warning| warning.contains("cores busy"))
}

#[test]
fn an_engine_that_reports_one_thread_and_uses_more_is_named() {
    let settings = format!("--loaded '{{\"threads\":1}}' --busy-threads 4 {SLOWLY}");
    let trial = Trial::run(&[("greedy", &settings)], DECODE);
    let words = ["reports 1 thread, but kept"];
    // The cores in use depend on the machine. If they are more than 0.3 above the claim, the report must name the engine.
    let Cores { used, .. } = Cores::of(&trial, "greedy");
    if used > 1.3 {
        trial.assert_contradicted("greedy", &words);
    } else {
        assert!(!is_warned_about_cores(&trial, "greedy"), "{used}");
    }
    // The report is repeated with the times of a machine with two free cores, and then with the times of a true
    // claim. Another test checks that CPU time includes all threads of a process.
    let trial = trial.with_cpu_times("greedy", |_, elapsed| (2 * elapsed, 0));
    trial.assert_contradicted("greedy", &words);
    let trial = trial.with_cpu_times("greedy", |_, elapsed| (elapsed, 0));
    assert!(!is_warned_about_cores(&trial, "greedy"), "{}", trial.report);
    trial.assert_not_contradicted("greedy");
}

#[test]
fn an_engine_that_serves_from_a_prefix_cache_is_named() {
    let options = &["--scenario", "prefill", "--prompt-tokens", "1024", "--iterations", "2", "--warmup", "4"];
    let settings = "--first-token-ns 60000000";
    let cached = format!("{settings} --fault repeats_at_once");
    let trial = Trial::run(&[("cached", &cached), ("computed", settings)], options);
    let words = ["reports no prefix cache", "answers a repeated prompt", "times as fast"];
    trial.assert_contradicted("cached", &words).assert_not_contradicted("computed");
}

#[test]
fn an_engine_that_halves_its_token_times_is_named_whether_its_end_time_is_true_or_not() {
    let [times, tokens] = ["early_times", "early_tokens"].map(|fault| format!("{SLOWLY} --fault {fault}"));
    // Only one request of each block is streamed, and one streamed request is not enough evidence. So the run has three blocks.
    let options = [DECODE, &["--blocks", "3"]].concat();
    let trial = Trial::run(&[("times", &times), ("tokens", &tokens), ("true", SLOWLY)], &options);
    trial.assert_contradicted("times", &["its clock leaves out", "from `start_ns` to `end_ns`"]);
    trial.assert_contradicted("tokens", &["its last token is stamped", "before `end_ns`"]);
    // The streamed requests contradict both engines too: tokens arrive later than stamped.
    for name in ["times", "tokens"] {
        trial.assert_contradicted(name, &["tokens arrive", "after their stamps"]);
    }
    trial.assert_not_contradicted("true");
}

/// The request's total time is true, so it does not show this fault.
#[test]
fn an_engine_that_stamps_all_tokens_at_the_end_is_named() {
    let late = format!("{SLOWLY} --fault bunched_times");
    // Few requests are not enough evidence.
    let options = [DECODE, &["--blocks", "3"]].concat();
    let trial = Trial::run(&[("late", &late), ("true", SLOWLY)], &options);
    let words = ["stamps its tokens in `decode` within", "longer than a request for one token"];
    trial.assert_contradicted("late", &words).assert_not_contradicted("true");
}

#[test]
fn an_engine_that_reports_f32_and_computes_less_precisely_is_named() {
    let verifier = fake_engine().display().to_string();
    // The embedded model is stored in bf16. f32 represents all bf16 numbers exactly, so an engine in f32 rounds no weight and
    // scores as the verifier does.
    let options = [DECODE, &["--verifier", &verifier]].concat();
    let trial = Trial::run(&[("rounds", "--score-noise 0.004"), ("true", "")], &options);
    let words = ["reports that it computes in `f32`", "from those of f32"];
    trial.assert_contradicted("rounds", &words).assert_not_contradicted("true");
}

#[test]
fn a_summary_without_iterations_is_refused() {
    let trial = Trial::run(&[("boasts", "--fault rate_without_facts"), TRUE_CLAIMS], DECODE);
    let failure = &case_of(&trial.report, "boasts")["failure"];
    assert_eq!(failure["kind"], "protocol", "{failure}");
    assert_eq!(failure["message"], "a `summary` without measured iterations: `iterations` is empty");
    // Neither the record nor the report has the rate that the engine sent.
    let record = std::fs::read_to_string(&files(&trial.scratch.results())[0]).unwrap();
    assert!(!record.contains("123456.7") && !trial.report.to_string().contains("123456.7"));
    trial.assert_not_contradicted("true");
}

/// The engine's output is correct in the output checks, in the warm-up, and before position 30.
#[test]
fn an_engine_with_wrong_tokens_from_position_30_on_has_the_status_wrong() {
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
    assert!(row("forged").contains("WRONG"), "{}", outcome.stdout);
    assert!(row("true").contains("exact"), "{}", outcome.stdout);
}
