//! Engines with false claims. Each must be found by name, and the honest engines beside them must not.

use serde_json::Value;

use crate::support::record::{Record, files};
use crate::support::{Scratch, fake_engine, finish};

/// A run of some seconds with requests that are long enough for a verdict: a prompt of 512 tokens and 64 new ones.
struct Trial {
    scratch: Scratch,
    report: Value,
}

/// An engine by its name, with a fault (or none) and settings.
type Accused = (&'static str, &'static str, &'static [&'static str]);

/// An engine with the same claim as all others: two threads. It keeps both busy.
const HONEST: Accused = ("honest", "", &["--busy-threads", "2"]);

impl Trial {
    fn of(engines: &[Accused], options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let mut command = scratch.orchestrate();
        for (name, fault, settings) in engines {
            let settings: Vec<String> = settings.iter().map(|setting| format!("'{setting}'")).collect();
            let fake = fake_engine().display();
            let text = format!("exec '{fake}' --fault '{fault}' --engine '{name}' {}", settings.join(" "));
            command.arg("-e").arg(scratch.script(name, &text));
        }
        command.args(["--threads", "2", "--timeout", "60", "--json", "-"]).args(options);
        if !options.contains(&"--blocks") {
            command.args(["--blocks", "1"]);
        }
        let outcome = finish(command.arg("--results").arg(scratch.results()));
        scratch.assert_nothing_lives();
        let report = serde_json::from_str(&outcome.stdout);
        let report = report.unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        Self { scratch, report }
    }

