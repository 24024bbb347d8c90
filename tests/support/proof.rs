//! Shared parts of the tests of output checks: a run of fake engines with a reference engine, its record and its report.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::record::Record;
use super::{Outcome, Scratch, fake_engine, finish};

pub const RUN: &[&str] =
    &["--scenario", "decode", "--iterations", "2", "--blocks", "1", "--warmup", "3", "--json", "-"];

/// Runs engines by name with their settings, and a reference engine. Settings that begin with `|` are a program that
/// filters the engine's output. `--verifier-is NAME` in the options makes one of the engines the reference; without
/// either, the default applies.
pub fn run(engines: &[(&str, &[&str])], verifier: &[(&str, &[&str])], options: &[&str]) -> Run {
    let scratch = Scratch::new();
    let engine = |&(name, settings): &(&str, &[&str])| -> PathBuf {
        let pipes = settings.first() == Some(&"|");
        let settings: Vec<_> = settings.iter().skip(pipes.into()).map(|it| format!("'{it}'")).collect();
        let (fake, settings) = (fake_engine(), settings.join(" "));
        let line = match pipes {
            true => format!("'{}' | {settings}", fake.display()),
            false => format!("exec '{}' {settings}", fake.display()),
        };
        scratch.script(name, &line)
    };
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_VERIFIER");
    for one in engines {
        command.arg("-e").arg(engine(one));
    }
    for one in verifier {
        command.arg("--verifier").arg(engine(one));
    }
    match options {
        ["--verifier-is", name] => command.arg("--verifier").arg(scratch.join(name)),
        options => command.args(options),
    };
    let outcome = finish(command.args(RUN).arg("--results").arg(scratch.results()));
    scratch.assert_nothing_lives();
    let report = serde_json::from_str(&outcome.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: stdout is no JSON document\n{outcome:?}"));
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    Run { record: Record::only_one_in(&scratch.results()), report, outcome }
}

pub struct Run {
    pub outcome: Outcome,
    pub report: Value,
    pub record: Record,
}

impl Run {
    /// Entries of a kind that are about this configuration.
    pub fn of(&self, kind: &str, label: &str) -> Vec<&Value> {
        let configuration = self.record.configuration(label);
        self.record.entries(kind).into_iter().filter(|it| it["configuration"] == configuration).collect()
    }

    pub fn logprobs(&self, label: &str) -> Vec<f64> {
        let scored = self.of("scored", label);
        let values = scored.iter().flat_map(|it| it["logprobs"].as_array().unwrap());
        values.map(|value| value.as_f64().unwrap()).collect()
    }

    pub fn reasons(&self, label: &str) -> Vec<&str> {
        self.of("not_checked", label).iter().map(|it| it["reason"].as_str().unwrap()).collect()
    }

    /// The reference engine's checks of this configuration's samples.
    pub fn opinions(&self, label: &str) -> Vec<&Value> {
        let launches: Vec<_> = self.record.launches_of(label).iter().map(|it| &it["launch"]).collect();
        self.record
            .entries("reference_token")
            .into_iter()
            .filter(|it| launches.contains(&&it["launch"]))
            .collect()
    }

    pub fn output_of(&self, label: &str) -> &Value {
        let outputs = self.report["outputs"].as_array().unwrap();
        outputs.iter().find(|it| it["engine"] == label).unwrap()
    }

    pub fn status(&self, label: &str) -> &str {
        self.output_of(label)["status"].as_str().unwrap()
    }

    pub fn why(&self, label: &str) -> Vec<&str> {
        self.output_of(label)["reasons"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
    }

    pub fn case_of(&self, label: &str) -> &Value {
        let cases = self.report["cases"].as_array().unwrap();
        cases.iter().find(|case| case["engine"]["label"] == label).unwrap()
    }

    /// Checks that it was measured, with any verification status.
    pub fn measured(&self, label: &str) -> &Self {
        assert_eq!(self.case_of(label)["samples"], 2, "{}", self.report);
        assert_eq!(self.record.samples_of(label).len(), 2);
        assert_eq!(self.record.failures_of(label), Vec::<&Value>::new());
        self
    }
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
