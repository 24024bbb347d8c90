//! A model folder of about 2 kB, and helpers for broken folders, for the tests of this crate and of the engine kit.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

/// Ids 0 and 1 are BOS and EOS, 2 is unknown, `w3` to `w63` are words.
pub const VOCABULARY: u32 = 64;
pub const BOS: u32 = 0;
pub const EOS: u32 = 1;
pub const CONTEXT: u32 = 256;

/// The folder of this process under cargo's folder for tests. An earlier process with the same number may have left files in it.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
    let _ = std::fs::remove_dir_all(&path);
    path
});

/// Creates an empty folder. Each call gets another folder, because tests run in parallel.
pub fn folder(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let path = ROOT.join(format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A folder with config, tokenizer and weights; the tensors are not those that the config requires.
pub fn model(name: &str) -> PathBuf {
    let path = folder(name);
    write_json(&path.join("config.json"), &config());
    write_json(&path.join("tokenizer.json"), &tokenizer());
    let tensors = [("a", "BF16", vec![64, 4], 512), ("b", "F32", vec![3], 12)];
    std::fs::write(path.join("model.safetensors"), safetensors(&tensors)).unwrap();
    path
}

pub fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0, "bos_token_id": BOS, "eos_token_id": EOS, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16"
    })
}

/// A tokenizer of one id per word. It adds no BOS or EOS, and requests truncation to two tokens, which must be ignored.
pub fn tokenizer() -> Value {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let words = (3..VOCABULARY).map(|id| (format!("w{id}"), json!(id)));
    let special_words =
        [("<s>", BOS), ("</s>", EOS), ("<unk>", 2)].map(|(word, id)| (word.to_string(), json!(id)));
    let vocabulary: serde_json::Map<String, Value> = words.chain(special_words).collect();
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [special(BOS, "<s>"), special(EOS, "</s>"), special(2, "<unk>")],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    })
}

/// A file of these tensors in sequence: name, dtype, shape, number of bytes.
pub fn safetensors(tensors: &[(&str, &str, Vec<u64>, u64)]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for (name, dtype, shape, bytes) in tensors {
        header.insert(
            (*name).into(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes]}),
        );
        end += bytes;
    }
    safetensors_with(&Value::Object(header).to_string(), end)
}

/// A file with this header and this many bytes of weights.
pub fn safetensors_with(header: &str, data_bytes: u64) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + usize::try_from(data_bytes).unwrap(), 0);
    file
}

pub fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, value.to_string()).unwrap();
}
