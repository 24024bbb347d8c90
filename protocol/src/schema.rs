//! The JSON Schema of the wire, made from the types.

use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::{Message, Request, version};

/// Requests and messages in one document, under `$defs`.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The engine protocol",
        "description": "Requests on stdin, messages on stdout, one JSON object per line. \
                        A request without `type` is a `generate`. Unknown fields are ignored by both sides.",
        "protocol": version::CURRENT,
        "request": of::<Request>(),
        "message": of::<Message>(),
    })
}

fn of<T: JsonSchema>() -> Value {
    schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value()
}
