//! The committed schema matches the types, and refuses the lines that the parser refuses.

use serde_json::json;

use crate::schema;

#[test]
#[cfg(feature = "schema")]
fn the_committed_schema_is_the_one_that_the_types_give() {
    assert!(
        schema::committed() == protocol::schema(),
        "the types have changed; run: orchestrate schema > protocol/schema/protocol.schema.json"
    );
}

#[test]
fn the_schema_refuses_every_line_that_the_parser_refuses() {
    let schema = schema::committed();
    let refused = [
        json!({}),
        json!({"type": "dance"}),
        json!({"prompt": "a", "iterations": 0}),
        json!({"prompt": "a", "iterations": 1_000_001}),
        json!({"prompt": "a", "max_new_tokens": -1}),
        json!({"prompt": "a", "prompt_ids": [1]}),
        json!({"prompt_ids": [1.5]}),
        json!({"type": "load"}),
        json!({"type": "score", "sequences": "a"}),
        json!({"type": "cancel"}),
    ];
    for value in refused {
        assert!(protocol::parse_request(value.to_string().as_bytes()).is_err(), "{value}");
        assert!(schema::check(&schema, "Request", &value).is_err(), "{value}");
    }
    let generated =
        json!({"type": "generated", "iterations": [{"start_ns": -1, "end_ns": 1, "sequences": []}]});
    assert!(protocol::parse_message(generated.to_string().as_bytes()).is_err());
    let wrong = schema::check(&schema, "Message", &generated).unwrap_err();
    assert!(wrong.contains("oneOf"), "{wrong}");
}
