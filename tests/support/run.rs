//! A finished run of fake engines: its output, its report and its record.

use std::path::Path;

use serde_json::Value;

use super::record::{Record, case_of};
use super::{Outcome, Scratch, copy_folder, finish};

/// One block of the decode scenario: three warm-up requests, then two rounds. With several engines, each engine is paused
/// between its requests. A discarded request precedes each sample, because the median of the warm-up requests is short. There
/// are three warm-up requests, so that one slow request on a busy machine does not change the median.
pub const RUN: &[&str] = &[
    "--scenario",
    "decode",
    "--depth",
    "0",
    "--iterations",
    "2",
    "--blocks",
    "1",
    "--warmup",
    "3",
    "--json",
    "-",
];

const HEALTHY: &str = "healthy";

/// The verifier of a run. `Default` leaves the choice to orchestrate.
#[derive(Clone, Copy)]
pub enum Verifier<'a> {
    None,
    Default,
    /// The measured engine with this name.
    Row(&'a str),
    /// A separate engine, called `verifier`, with these settings.
    Engine(&'a str),
}

pub struct Run {
    pub outcome: Outcome,
    pub report: Value,
    pub record: Record,
}

/// A run of engines, each with its name and settings. A verifier without faults checks their outputs.
pub fn run_with_verifier(engines: &[(&str, &str)]) -> Run {
    run(engines, Verifier::Engine(""), &[])
}

pub fn run(engines: &[(&str, &str)], verifier: Verifier, options: &[&str]) -> Run {
    run_selected(engines, verifier, &[RUN, options].concat())
}

/// The default suite in five blocks. A verifier without faults checks the outputs.
pub fn run_default_suite(engines: &[(&str, &str)], options: &[&str]) -> Run {
    run_selected(engines, Verifier::Engine(""), &[&["--blocks", "5", "--json", "-"], options].concat())
}

/// Runs engines in the scenarios that the options select.
pub fn run_selected(engines: &[(&str, &str)], verifier: Verifier, options: &[&str]) -> Run {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    for (name, settings) in engines {
        command.arg("-e").arg(scratch.engine(name, settings));
    }
    if !matches!(verifier, Verifier::None) {
        command.env_remove("ORCHESTRATE_VERIFIER");
    }
    match verifier {
        Verifier::Row(name) => command.arg("--verifier").arg(scratch.join(name)),
        Verifier::Engine(settings) => command.arg("--verifier").arg(scratch.engine("verifier", settings)),
        Verifier::None | Verifier::Default => &mut command,
    };
    let outcome = finish(command.args(options).arg("--results").arg(scratch.results()));
    Run::of(&scratch, outcome)
}

/// A run of engines with faults and of a healthy engine, which must be measured in full.
pub fn run_with_healthy(engines: &[(&str, &str)], options: &[&str]) -> Run {
    let run = run(&[engines, &[(HEALTHY, "")]].concat(), Verifier::None, options);
    run.assert_measured(HEALTHY);
    run
}

/// The outcome of a run of any program and of a healthy engine.
pub fn run_program_with_healthy(scratch: &Scratch, engine: &Path) -> Outcome {
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(engine).arg("-e").arg(scratch.engine(HEALTHY, "")).args(RUN);
    finish(command.arg("--results").arg(scratch.results()))
}

/// Copies the embedded model to the folder `model`, and stores the reference answers of an engine called `sage` there.
pub fn store_answers(scratch: &Scratch, options: &[&str]) -> Outcome {
    store_answers_of(scratch, "", options)
}

/// As `store_answers`, with settings of `sage`.
pub fn store_answers_of(scratch: &Scratch, settings: &str, options: &[&str]) -> Outcome {
    let (model, sage) = (scratch.join("model"), scratch.engine("sage", &format!("--engine sage {settings}")));
    copy_folder(&model_files::embedded::folder().unwrap(), &model);
    let mut command = scratch.orchestrate();
    command
        .args(["model", "reference-answers"])
        .arg(model)
        .arg("--verifier")
        .arg(sage)
        .arg("--results")
        .arg(scratch.join("answers"));
    finish(command.args(options))
}

/// A fault, its settings, and the expected failure: kind, stage, words of the message.
pub type FaultCase = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// Runs an engine for each fault. Checks that the engine's row has the failure, and that the earlier samples are kept.
#[track_caller]
pub fn assert_faults(faults: &[FaultCase], options: &[&str]) -> Run {
    let settings = faults.iter().map(|(fault, settings, ..)| format!("--fault {fault} {settings}"));
    let settings: Vec<String> = settings.collect();
    let engines = faults.iter().zip(&settings).map(|((fault, ..), settings)| (*fault, settings.as_str()));
    let run = run_with_healthy(&engines.collect::<Vec<_>>(), options);
    for (fault, _, kind, when, message) in faults {
        let reported = run.assert_failed(fault, kind, when)["message"].as_str().unwrap();
        assert!(reported.contains(message), "{fault}: `{reported}` without `{message}`");
        run.assert_samples(fault, usize::from(*when == "sample 2"));
    }
    run
}

impl Run {
    pub fn of(scratch: &Scratch, outcome: Outcome) -> Self {
        scratch.assert_no_processes_left();
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        let (report, record) = (outcome.json(), Record::only_one_in(&scratch.results()));
        assert_eq!(record.end(), Some("finished"), "{outcome:?}");
        record.assert_launches_in_order();
        Self { outcome, report, record }
    }

    #[track_caller]
    pub fn case_of(&self, label: &str) -> &Value {
        case_of(&self.report, label)
    }

    /// Checks that an engine was measured in full, with any verification status.
    #[track_caller]
    pub fn assert_measured(&self, label: &str) -> &Self {
        let case = self.case_of(label);
        assert_eq!((&case["samples"], &case["failure"]), (&2.into(), &Value::Null), "{}", self.report);
        assert_eq!(self.record.failures_of(label), Vec::<&Value>::new());
        self.assert_samples(label, 2)
    }

    #[track_caller]
    pub fn assert_samples(&self, label: &str, samples: usize) -> &Self {
        assert_eq!(self.record.samples_of(label).len(), samples, "{label}");
        self
    }

    /// Checks that record and report have a warning with these words about an engine. Without words, the record must have no
    /// warning about it.
    #[track_caller]
    pub fn assert_warnings(&self, label: &str, words: &str) -> &Self {
        let warnings = self.record.warnings_of(label);
        let is_warned = warnings.iter().any(|warning| warning.contains(words));
        assert_eq!(is_warned, !words.is_empty(), "{label}: `{words}` in {warnings:?}");
        assert!(self.report["warnings"].to_string().contains(words), "{}", self.report);
        self
    }

    /// Checks that exit code, report and record have the same failure, and returns it as the report has it.
    #[track_caller]
    pub fn assert_failed(&self, label: &str, kind: &str, when: &str) -> &Value {
        assert_eq!(self.outcome.code, Some(4), "{}", self.outcome.stderr);
        let (recorded, reported) = (self.record.assert_failed(label, kind, when), self.failure_of(label));
        assert_eq!((&reported["kind"], &reported["when"]), (&kind.into(), &when.into()), "{reported}");
        // A report shows no control characters; the record keeps them.
        let mut parts = recorded["message"].as_str().unwrap().split(char::is_control);
        let message = reported["message"].as_str().unwrap();
        assert!(parts.all(|part| message.contains(part.trim())), "{recorded} is not {reported}");
        reported
    }

    /// The failure in the report, of one case or of the whole engine.
    fn failure_of(&self, label: &str) -> &Value {
        let mut rows = ["failed", "cases"].into_iter().flat_map(|list| self.report[list].as_array().unwrap());
        let row = rows.find(|row| row["engine"]["label"] == label && !row["failure"].is_null());
        &row.unwrap_or_else(|| panic!("no failure of `{label}` in {}", self.report))["failure"]
    }

    /// Checks that the end of the engine's stderr is in the report and in the record.
    #[track_caller]
    pub fn assert_stderr(&self, label: &str, words: &str) -> &Self {
        for failure in [self.record.failure_of(label), self.failure_of(label)] {
            let stderr = failure["stderr"].as_array().unwrap();
            assert!(stderr.iter().any(|line| line.as_str().unwrap().contains(words)), "{failure}");
        }
        self
    }

    pub fn logprobs(&self, label: &str) -> Vec<f64> {
        let scored = self.record.entries_of("scored", label);
        let values = scored.iter().flat_map(|it| it["logprobs"].as_array().unwrap());
        values.map(|value| value.as_f64().unwrap()).collect()
    }

    /// The reasons in the record why outputs of this configuration were not checked.
    pub fn unchecked_reasons(&self, label: &str) -> Vec<&str> {
        let unchecked = self.record.entries_of("not_checked", label);
        unchecked.iter().map(|it| it["reason"].as_str().unwrap()).collect()
    }

    /// The verifier's tokens at the positions where it checked this configuration.
    pub fn reference_tokens(&self, label: &str) -> Vec<&Value> {
        let launches: Vec<_> = self.record.launches_of(label).iter().map(|it| &it["launch"]).collect();
        let tokens = self.record.entries("reference_token").into_iter();
        tokens.filter(|it| launches.contains(&&it["launch"])).collect()
    }

    /// The messages about claims of this engine that do not hold. Checks that all of its rows are marked if there are any, and
    /// none otherwise.
    #[track_caller]
    pub fn contradictions_of(&self, label: &str) -> Vec<&str> {
        let contradictions = self.report["contradictions"].as_array().unwrap().len();
        let warnings = self.report["warnings"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let of_engine = |list: &str| {
            self.report[list].as_array().unwrap().iter().filter(|it| it["engine"] == label).count()
        };
        let count = of_engine("contradictions");
        let cases = self.report["cases"].as_array().unwrap();
        let marks =
            cases.iter().filter(|case| case["engine"]["label"] == label).map(|it| &it["contradicted"]);
        assert!(
            marks.clone().count() > 0 && marks.clone().all(|mark| *mark == (count > 0)),
            "{}",
            self.report
        );
        // The warnings begin with the contradicted claims.
        warnings.take(contradictions).filter(|it| it.starts_with(&format!("{label}: "))).collect()
    }

    pub fn status(&self, label: &str) -> &str {
        self.output_of(label)["status"].as_str().unwrap()
    }

    pub fn status_reasons(&self, label: &str) -> Vec<&str> {
        self.output_of(label)["reasons"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
    }

    fn output_of(&self, label: &str) -> &Value {
        let outputs = self.report["outputs"].as_array().unwrap();
        outputs.iter().find(|it| it["engine"] == label).unwrap()
    }
}
