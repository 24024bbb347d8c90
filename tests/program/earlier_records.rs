//! Records of earlier versions: the program reads them, and its reports have the same values as the earlier reports.

use serde_json::Value;

use crate::support::{Scratch, finish, root};

/// Fields with texts for readers. The words may change, but not the number of texts.
const PROSE: &[&str] = &["sentence", "message", "hint", "reasons", "warnings", "notes", "notices"];

/// The one field with texts to which a later version may add texts.
const GROWING_ARRAY: &str = "notes";

/// Fields that identify the elements of an array. A later version may add elements that have a metric.
const KEYS: &[&str] = &["case", METRIC, "engine", "configuration", "against"];
const METRIC: &str = "metric";

/// Fields that report version 2 gave another name, with the old name first.
const RENAMED_FIELDS: &[(&str, &str)] = &[
    ("class", "severity"),
    ("compared_by_force_although", "forced_differences"),
    ("counts_because", "threshold_source"),
    ("counts_from", "threshold"),
    ("device_stated_bytes", "device_reported_bytes"),
    ("doubted", "contradicted"),
    ("epsilon", "threshold"),
    ("doubts", "contradictions"),
    ("gravest", "worst_run"),
    ("is_doubted", "is_contradicted"),
    ("is_sure", "is_conclusive"),
    ("lost_among_many", "lost_to_correction"),
    ("opinions", "gaps"),
    ("own", "verifier_token"),
    ("parted", "differing"),
    ("place", "position"),
    ("places", "positions"),
    ("says", "effect"),
    ("seen", "observed"),
    ("standing", "status"),
    ("stated", "reported"),
    ("theirs", "engine_token"),
    ("unseats", "excludes_from_ranking"),
    ("what", "kind"),
    ("whom", "kind"),
];

/// The name for an `epsilon` with both thresholds. An `epsilon` that is a number is the threshold of a difference.
const EPSILON_OBJECT: &str = "thresholds";

/// Values that report version 2 gave another name: the field, the old value and the new one.
const RENAMED_VALUES: &[(&str, &str, &str)] = &[
    (
        "caution",
        "a geometric mean weighs every scenario alike, and no workload need run at it",
        "each workload has the same weight in a geometric mean; no single workload has this ratio",
    ),
    ("ended_by", "asked", "set_by_user"),
    ("kind", "kept", "reference_answers"),
    ("kind", "nobody", "nothing"),
    ("label", "lmrs (witness)", "lmrs (verifier)"),
    ("stopped_by", "asked", "fixed"),
    ("stopped_by", "last_look", "last_analysis"),
    ("summary", "2 headline metrics: 2 not measurable", "2 headline metrics: 2 without a verdict"),
    ("threshold_source", "nothing smaller matters", "smallest threshold"),
    ("threshold_source", "the blocks of the base", "blocks of the base"),
    ("threshold_source", "the blocks of the new run", "blocks of the new run"),
    ("verdict", "not_measurable", "inconclusive"),
];

#[test]
fn reports_of_earlier_records_have_their_earlier_values() {
    for name in ["default-suite", "failed-engine", "llama-3.2-1b"] {
        assert_same(&["report", &format!("{name}.jsonl")], &format!("{name}.json"), 0);
    }
}

#[test]
fn comparison_of_two_records_has_its_earlier_values() {
    let arguments = ["compare", "default-suite.jsonl", "failed-engine.jsonl", "--force"];
    assert_same(&arguments, "compare.json", 3);
}

