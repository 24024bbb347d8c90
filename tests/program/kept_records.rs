//! Records that an earlier program made: today's program reads them, and its reports have the same values.

use serde_json::Value;

use crate::support::{Scratch, finish, root};

/// Sentences for people, which may be put better. There are as many of them as before.
const PROSE: &[&str] = &["sentence", "message", "hint", "says", "reasons", "warnings", "notes", "notices"];

#[test]
fn report_of_a_default_suite_has_the_values_that_it_had() {
    assert_same_report("default-suite");
}

#[test]
fn report_of_a_failed_engine_has_the_values_that_it_had() {
    assert_same_report("failed-engine");
}

#[test]
fn report_of_a_1b_model_has_the_values_that_it_had() {
    assert_same_report("llama-3.2-1b");
}

#[test]
fn comparison_of_two_records_has_the_values_that_it_had() {
    let arguments = ["compare", "default-suite.jsonl", "failed-engine.jsonl", "--force"];
    assert_same(&arguments, "compare.json", Some(3));
}

#[test]
fn every_difference_of_two_documents_is_found_with_its_place() {
    let parse = |text| serde_json::from_str::<Value>(text).unwrap();
    let before = parse(r#"{"a": [1, 2.5, null], "b": "x", "hint": "try", "gone": 1, "notes": ["n"]}"#);
    let after = parse(r#"{"a": [1, 2.25, 0], "b": "y", "hint": "do", "notes": ["m"], "later": true}"#);
    let mut found = Vec::new();
    differences("", &before, &after, false, &mut found);
    assert_eq!(found, ["/a/1: 2.5, now 2.25", "/a/2: null, now 0", "/b: \"x\", now \"y\"", "/gone: gone"]);
    let mut shorter = Vec::new();
    differences("", &parse(r#"{"a": [1, 2]}"#), &parse(r#"{"a": [1]}"#), false, &mut shorter);
    assert_eq!(shorter, ["/a: 2 values, now 1"]);
}

fn assert_same_report(name: &str) {
    assert_same(&["report", &format!("{name}.jsonl")], &format!("{name}.json"), Some(0));
}

fn assert_same(arguments: &[&str], kept: &str, code: Option<i32>) {
    let folder = root().join("tests/records");
    let scratch = Scratch::new();
    let mut orchestrate = scratch.orchestrate();
    orchestrate.args(arguments).args(["--format", "json"]).current_dir(&folder);
    let outcome = finish(&mut orchestrate);
    assert_eq!(outcome.code, code, "{}", outcome.stderr);
    let before: Value = serde_json::from_str(&std::fs::read_to_string(folder.join(kept)).unwrap()).unwrap();
    let after: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let mut found = Vec::new();
    differences("", &before, &after, false, &mut found);
    assert!(found.is_empty(), "{} values differ from {kept}:\n{}", found.len(), found.join("\n"));
}

/// What `before` has and `after` has not, or has with another value. A new field is none.
fn differences(place: &str, before: &Value, after: &Value, prose: bool, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let place = format!("{place}/{key}");
                match after.get(key) {
                    Some(now) => differences(&place, value, now, PROSE.contains(&key.as_str()), found),
                    None => found.push(format!("{place}: gone")),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() != after.len() => {
            found.push(format!("{place}: {} values, now {}", before.len(), after.len()));
        }
        (Value::Array(before), Value::Array(after)) => {
            for (index, (value, now)) in before.iter().zip(after).enumerate() {
                differences(&format!("{place}/{index}"), value, now, prose, found);
            }
        }
        (Value::String(_), Value::String(_)) if prose => {}
        _ if before == after => {}
        _ => found.push(format!("{place}: {before}, now {after}")),
    }
}