    /// The warnings about an engine.
    fn said_of(&self, name: &str) -> Vec<&str> {
        let warnings = self.report["warnings"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        warnings.filter(|warning| warning.starts_with(&format!("{name}: "))).collect()
    }

    fn contradictions_of(&self, name: &str) -> Vec<&Value> {
        self.report["contradictions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|doubt| doubt["engine"] == name)
            .collect()
    }

    fn says(&self, name: &str, words: &[&str]) -> &Self {
        let said = self.said_of(name);
        let found = said.iter().any(|warning| words.iter().all(|words| warning.contains(words)));
        assert!(found, "nothing says {words:?} of `{name}`: {said:?}\n{}", self.report["warnings"]);
        self
    }

    fn doubted(&self, name: &str, doubted: bool) -> &Self {
        let cases = self.report["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["engine"]["label"] == name).unwrap();
        assert_eq!(case["contradicted"], doubted, "{:?}", self.said_of(name));
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
        let report = serde_json::from_str(&outcome.stdout);
        let report = report.unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        Self { scratch, report }
    }

    /// The claim about threads is left out: on a busy machine no engine keeps two cores to itself.
    fn honest(&self, name: &str) -> &Self {
        let contradictions =
            self.contradictions_of(name).into_iter().filter(|doubt| doubt["about"] != "threads");
        assert_eq!(contradictions.collect::<Vec<_>>(), Vec::<&Value>::new());
        self
    }
}

/// 64 tokens in about 200 ms.
const DECODE: &[&str] = &["--scenario", "decode", "--iterations", "3", "--warmup", "2"];
const SLOWLY: &str = "3000000";

#[test]
fn an_engine_that_reports_a_dtype_larger_than_its_memory_is_named() {
    const SETTINGS: &[&str] = &["--loaded", r#"{"weights_dtype":"f32","weights_bytes":800000000}"#];
    let trial = Trial::of(&[("thin", "", SETTINGS), HONEST], DECODE);
    trial
        .says("thin", &["states `f32` weights of 800 MB", "never held more than", "resident"])
        .doubted("thin", true);
    trial.honest("honest").doubted("honest", false);
}

#[test]
fn an_engine_that_holds_its_reported_weights_gets_no_warning() {
    const STATED: &str = r#"{"weights_dtype":"f32","weights_bytes":100000000}"#;
    const SETTINGS: &[&str] = &["--loaded", STATED, "--resident-bytes", "100000000"];
    let trial = Trial::of(&[("solid", "", SETTINGS)], DECODE);
    trial.honest("solid").doubted("solid", false);
}

/// This needs a measurement of `held`.
#[test]
fn an_engine_that_reports_a_narrow_dtype_and_holds_f32_is_named() {
    const STATED: &str = r#"{"weights_dtype":"q4_0","weights_bytes":90000000}"#;
    const SETTINGS: &[&str] = &["--loaded", STATED, "--resident-bytes", "700000000"];
    let trial = Trial::of(&[("fat", "", SETTINGS), HONEST], DECODE);
    trial.says("fat", &["states `q4_0` weights of 90.0 MB", "as much as f32 needs"]).doubted("fat", true);
    trial.honest("honest").doubted("honest", false);
}

/// On a busy machine the report does not mention idle threads. So this test repeats the report with the times of a quiet
/// machine: there the false claim must be found, in that engine alone.
#[test]
fn an_engine_that_reports_two_threads_and_uses_one_is_named() {
    let one: &[&str] = &["--busy-threads", "1", "--per-token-ns", SLOWLY];
    let both: &[&str] = &["--busy-threads", "2", "--per-token-ns", SLOWLY];
    let trial = Trial::of(&[("idle", "", one), ("busy", "", both)], DECODE);
    let (idle, busy) = (Cores::of(&trial, "idle"), Cores::of(&trial, "busy"));
    assert!(idle.busy > 0.0 && idle.busy < 1.2, "{idle:?}");
    for (name, it) in [("idle", &idle), ("busy", &busy)] {
        assert_eq!(cores(&trial, name).is_some(), it.busy < 1.2 && it.waited <= 0.1, "{it:?}");
    }
    assert!(busy.busy > 0.0, "{busy:?}");
    let names_idle = |trial: &Trial| {
        trial.says("idle", &["states 2 threads", "kept fewer cores busy", "in `decode`"]);
    };
    let quiet = trial.counted("idle", |cpu, _| (cpu, 0)).counted("busy", |_, passed| (2 * passed, 0));
    names_idle(&quiet);
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
    let doubt = trial.contradictions_of(name).into_iter().find(|doubt| doubt["about"] == "threads")?;
    doubt["observed"].as_str()?.split(' ').next()?.parse().ok()
}

#[test]
fn an_engine_that_reports_one_thread_and_uses_two_is_never_first() {
    let settings: &[&str] =
        &["--loaded", r#"{"threads":1}"#, "--busy-threads", "4", "--per-token-ns", SLOWLY];
    let trial = Trial::of(&[("greedy", "", settings)], DECODE);
    let named = |trial: &Trial| {
        trial.says("greedy", &["states 1 thread, but kept"]);
        trial.doubted("greedy", true);
    };
    // The number of cores depends on the machine. If it was higher than claimed, the report must say so.
    let Cores { busy, .. } = Cores::of(&trial, "greedy");
    match busy > 1.3 {
        true => named(&trial),
        false => assert_eq!(cores(&trial, "greedy"), None, "{busy}"),
    }
    // First the times of a machine with two free processors, then those of a true claim. The counter's own test checks
    // that all threads of a process are counted.
    let trial = trial.counted("greedy", |_, passed| (2 * passed, 0));
    named(&trial);
    let honest = trial.counted("greedy", |_, passed| (passed, 0));
    assert_eq!(cores(&honest, "greedy"), None, "{}", honest.report);
    honest.doubted("greedy", false);
}

#[test]
fn an_engine_that_serves_from_a_prefix_cache_is_named() {
    let options = &["--scenario", "prefill", "--iterations", "2", "--warmup", "4"];
    let settings: &[&str] = &["--first-token-ns", "60000000"];
    let trial = Trial::of(&[("parrot", "repeats_at_once", settings), ("learner", "", settings)], options);
    trial.says("parrot", &["states no prefix cache", "answers a repeated prompt", "times as fast"]);
    trial.doubted("parrot", true).honest("learner").doubted("learner", false);
}

#[test]
fn an_engine_that_halves_its_times_is_named_with_any_end_time() {
    let slow: &[&str] = &["--per-token-ns", SLOWLY];
    let engines = [("hasty", "early_times", slow), ("hurried", "early_tokens", slow), ("true", "", slow)];
    // One request of each block is streamed, and a single one is no evidence.
    let trial = Trial::of(&engines, &[DECODE, &["--blocks", "3"]].concat());
    trial.says("hasty", &["its clock leaves out", "from `start_ns` to `end_ns`"]).doubted("hasty", true);
    trial.says("hurried", &["its last token is stamped", "before `end_ns`"]).doubted("hurried", true);
    // The streamed pass shows it too, token by token.
    trial.says("hasty", &["tokens arrive", "after their stamps"]);
    trial.says("hurried", &["tokens arrive", "after their stamps"]);
    trial.honest("true").doubted("true", false);
}

/// The clock of the request cannot show it: its total time is true.
#[test]
fn an_engine_that_stamps_all_tokens_at_the_end_is_named() {
    let slow: &[&str] = &["--per-token-ns", SLOWLY];
    let trial = Trial::of(&[("stuffer", "bunched_times", slow), ("true", "", slow)], DECODE);
    trial.says("stuffer", &["stamps its tokens in `decode` within", "longer than a request for one token"]);
    trial.doubted("stuffer", true).honest("true").doubted("true", false);
}

#[test]
fn an_engine_that_reports_f32_and_rounds_is_named() {
    let engines = [("rounder", "", &["--score-noise", "0.004"] as &[&str]), ("true", "", &[])];
    let verifier = fake_engine().display().to_string();
    // The embedded model is in bf16 on disk, and f32 represents these numbers exactly.
    let options = [DECODE, &["--verifier", &verifier]].concat();
    let trial = Trial::of(&engines, &options);
    trial
        .says("rounder", &["states that it computes in `f32`", "from those of f32"])
        .doubted("rounder", true);
    trial.honest("true").doubted("true", false);
}

#[test]
fn a_rate_without_facts_is_refused_by_name() {
    let trial = Trial::of(&[("boaster", "rate_without_facts", &[]), HONEST], DECODE);
    let cases = trial.report["cases"].as_array().unwrap();
    let failure = &cases.iter().find(|case| case["engine"]["label"] == "boaster").unwrap()["failure"];
    assert_eq!(failure["kind"], "protocol", "{failure}");
    assert_eq!(failure["message"], "a `summary` without its facts: `iterations` is empty");
    // The record has no rate.
    let record = std::fs::read_to_string(&files(&trial.scratch.results())[0]).unwrap();
    assert!(!record.contains("123456.7") && !trial.report.to_string().contains("123456.7"));
    trial.doubted("honest", false);
}

/// Its output is right in the output checks and in the first half of the measurement.
#[test]
fn an_engine_with_wrong_tokens_from_the_thirtieth_on_is_wrong() {
    let scratch = Scratch::new();
    let fake = fake_engine().display();
    let engine = |name: &str, settings: &str| {
        scratch.script(name, &format!("exec '{fake}' --engine {name} {settings}"))
    };
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(engine("forger", "--wrong-from 30 --at 2")).arg("-e").arg(engine("honest", ""));
    command.arg("--verifier").arg(engine("verifier", ""));
    command.args(["--blocks", "1", "--format", "markdown"]).args(DECODE);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let row = |name: &str| {
        let mut rows = outcome.stdout.lines().filter(|line| line.starts_with('|') && line.contains(name));
        rows.next().unwrap_or_else(|| panic!("{outcome:?}")).to_string()
    };
    assert!(row("forger").contains("wrong"), "{}", outcome.stdout);
    assert!(!row("honest").contains("wrong") && !row("honest").contains("unverified"), "{}", outcome.stdout);
}
