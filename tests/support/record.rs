//! Reads and changes run records through their documented JSON fields alone.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The row of an engine in a report.
#[track_caller]
pub fn case_of<'a>(report: &'a Value, label: &str) -> &'a Value {
    let cases = report["cases"].as_array().unwrap();
    let case = cases.iter().find(|case| case["engine"]["label"] == label);
    case.unwrap_or_else(|| panic!("no row of `{label}` in {report}"))
}

/// The entries of a run record. The first is the header.
#[derive(Debug)]
pub struct Record(pub Vec<Value>);

/// The files and folders in a folder, in alphabetical order.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

impl Record {
    pub fn only_one_in(folder: &Path) -> Self {
        let files = files(folder);
        let [file] = &files[..] else {
            panic!("expected one record in `{}`, found {files:?}", folder.display())
        };
        Self::read(file)
    }

    /// Checks that launches are numbered in order, and that no line refers to a later launch.
    pub fn assert_launches_in_order(&self) {
        let mut recorded = 0;
        for line in &self.0 {
            if line["entry"] == "launch" {
                assert_eq!(line["launch"], recorded, "{line}");
                recorded += 1;
            } else if let Some(launch) = line["launch"].as_u64() {
                assert!(launch < recorded, "no launch {launch} is recorded before this line: {line}");
            }
        }
    }

    /// Reads a record and checks that every line is complete JSON.
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.ends_with('\n'), "the last line of the record is incomplete");
        Self(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    pub fn entries(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|entry| entry["entry"] == kind).collect()
    }

    #[track_caller]
    pub fn only(&self, kind: &str) -> &Value {
        let [entry] = self.entries(kind)[..] else { panic!("expected one `{kind}` in {self:?}") };
        entry
    }

    /// How the run ended; `None` without an entry about the end.
    pub fn end(&self) -> Option<&str> {
        self.entries("end").first().and_then(|end| end["how"].as_str())
    }

    pub fn header(&self) -> &Value {
        &self.0[0]
    }

    fn plan(&self) -> &Value {
        &self.header()["plan"]
    }

    /// The index of the configuration with this label in the plan.
    pub fn configuration(&self, label: &str) -> usize {
        let configurations = self.plan()["configurations"].as_array().unwrap();
        let index = configurations.iter().position(|configuration| configuration["label"] == label);
        index.unwrap_or_else(|| panic!("no configuration `{label}` in {configurations:?}"))
    }

    /// The entries of a kind about the configuration with this label.
    pub fn entries_of(&self, kind: &str, label: &str) -> Vec<&Value> {
        let configuration = self.configuration(label);
        self.entries(kind).into_iter().filter(|it| it["configuration"] == configuration).collect()
    }

    pub fn launches_of(&self, label: &str) -> Vec<&Value> {
        self.entries_of("launch", label)
    }

    pub fn failures_of(&self, label: &str) -> Vec<&Value> {
        self.entries_of("failure", label)
    }

    #[track_caller]
    pub fn failure_of(&self, label: &str) -> &Value {
        let [failure] = self.failures_of(label)[..] else {
            panic!("expected one failure of `{label}` in {self:?}")
        };
        failure
    }

    /// Checks the kind and the stage (`when`) of the only failure of a configuration.
    #[track_caller]
    pub fn assert_failed(&self, label: &str, kind: &str, when: &str) -> &Value {
        let failure = self.failure_of(label);
        assert_eq!((&failure["kind"], &failure["when"]), (&kind.into(), &when.into()), "{label}: {failure}");
        failure
    }

    pub fn warnings_of(&self, label: &str) -> Vec<&str> {
        let warnings = self.entries_of("warning", label);
        warnings.into_iter().filter_map(|warning| warning["message"].as_str()).collect()
    }

    pub fn samples_of(&self, label: &str) -> Vec<&Value> {
        let is_sample = self.is_sample_of(label);
        self.0.iter().filter(|entry| is_sample(entry)).collect()
    }

    pub fn samples_of_mut(&mut self, label: &str) -> Vec<&mut Value> {
        let is_sample = self.is_sample_of(label);
        self.0.iter_mut().filter(|entry| is_sample(entry)).collect()
    }

    fn is_sample_of(&self, label: &str) -> impl Fn(&Value) -> bool + use<> {
        let configuration = self.configuration(label);
        let cases = self.plan()["cases"].as_array().unwrap().clone();
        move |entry| {
            entry["entry"] == "sample"
                && entry["kind"] == "measured"
                && cases[entry["case"].as_u64().unwrap() as usize]["configuration"] == configuration
        }
    }

    pub fn write(&self, file: &Path) {
        let text: String = self.0.iter().map(|entry| format!("{entry}\n")).collect();
        std::fs::write(file, text).unwrap();
    }
}
