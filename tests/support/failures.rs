//! Shared parts of the failure matrix: a run of a faulty engine beside a healthy one, and checks of its output.

use std::path::Path;

use serde_json::Value;

use super::record::Record;
use super::{Outcome, Scratch, fake_engine, finish};

/// One block of the decode scenario: three warm-up requests, then two rounds. In each round an unmeasured request
/// precedes the sample, because two engines take turns and their warm-ups were short. A busy machine does not make most
/// of three warm-ups long.
const RUN: &[&str] = &["--scenario", "decode", "--iterations", "2", "--blocks", "1", "--json", "-"];
const HEALTHY: &str = "fake-engine";
/// The seventh request of a launch: its second sample.
pub const SECOND_SAMPLE: &[&str] = &["--at", "6"];

/// The options for engines that do not answer. The deadline is short, but long enough for the healthy engine on a busy
/// machine. All others have the usual one.
const SILENT: &[&str] =
    &["never_answers", "hangs_in_load", "hangs_in_generate", "half_line_then_hangs", "slow_progress"];

fn deadline(fault: &str) -> &[&str] {
    if SILENT.contains(&fault) { &["--timeout", "10"] } else { &[] }
}

/// A run with the expected failure. `settings` are the fake engine's.
pub fn fails(fault: &str, settings: &[&str], kind: &str, when: &str, message: &str) -> Run {
    let run = run(fault, settings, deadline(fault));
    run.agree(kind, when);
    let said = run.failure()["message"].as_str().unwrap();
    assert!(said.contains(message), "`{said}` does not say `{message}`");
    run
}

/// A run in which the engine is measured in spite of its fault.
pub fn measured(fault: &str, settings: &[&str]) -> Run {
    let run = run(fault, settings, deadline(fault));
    assert_eq!(run.outcome.code, Some(0), "{}", run.outcome.stderr);
    assert_eq!(run.record.failures_of(&run.label), Vec::<&Value>::new());
    assert_eq!(run.case_of(&run.label)["samples"], 2, "{}", run.report);
    run.kept(2);
    run
}

pub fn run(fault: &str, settings: &[&str], options: &[&str]) -> Run {
    let scratch = Scratch::new();
    let engine = scratch.faulty(fault, settings);
    let outcome = start(&scratch, &engine, options);
    Run::of(scratch, fault, outcome)
}

pub fn start(scratch: &Scratch, engine: &Path, options: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate();
    if !options.contains(&"--warmup") {
        command.args(["--warmup", "3"]);
    }
    command.arg("-e").arg(engine).arg("-e").arg(fake_engine()).args(RUN).args(options);
    finish(command.arg("--results").arg(scratch.results()))
}

/// A finished run. The healthy engine's part is already checked.
pub struct Run {
    pub outcome: Outcome,
    pub report: Value,
    pub record: Record,
    label: String,
}

impl Run {
    pub fn of(scratch: Scratch, label: &str, outcome: Outcome) -> Self {
        scratch.assert_nothing_lives();
        let report = serde_json::from_str(&outcome.stdout);
        let report =
            report.unwrap_or_else(|error| panic!("{error}: stdout is no JSON document\n{outcome:?}"));
        let record = Record::only_one_in(&scratch.results());
        let run = Self { report, record, label: label.into(), outcome };
        assert!(!run.outcome.stderr.contains("panicked"), "{}", run.outcome.stderr);
        assert_eq!(run.record.end(), Some("finished"));
        run.record.assert_launches_hold();
        // The healthy engine was measured in full, with any failure of the other one.
        assert_eq!(run.case_of(HEALTHY)["samples"], 2, "{}", run.report);
        assert_eq!(run.case_of(HEALTHY)["failure"], Value::Null, "{}", run.report);
        assert_eq!(run.record.samples_of(HEALTHY).len(), 2);
        assert_eq!(run.record.failures_of(HEALTHY), Vec::<&Value>::new());
        run
    }

    pub fn case_of(&self, label: &str) -> &Value {
        let cases = self.report["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["engine"]["label"] == label);
        case.unwrap_or_else(|| panic!("no row of `{label}` in {}", self.report))
    }

    /// The failure in the report: of one case, or of the engine as a whole.
    pub fn failure(&self) -> &Value {
        let of =
            |entry: &&Value| entry["engine"]["label"] == self.label.as_str() && !entry["failure"].is_null();
        let rows = ["failed", "cases"].into_iter().flat_map(|list| self.report[list].as_array().unwrap());
        rows.clone()
            .find(of)
            .map(|entry| &entry["failure"])
            .unwrap_or_else(|| panic!("no failure in {}", self.report))
    }

    /// Checks that exit code, report and record have the same failure.
    pub fn agree(&self, kind: &str, when: &str) -> &Self {
        assert_eq!(self.outcome.code, Some(4), "{}", self.outcome.stderr);
        let [recorded] = self.record.failures_of(&self.label)[..] else {
            panic!("expected one failure in {:?}", self.record)
        };
        for failure in [recorded, self.failure()] {
            assert_eq!((&failure["kind"], &failure["when"]), (&kind.into(), &when.into()), "{failure}");
        }
        // A report shows no control characters; the record keeps them.
        let recorded = recorded["message"].as_str().unwrap().split(char::is_control).collect::<Vec<_>>();
        let reported = self.failure()["message"].as_str().unwrap();
        assert!(
            recorded.iter().all(|part| reported.contains(part.trim())),
            "{recorded:?} is not {reported:?}"
        );
        self
    }

    /// Checks that the end of the engine's stderr is in the report and in the record.
    pub fn says(&self, words: &str) -> &Self {
        for failure in [self.record.failures_of(&self.label)[0], self.failure()] {
            let stderr = failure["stderr"].as_array().unwrap();
            assert!(stderr.iter().any(|line| line.as_str().unwrap().contains(words)), "{failure}");
        }
        self
    }

    /// Checks that the samples before the failure are in the record.
    pub fn kept(&self, samples: usize) -> &Self {
        assert_eq!(self.record.samples_of(&self.label).len(), samples);
        self
    }

    pub fn with_warning(&self, words: &str) -> &Self {
        let warnings = self.record.warnings_of(&self.label);
        assert!(warnings.iter().any(|warning| warning.contains(words)), "no `{words}` in {warnings:?}");
        assert!(self.report["warnings"].to_string().contains(words), "{}", self.report);
        self
    }

    pub fn without_warning(&self) -> &Self {
        assert_eq!(self.record.warnings_of(&self.label), Vec::<&str>::new());
        self
    }
}
