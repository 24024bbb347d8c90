//! Valid files for the fuzzer to start from: files of this repository, and small files with other features of the formats.

use std::path::Path;

use anyhow::{Context, Result};

use crate::targets::SEPARATOR;

/// The seed inputs of a target. The target must accept each of them unchanged.
pub fn seeds(target: &str) -> Result<Vec<Vec<u8>>> {
    let embedded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../embedded"));
    let read =
        |name: &str| std::fs::read(embedded.join(name)).with_context(|| format!("models/embedded/{name}"));
    Ok(match target {
        "safetensors" => {
            let weights_file = read("model.safetensors")?;
            let length = weights_file.first_chunk().context("models/embedded/model.safetensors is empty")?;
            let start = &weights_file[..8 + usize::try_from(u64::from_le_bytes(*length))?];
            vec![
                safetensors_input(u32::try_from(weights_file.len() - start.len())?, &start[8..]),
                safetensors_input(SMALL_DATA_BYTES.into(), SMALL_HEADER.as_bytes()),
                safetensors_input(UNUSUAL_DATA_BYTES, UNUSUAL_HEADER.as_bytes()),
                safetensors_input(0, b"{}"),
            ]
        }
        "gguf" => gguf_inputs(),
        "config" => vec![
            join(&[&read("config.json")?, &read("generation_config.json")?]),
            read("config.json")?,
            GPT2.into(),
            GEMMA.into(),
        ],
        "folder" => {
            let b = weight_file_input(OTHER_DATA_BYTES, OTHER_HEADER);
            let a = weight_file_input(SMALL_DATA_BYTES, SMALL_HEADER);
            let config = read("config.json")?;
            let generation = read("generation_config.json")?;
            vec![
                join(&[&config, &generation, INDEX.as_bytes(), &a, &b]),
                join(&[&config, b"", b"", &a, &b]),
                join(&[GPT2.as_bytes(), b"", b"", &a]),
            ]
        }
        other => anyhow::bail!("no target `{other}`"),
    })
}

const SMALL_HEADER: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}}"#;
const SMALL_DATA_BYTES: u16 = 16;
const OTHER_HEADER: &str = r#"{"c":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}"#;
const OTHER_DATA_BYTES: u16 = 8;
const UNUSUAL_HEADER: &str = r#"{"x":{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]},"y":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[2,5]},"z":{"dtype":"BOOL","shape":[3],"data_offsets":[5,8]},"e":{"dtype":"I64","shape":[0,7],"data_offsets":[8,8]},"w":{"dtype":"C64","shape":[1,1,1],"data_offsets":[8,16]}}"#;
const UNUSUAL_DATA_BYTES: u32 = 16;
const INDEX: &str =
    r#"{"metadata":{"total_size":24},"weight_map":{"a":"model.safetensors","c":"b.safetensors"}}"#;
const GPT2: &str = r#"{"model_type":"gpt2","n_embd":8,"n_layer":2,"n_head":2,"n_inner":null,"n_positions":16,"vocab_size":9,"bos_token_id":8,"eos_token_id":[7,8]}"#;
const GEMMA: &str = r#"{"model_type":"g","text_config":{"model_type":"gemma","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,"intermediate_size":32,"vocab_size":9,"max_position_embeddings":64,"rope_parameters":{"rope_theta":1e6},"tie_word_embeddings":true,"dtype":"bfloat16"}}"#;

fn join(files: &[&[u8]]) -> Vec<u8> {
    files.join(&SEPARATOR)
}

/// An input of the target `safetensors`. The highest bit tells the target to correct the header's length.
fn safetensors_input(data_bytes: u32, header: &[u8]) -> Vec<u8> {
    let length = header.len() as u64;
    [&(data_bytes | 1 << 31).to_le_bytes(), length.to_le_bytes().as_slice(), header].concat()
}

/// A weight file of the target `folder`, which adds the header's length.
fn weight_file_input(data_bytes: u16, header: &str) -> Vec<u8> {
    [data_bytes.to_le_bytes().as_slice(), header.as_bytes()].concat()
}

/// Two Llama models: one with a metadata value of each type and tensors of f32, f16, bf16, q8_0 and q4_k, and a minimal one,
/// which the fuzzer explores sooner.
fn gguf_inputs() -> Vec<Vec<u8>> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let value =
        |key: &str, kind: u32, bytes: &[u8]| [&text(key), kind.to_le_bytes().as_slice(), bytes].concat();
    let array = |kind: u32, length: u64, bytes: &[u8]| {
        [kind.to_le_bytes().as_slice(), &length.to_le_bytes(), bytes].concat()
    };
    let values = [
        value("general.architecture", 8, &text("llama")),
        value("general.alignment", 4, &32_u32.to_le_bytes()),
        value("llama.context_length", 4, &64_u32.to_le_bytes()),
        value("llama.embedding_length", 10, &64_u64.to_le_bytes()),
        value("llama.feed_forward_length", 2, &128_u16.to_le_bytes()),
        value("llama.block_count", 0, &[2]),
        value("llama.attention.head_count", 5, &4_i32.to_le_bytes()),
        value("llama.attention.head_count_kv", 1, &[2]),
        value("llama.attention.key_length", 11, &16_i64.to_le_bytes()),
        value("llama.rope.freq_base", 6, &1e4_f32.to_le_bytes()),
        value("tokenizer.ggml.tokens", 9, &array(8, 3, &["a", "b", ""].map(text).concat())),
        value("tokenizer.ggml.scores", 9, &array(6, 3, &[0; 12])),
        value("tokenizer.ggml.bos_token_id", 3, &1_i16.to_le_bytes()),
        value("tokenizer.ggml.add_bos_token", 7, &[1]),
        value("flags", 9, &array(7, 2, &[0, 1])),
        value("double", 12, &0.5_f64.to_le_bytes()),
    ];
    let tensor = |name: &str, shape: &[u64], kind: u32, offset: u64| {
        let shape_bytes: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
        let dimensions = shape.len() as u32;
        [
            &text(name),
            dimensions.to_le_bytes().as_slice(),
            &shape_bytes,
            &kind.to_le_bytes(),
            &offset.to_le_bytes(),
        ]
        .concat()
    };
    let tensors = [
        tensor("token_embd.weight", &[64, 3], 8, 0),
        tensor("output_norm.weight", &[64], 0, 224),
        tensor("output.weight", &[256, 1], 12, 480),
        tensor("half", &[2, 1, 1, 2], 30, 640),
        tensor("empty", &[0, 1 << 40, 2], 1, 648),
    ];
    let file = |values: &[Vec<u8>], tensors: &[Vec<u8>], trailing_zeros: u16| {
        let counts = [tensors.len() as u64, values.len() as u64].map(u64::to_le_bytes).concat();
        let start = [&trailing_zeros.to_le_bytes(), b"GGUF\x03\0\0\0".as_slice(), &counts].concat();
        [start, values.concat(), tensors.concat()].concat()
    };
    // The data begins at the next multiple of 32 bytes. It takes 648 bytes, in the minimal file 224 + 256.
    let full = file(&values, &tensors, 648 + 32);
    let required = ["general.architecture", "embedding_length", "block_count", "head_count", "tokens"];
    let is_required = |value: &Vec<u8>| {
        let length = usize::from(value[0]);
        required.iter().any(|name| value[8..8 + length].ends_with(name.as_bytes()))
    };
    let minimal: Vec<_> = values.iter().filter(|value| is_required(value)).cloned().collect();
    vec![full, file(&minimal, &tensors[1..2], 224 + 256 + 32)]
}
