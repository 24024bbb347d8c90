//! Makes the JSON Schema of the protocol from the types, and compares it with the committed file.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::{Message, Request, version};

/// One document: `#/$defs/Request` is a line on an engine's stdin, `#/$defs/Message` a line on its stdout.
fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    generator.subschema_for::<Request>();
    generator.subschema_for::<Message>();
    let mut definitions = Value::Object(generator.take_definitions(true));
    allow_a_generate_without_type(&mut definitions["Request"]);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The engine protocol",
        "description": "`Request` is a line on stdin, `Message` a line on stdout: one JSON object each. \
                        A request without `type` is a `generate`. Unknown fields are ignored by both sides.",
        "x-protocol": version::CURRENT,
        "anyOf": [{ "$ref": "#/$defs/Request" }, { "$ref": "#/$defs/Message" }],
        "$defs": definitions,
    })
}

/// Allows a `generate` without `type`, and requires exactly one prompt field. The derived schema can express neither.
fn allow_a_generate_without_type(request: &mut Value) {
    let variants = request["oneOf"].as_array_mut().into_iter().flatten();
    for variant in variants.filter(|variant| variant["properties"]["type"]["const"] == "generate") {
        let prompts =
            ["prompt", "prompt_ids", "prompts", "prompts_ids"].map(|field| json!({ "required": [field] }));
        variant["oneOf"] = Value::from(prompts.to_vec());
        if let Some(variant) = variant.as_object_mut() {
            variant.remove("required");
        }
    }
}

#[test]
fn the_committed_schema_matches_the_types() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/protocol.schema.json"), &text).unwrap();
        return;
    }
    assert!(text == crate::SCHEMA, "the types have changed; run: UPDATE_SNAPSHOTS=1 cargo test -p protocol");
}
