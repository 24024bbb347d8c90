//! The golden files show the wire format. Each request and each message must parse, serialise to the same JSON plus the
//! defaults of omitted fields, and match the schema. Each line in `refused.json` must be refused. The Python kit's tests read
//! the same files.

#![expect(clippy::unwrap_used, reason = "a test panics where it cannot continue")]

use std::collections::BTreeMap;

use protocol::{Message, Request, parse_message, parse_request};
use serde_json::{Value, json};

mod committed;
mod readme;
mod schema;

/// The golden files whose names begin with `prefix`, each as the value it holds.
fn golden_files(prefix: &str) -> BTreeMap<String, Value> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".json").filter(|stem| stem.starts_with(prefix)) {
            let value = serde_json::from_slice(&std::fs::read(&path).unwrap());
            found.insert(stem.to_owned(), value.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }
    assert!(!found.is_empty(), "no `{prefix}*.json` in {folder}");
    found
}

/// The content of a golden file as one line, as on the wire.
fn line(value: &Value) -> Vec<u8> {
    let line = serde_json::to_vec(value).unwrap();
    assert!(!line.contains(&b'\n'));
    line
}

fn request(name: &str, value: &Value) -> Request {
    parse_request(&line(value)).unwrap_or_else(|failed| panic!("{name}: {}", failed.message))
}

fn message(name: &str, value: &Value) -> Message {
    parse_message(&line(value)).unwrap_or_else(|failed| panic!("{name}: {}", failed.message))
}

#[test]
fn an_invalid_line_is_refused_with_the_message_in_the_golden_file() {
    for (line, message) in golden_files("refused")["refused"].as_object().unwrap() {
        let failed = parse_request(line.as_bytes()).unwrap_err();
        assert_eq!(&json!(failed.message), message, "{line}");
        assert_eq!(failed.kind, protocol::FailureKind::BadRequest, "{line}");
    }
}

/// The values of omitted fields, by the type of the line. `README.md` states the same.
fn documented_defaults(kind: &str) -> Value {
    match kind {
        "generate" => json!({
            "type": "generate", "max_new_tokens": 32, "iterations": 1, "warmup": 0, "ignore_eos": false,
            "use_cache": true, "padding": "left", "stream": false,
        }),
        "token" => json!({ "iteration": 0, "sequence": 0 }),
        "hello" => json!({
            "output": "ids", "stamp": "token", "deterministic": false,
            "capabilities": {
                "devices": ["cpu"], "dtypes": [], "formats": [], "architectures": [], "stream": false,
                "prompt": true, "prompt_ids": false, "batch": 1, "concurrency": 1, "use_cache_toggle": false,
                "prefix_cache_toggle": false, "padding_sides": [], "speculation": [],
                "ignore_eos": false, "sampling": false, "score": false, "facts": false,
            },
        }),
        _ => json!({}),
    }
}

/// Adds the defaults of the omitted fields to `golden`.
fn with_defaults(golden: &Value) -> Value {
    let mut complete = documented_defaults(golden["type"].as_str().unwrap_or("generate"));
    if golden["type"] == "hello" && golden.get("protocol").is_some() && golden.get("engine").is_none() {
        complete = json!({}); // The request `hello` has no defaults.
    }
    let fields = golden.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.clone()));
    complete.as_object_mut().unwrap().extend(fields);
    complete
}

#[test]
fn every_golden_request_is_unchanged_by_parsing_and_writing() {
    for (name, golden) in golden_files("request-") {
        let parsed = request(&name, &golden);
        assert_eq!(serde_json::to_value(&parsed).unwrap(), with_defaults(&golden), "{name}");
        assert_eq!(request(&name, &with_defaults(&golden)), parsed, "{name}");
    }
}

#[test]
fn every_golden_message_is_unchanged_by_parsing_and_writing() {
    for (name, golden) in golden_files("message-") {
        let parsed = message(&name, &golden);
        assert_eq!(serde_json::to_value(&parsed).unwrap(), with_defaults(&golden), "{name}");
        assert_eq!(message(&name, &with_defaults(&golden)), parsed, "{name}");
    }
}

#[test]
fn every_golden_file_matches_the_schema() {
    let schema = schema::committed_schema();
    for (prefix, root) in [("request-", "Request"), ("message-", "Message")] {
        for (name, golden) in golden_files(prefix) {
            schema::check(&schema, root, &golden).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn every_kind_of_request_has_a_golden_file() {
    // A new variant stops this match from compiling: then add a golden file, and the name to the list below.
    let kind = |request: &Request| match request {
        Request::Hello(_) => "hello",
        Request::Load(_) => "load",
        Request::Generate(_) => "generate",
        Request::Score(_) => "score",
        Request::Facts {} => "facts",
        Request::Cancel(_) => "cancel",
        Request::Shutdown {} => "shutdown",
    };
    let mut kinds: Vec<_> =
        golden_files("request-").iter().map(|(name, golden)| kind(&request(name, golden))).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["cancel", "facts", "generate", "hello", "load", "score", "shutdown"]);
}

#[test]
fn every_kind_of_message_has_a_golden_file() {
    let mut kinds: Vec<_> =
        golden_files("message-").iter().map(|(name, golden)| message(name, golden).name()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(
        kinds,
        ["bye", "facts", "failed", "generated", "hello", "loaded", "progress", "scored", "token"]
    );
}

#[test]
fn every_field_is_in_a_golden_file() {
    let schema = schema::committed_schema();
    let mut present = std::collections::BTreeSet::new();
    for (prefix, root) in [("request-", "Request"), ("message-", "Message")] {
        for golden in golden_files(prefix).values() {
            schema::add_fields(&schema, root, golden, &mut present);
        }
    }
    let declared = schema::declared_fields(&schema);
    assert!(declared.len() > 80, "{}", declared.len());
    let missing: Vec<_> = declared.difference(&present).collect();
    assert!(missing.is_empty(), "no golden file has {missing:?}");
}
