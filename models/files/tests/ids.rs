//! Tests the messages for invalid ids that begin or end a text.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod gguf_file;
mod tiny;

use gguf_file::with_tokenizer;
use model_files::ModelFolder;
use model_files::gguf::MetadataValue;
use serde_json::{Value, json};
use tiny::{model, write_json};

/// The error of opening, or of naming the parts.
fn refusal(path: &std::path::Path) -> String {
    let parts = ModelFolder::open(path).and_then(|folder| folder.parts());
    format!("{:#}", parts.unwrap_err())
}

const ODD: [(&str, &str); 7] = [
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
        for (odd, found) in ODD {
            let odd: Value = serde_json::from_str(odd).unwrap();
            let mut config = tiny::config();
            config[name] = odd.clone();
            write_json(&path.join("config.json"), &config);
            let says = format!("config.json`: `{name}`: expected a whole number of 32 bits, found {found}");
            assert!(refusal(&path).ends_with(&says), "{}", refusal(&path));
            write_json(&path.join("config.json"), &tiny::config());
            write_json(&path.join("generation_config.json"), &json!({name: odd}));
            let beside = says.replace("config.json`", "config.json`: `generation_config.json` beside it");
            assert!(refusal(&path).ends_with(&beside), "{}", refusal(&path));
            std::fs::remove_file(path.join("generation_config.json")).unwrap();
        }
    }
}

#[test]
fn an_error_about_an_id_outside_the_vocabulary_names_its_field_and_its_file() {
    let path = model("ids-beyond");
    let says = |field: &str, id: u32| {
        let says = format!("config.json`: {field}: expected the id of one of 64 tokens, found `{id}`");
        assert!(refusal(&path).ends_with(&says), "{}", refusal(&path));
    };
    let mut config = tiny::config();
    config["eos_token_id"] = json!([1, 64]);
    write_json(&path.join("config.json"), &config);
    says("`eos_token_id`", 64);
    config["bos_token_id"] = json!(u32::MAX);
    write_json(&path.join("config.json"), &config);
    says("`bos_token_id`", u32::MAX);
    write_json(&path.join("config.json"), &tiny::config());
    write_json(&path.join("generation_config.json"), &json!({"eos_token_id": [1, 99]}));
    says("`generation_config.json` beside it: `eos_token_id`", 99);
}

#[test]
fn an_error_about_an_id_in_a_gguf_names_its_key() {
    let refused = |key: &str, value: &MetadataValue| {
        let wide = ("llama.attention.key_length".to_string(), MetadataValue::U32(2));
        let size = ("llama.vocab_size".to_string(), MetadataValue::U32(64));
        let file = with_tokenizer(&[wide, size, (key.into(), value.clone())], 64);
        refusal(&file.write("ids"))
    };
    let odd = [
        (MetadataValue::I32(-1), "`-1`"),
        (MetadataValue::F32(1.5), "`1.5`"),
        (MetadataValue::Text("</s>".into()), "`\"</s>\"`"),
        (MetadataValue::Bool(true), "`true`"),
        (MetadataValue::U64(1 << 40), "`1099511627776`"),
        (MetadataValue::I32s(vec![1, 2]), "a list"),
    ];
    for key in ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        for (value, found) in &odd {
            let says = format!("x.gguf`: metadata `{key}`: expected the id of a token, found {found}");
            let told = refused(&key, value);
            assert!(told.ends_with(&says), "{told}");
        }
        let told = refused(&key, &MetadataValue::U32(64));
        let says = format!("x.gguf`: `{key}`: expected the id of one of 64 tokens, found `64`");
        assert!(told.ends_with(&says), "{told}");
    }
}