#[test]
fn every_difference_of_two_documents_is_found_with_its_path() {
    let before = r#"{"a": [1, 2.5, null], "b": "x", "hint": "try", "lost": 1, "notes": ["n"]}"#;
    let after = r#"{"a": [1, 2.25, 0], "b": "y", "hint": "do", "notes": ["m"], "later": true}"#;
    assert_eq!(
        differences_of(before, after),
        ["/a/1: 2.5, now 2.25", "/a/2: null, now 0", "/b: \"x\", now \"y\"", "/lost: missing"]
    );
    assert_eq!(differences_of(r#"{"a": [1, 2]}"#, r#"{"a": [1]}"#), ["/a: 2 values, now 1"]);
    assert_eq!(differences_of(r#"{"a": [1]}"#, r#"{"a": [1, 2]}"#), ["/a: 1 values, now 2"]);
}

#[test]
fn a_new_metric_is_no_difference_at_any_position() {
    let before = r#"{"metrics": [{"metric": "a", "n": 1}, {"metric": "b", "n": 2}]}"#;
    let added =
        r#"{"metrics": [{"metric": "a", "n": 1}, {"metric": "new", "n": 9}, {"metric": "b", "n": 2}]}"#;
    assert_eq!(differences_of(before, added), NONE);
    let changed =
        r#"{"metrics": [{"metric": "new", "n": 9}, {"metric": "a", "n": 1}, {"metric": "b", "n": 3}]}"#;
    assert_eq!(differences_of(before, changed), ["/metrics/b/n: 2, now 3"]);
    let replaced = r#"{"metrics": [{"metric": "new", "n": 9}, {"metric": "a", "n": 1}]}"#;
    assert_eq!(differences_of(before, replaced), ["/metrics/b: missing"]);
    let twice = r#"{"metrics": [{"metric": "a", "n": 1}, {"metric": "b", "n": 2}, {"metric": "b", "n": 3}]}"#;
    assert_eq!(differences_of(before, twice), ["/metrics/b: 2 elements"]);
    // A metric may also be added to an empty array.
    assert_eq!(differences_of(r#"{"metrics": []}"#, r#"{"metrics": [{"metric": "new", "n": 9}]}"#), NONE);
}

#[test]
fn comparisons_are_matched_by_case_metric_and_engines() {
    let before = r#"{"pairs": [
        {"case": "decode", "metric": "a", "engine": "x", "against": "y", "ratio": 2.0},
        {"case": "decode", "metric": "a", "engine": "y", "against": "x", "ratio": 0.5}]}"#;
    let added = r#"{"pairs": [
        {"case": "decode", "metric": "new", "engine": "x", "against": "y", "ratio": 9.0},
        {"case": "decode", "metric": "a", "engine": "x", "against": "y", "ratio": 2.0},
        {"case": "decode", "metric": "a", "engine": "y", "against": "x", "ratio": 0.25}]}"#;
    assert_eq!(differences_of(before, added), ["/pairs/decode a y x/ratio: 0.5, now 0.25"]);
}

#[test]
fn rows_without_a_metric_keep_their_order() {
    let before = r#"{"cases": [{"case": "decode", "engine": "x"}, {"case": "load", "engine": "x"}]}"#;
    let added = r#"{"cases": [{"case": "decode", "engine": "x"}, {"case": "load", "engine": "x"},
        {"case": "prefill", "engine": "x"}]}"#;
    assert_eq!(differences_of(before, added), ["/cases: 2 values, now 3"]);
    let reordered = r#"{"cases": [{"case": "load", "engine": "x"}, {"case": "decode", "engine": "x"}]}"#;
    assert_eq!(differences_of(before, reordered), ["/cases: in another order"]);
    let metrics = [
        r#"{"metrics": [{"metric": "a"}, {"metric": "b"}]}"#,
        r#"{"metrics": [{"metric": "b"}, {"metric": "new"}, {"metric": "a"}]}"#,
    ];
    assert_eq!(differences_of(metrics[0], metrics[1]), ["/metrics: in another order"]);
}

