//! Tests the messages for invalid ids of BOS and EOS.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod gguf_file;
mod tiny;

use gguf_file::with_tokenizer;
use model_files::ModelFolder;
use model_files::gguf::ValueToWrite;
use serde_json::{Value, json};
use tiny::{model, write_json};

/// The error of `ModelFolder::open`, or else the error of `specs`.
fn error_of(path: &std::path::Path) -> String {
    let specs = ModelFolder::open(path).and_then(|folder| folder.tensor_specs());
    format!("{:#}", specs.unwrap_err())
}

/// Invalid ids in JSON, and as the message quotes them.
const INVALID_IDS: [(&str, &str); 7] = [
    ("-1", "`-1`"),
    ("1.5", "`1.5`"),
    ("\"</s>\"", "`\"</s>\"`"),
    ("true", "`true`"),
    ("{}", "an object"),
    ("[1, [2]]", "a list"),
    ("1099511627776", "`1099511627776`"),
];

#[test]
fn an_error_about_an_invalid_id_names_its_field_and_its_file() {
    let path = model("odd-ids");
    for name in ["bos_token_id", "eos_token_id"] {
        for (invalid, found) in INVALID_IDS {
            let invalid: Value = serde_json::from_str(invalid).unwrap();
            let mut config = tiny::config();
            config[name] = invalid.clone();
            write_json(&path.join("config.json"), &config);
            let expected =
                format!("config.json`: `{name}`: expected a whole number of 32 bits, found {found}");
            assert!(error_of(&path).ends_with(&expected), "{}", error_of(&path));
            write_json(&path.join("config.json"), &tiny::config());
            write_json(&path.join("generation_config.json"), &json!({name: invalid}));
            let expected =
                expected.replace("config.json`", "config.json`: `generation_config.json` in the same folder");
            assert!(error_of(&path).ends_with(&expected), "{}", error_of(&path));
            std::fs::remove_file(path.join("generation_config.json")).unwrap();
        }
    }
}

#[test]
fn an_error_about_an_id_beyond_the_vocabulary_names_its_field_and_its_file() {
    let path = model("ids-beyond");
    let assert_error = |field: &str, id: u32| {
        let expected = format!("config.json`: {field}: expected the id of one of 64 tokens, found `{id}`");
        assert!(error_of(&path).ends_with(&expected), "{}", error_of(&path));
    };
    let mut config = tiny::config();
    config["eos_token_id"] = json!([1, 64]);
    write_json(&path.join("config.json"), &config);
    assert_error("`eos_token_id`", 64);
    config["bos_token_id"] = json!(u32::MAX);
    write_json(&path.join("config.json"), &config);
    assert_error("`bos_token_id`", u32::MAX);
    write_json(&path.join("config.json"), &tiny::config());
    write_json(&path.join("generation_config.json"), &json!({"eos_token_id": [1, 99]}));
    assert_error("`generation_config.json` in the same folder: `eos_token_id`", 99);
}

#[test]
fn an_error_about_an_id_in_a_gguf_names_its_key() {
    let error = |key: &str, value: &ValueToWrite| {
        let key_length = ("llama.attention.key_length".to_string(), ValueToWrite::U32(2));
        let vocabulary = ("llama.vocab_size".to_string(), ValueToWrite::U32(64));
        let file = with_tokenizer(&[key_length, vocabulary, (key.into(), value.clone())], 64);
        error_of(&file.write("ids"))
    };
    let invalid = [
        (ValueToWrite::I32(-1), "`-1`"),
        (ValueToWrite::F32(1.5), "`1.5`"),
        (ValueToWrite::Text("</s>".into()), "`\"</s>\"`"),
        (ValueToWrite::Bool(true), "`true`"),
        (ValueToWrite::U64(1 << 40), "`1099511627776`"),
        (ValueToWrite::I32s(vec![1, 2]), "a list"),
    ];
    for key in ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        for (value, found) in &invalid {
            let expected = format!("x.gguf`: metadata `{key}`: expected the id of a token, found {found}");
            let message = error(&key, value);
            assert!(message.ends_with(&expected), "{message}");
        }
        let message = error(&key, &ValueToWrite::U32(64));
        let expected = format!("x.gguf`: `{key}`: expected the id of one of 64 tokens, found `64`");
        assert!(message.ends_with(&expected), "{message}");
    }
}
