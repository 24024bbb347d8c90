//! The committed schema refuses the lines that the parser refuses.

use serde_json::json;

use crate::schema;

#[test]
fn the_schema_and_the_parser_refuse_the_same_lines() {
    let schema = schema::committed_schema();
    let invalid = [
        json!({}),
        json!({"type": "dance"}),
        json!({"prompt": "a", "iterations": 0}),
        json!({"prompt": "a", "iterations": 1_000_001}),
        json!({"prompt": "a", "max_new_tokens": -1}),
        json!({"prompt": "a", "prompt_ids": [1]}),
        json!({"prompts": []}),
        json!({"prompt_ids": []}),
        json!({"prompts_ids": []}),
        json!({"prompts_ids": [[1], []]}),
        json!({"id": (1_u64 << 53), "prompt": "a"}),
        json!({"prompt": "a", "sampling": {"temperature": -1.0}}),
        json!({"prompt": "a", "sampling": {"top_p": 0.0}}),
        json!({"prompt": "a", "sampling": {"top_p": 1.5}}),
        json!({"prompt": "a", "sampling": {"temperature": 1.0, "seed": (1_u64 << 53)}}),
        json!({"prompt_ids": [1.5]}),
        json!({"type": "load"}),
        json!({"type": "load", "model": ""}),
        json!({"type": "load", "model": "m", "threads": 0}),
        json!({"type": "load", "model": "m", "context_tokens": 0}),
        json!({"type": "score", "sequences": "a"}),
        json!({"type": "score", "sequences": [[1]]}),
        json!({"type": "cancel"}),
    ];
    for value in invalid {
        assert!(protocol::parse_request(value.to_string().as_bytes()).is_err(), "{value}");
        assert!(schema::check(&schema, "Request", &value).is_err(), "{value}");
    }
    for value in [
        json!({"id": (1_u64 << 53) - 1, "prompt": "a"}),
        json!({"prompt": "a", "sampling": {"temperature": 1.0, "top_p": 1.0, "seed": (1_u64 << 53) - 1}}),
    ] {
        assert!(protocol::parse_request(value.to_string().as_bytes()).is_ok(), "{value}");
        assert_eq!(schema::check(&schema, "Request", &value), Ok(()));
    }
    let generated =
        json!({"type": "generated", "iterations": [{"start_ns": -1, "end_ns": 1, "sequences": []}]});
    assert!(protocol::parse_message(generated.to_string().as_bytes()).is_err());
    let error = schema::check(&schema, "Message", &generated).unwrap_err();
    assert!(error.contains("oneOf"), "{error}");
}