#[test]
fn a_missing_note_and_a_new_warning_are_differences_but_a_new_note_is_not() {
    let before = r#"{"notes": ["n"], "warnings": ["w"]}"#;
    assert_eq!(differences_of(before, r#"{"notes": ["n", "m"], "warnings": ["w"]}"#), NONE);
    assert_eq!(differences_of(before, r#"{"notes": [], "warnings": ["w"]}"#), ["/notes: 1 values, now 0"]);
    assert_eq!(
        differences_of(before, r#"{"notes": ["n"], "warnings": ["w", "v"]}"#),
        ["/warnings: 1 values, now 2"]
    );
}

const NONE: [&str; 0] = [];

/// The differences of two JSON documents.
fn differences_of(before: &str, after: &str) -> Vec<String> {
    let [before, after] = [before, after].map(|text| serde_json::from_str::<Value>(text).unwrap());
    let mut differing = Vec::new();
    differences("", &before, &after, Prose::No, &mut differing);
    differing
}

fn assert_same(arguments: &[&str], expected_file: &str, code: i32) {
    let folder = root().join("tests/records");
    let scratch = Scratch::new();
    let mut orchestrate = scratch.orchestrate();
    orchestrate.args(arguments).args(["--format", "json"]).current_dir(&folder);
    let outcome = finish(&mut orchestrate);
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    let after = outcome.json();
    let before = serde_json::from_slice(&std::fs::read(folder.join(expected_file)).unwrap()).unwrap();
    let before = renamed(before);
    let mut differing = Vec::new();
    differences("", &before, &after, Prose::No, &mut differing);
    assert!(
        differing.is_empty(),
        "{} values differ from {expected_file}:\n{}",
        differing.len(),
        differing.join("\n")
    );
}

/// The document with the current names.
fn renamed(value: Value) -> Value {
    let field = |(key, value): (String, Value)| {
        let key = if key == "epsilon" && value.is_object() { EPSILON_OBJECT.to_string() } else { key };
        let new = RENAMED_FIELDS.iter().find(|(old, _)| *old == key).map_or(key, |(_, new)| new.to_string());
        let is_renamed = |(field, old, _): &&(&str, &str, &str)| *field == new && value == *old;
        let value = match RENAMED_VALUES.iter().find(is_renamed) {
            Some((.., value)) => Value::from(*value),
            None => renamed(value),
        };
        (new, value)
    };
    match value {
        Value::Object(fields) => fields.into_iter().map(field).collect(),
        Value::Array(values) => values.into_iter().map(renamed).collect(),
        other => other,
    }
}

/// Whether a field has texts for readers, and whether their number may grow.
#[derive(Clone, Copy, PartialEq)]
enum Prose {
    No,
    SameCount,
    MayGrow,
}

impl Prose {
    fn of_field(key: &str) -> Self {
        match key {
            GROWING_ARRAY => Self::MayGrow,
            _ if PROSE.contains(&key) => Self::SameCount,
            _ => Self::No,
        }
    }
}

/// Adds the values of `before` that are missing or different in `after`. New fields, metrics and notes are allowed.
fn differences(path: &str, before: &Value, after: &Value, prose: Prose, differing: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = format!("{path}/{key}");
                match after.get(key) {
                    Some(new) => differences(&path, value, new, Prose::of_field(key), differing),
                    None => differing.push(format!("{path}: missing")),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            let all_metrics = |values: &[Value]| values.iter().all(|it| it.get(METRIC).is_some());
            if all_metrics(before) && all_metrics(after) {
                return metric_differences(path, before, after, differing);
            }
            if before.len() > after.len() || before.len() < after.len() && prose != Prose::MayGrow {
                return differing.push(format!("{path}: {} values, now {}", before.len(), after.len()));
            }
            if before.iter().zip(after).any(|(value, new)| key(value) != key(new)) {
                return differing.push(format!("{path}: in another order"));
            }
            for (index, (value, new)) in before.iter().zip(after).enumerate() {
                differences(&format!("{path}/{index}"), value, new, prose, differing);
            }
        }
        (Value::String(_), Value::String(_)) if prose != Prose::No => {}
        _ if before == after => {}
        _ => differing.push(format!("{path}: {before}, now {after}")),
    }
}

/// Adds the differences of two arrays whose elements have a metric. A key identifies each element.
fn metric_differences(path: &str, before: &[Value], after: &[Value], differing: &mut Vec<String>) {
    let mut last = None;
    let mut in_order = true;
    for value in before {
        let key = key(value);
        let element = format!("{path}/{key}");
        let indices: Vec<usize> = (0..after.len()).filter(|&it| self::key(&after[it]) == key).collect();
        match indices[..] {
            [] => differing.push(format!("{element}: missing")),
            [at] => {
                in_order &= last < Some(at);
                last = Some(at);
                differences(&element, value, &after[at], Prose::No, differing);
            }
            _ => differing.push(format!("{element}: {} elements", indices.len())),
        }
    }
    if !in_order {
        differing.push(format!("{path}: in another order"));
    }
}

/// The key of an element of an array; empty if the element has no key field.
fn key(element: &Value) -> String {
    let parts = KEYS.iter().filter_map(|key| element.get(key)?.as_str());
    parts.collect::<Vec<_>>().join(" ")
}
