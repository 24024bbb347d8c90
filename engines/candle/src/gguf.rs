//! A GGUF file as a network, the way candle's examples load it: header, then each tensor read as it is quantised.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;

use candle_core::Device;
use candle_core::quantized::gguf_file::Content;
use candle_transformers::models::{quantized_llama, quantized_qwen2};
use model_files::{ModelFolder, Tensor};
use protocol::Failed;
use serde_json::Value;

use crate::failure::{first_line, model, unsupported};
use crate::network::{Kind, Network};
use crate::shape::{check_sizes, config_path, unknown_architecture};

/// The longest context: candle makes position tables of this length for its quantised llama, whatever the file says.
pub fn longest_context(folder: &ModelFolder) -> Result<u32, Failed> {
    let longest = folder.config.context_tokens;
    let missing =
        || model(&config_path(folder), format!("metadata `{}` is missing", key(folder, "context_length")));
    match folder.config.architecture.as_str() {
        "llama" => Ok(longest.unwrap_or(u32::MAX).min(quantized_llama::MAX_SEQ_LEN as u32)),
        _ => longest.filter(|&tokens| tokens > 0).ok_or_else(missing),
    }
}

/// Refuses what candle would stumble over, or read and not compute.
pub fn check(folder: &ModelFolder) -> Result<(), Failed> {
    check_sizes(folder)?;
    let architecture = folder.config.architecture.as_str();
    if !crate::about::ARCHITECTURES.contains(&architecture) {
        return Err(unknown_architecture(folder, architecture));
    }
    if folder.config.layers as usize > folder.tensors.len() {
        let (layers, tensors) = (folder.config.layers, folder.tensors.len());
        return Err(model(&config_path(folder), format!("{layers} layers in {tensors} tensors")));
    }
    let metadata = |name: &str| folder.config.raw.get(key(folder, name));
    let rotated = metadata("rope.dimension_count").and_then(Value::as_u64);
    if rotated.is_some_and(|rotated| rotated != u64::from(folder.config.head_dim)) {
        let what = format!("`{}` rotates a part of each head, which candle would ignore", folder.name);
        return Err(unsupported(what));
    }
    let scaling = metadata("rope.scaling.type").and_then(Value::as_str);
    if let Some(scaling) = scaling.filter(|&scaling| scaling != "none") {
        let scaling = scaling.escape_debug();
        return Err(unsupported(format!(
            "`{}` has rope scaling `{scaling}`, which candle would ignore",
            folder.name
        )));
    }
    let has = |name: &str| folder.tensors.iter().any(|tensor| tensor.name == name);
    if architecture == "llama" && has("blk.0.attn_q.bias") {
        return Err(unsupported(format!("`{}` has biases, which candle would ignore", folder.name)));
    }
    Ok(())
}

/// Llama 3.1 and later scale their frequencies by a tensor that candle's quantised llama does not read. Its outputs
/// drift from other engines' then; its work is the same. So it is loaded, and said.
pub fn ignores_frequency_scaling(folder: &ModelFolder) -> bool {
    folder.tensors.iter().any(|tensor| tensor.name == ROPE_FREQUENCIES)
}

const ROPE_FREQUENCIES: &str = "rope_freqs.weight";

/// Reads every tensor and builds the layers. The file has been checked.
pub fn weights(folder: &ModelFolder, device: &Device) -> Result<Network, Failed> {
    let path = config_path(folder);
    let fault = |error: candle_core::Error| model(&path, first_line(&error));
    let file = File::open(&path).map_err(|error| model(&path, error))?;
    // The header is read in pieces of a few bytes, a vocabulary's every length among them.
    let mut reader = BufReader::new(file);
    let content = Content::read(&mut reader).map_err(fault)?;
    let kind = if folder.config.architecture == "llama" {
        let weights = quantized_llama::ModelWeights::from_gguf(content, &mut reader, device);
        Kind::QuantizedLlama(Box::new(weights.map_err(fault)?))
    } else {
        let weights = quantized_qwen2::ModelWeights::from_gguf(content, &mut reader, device);
        Kind::QuantizedQwen2(Box::new(weights.map_err(fault)?))
    };
    Ok(Network { device: device.clone(), kind, own_pool: false })
}

/// The type that most bytes of the file have, in lower case: `q4_k`.
pub fn weights_dtype(folder: &ModelFolder) -> String {
    let dtypes: BTreeMap<&str, u64> = folder.dtypes();
    dtypes
        .iter()
        .max_by_key(|(_, bytes)| **bytes)
        .map(|(dtype, _)| dtype.to_ascii_lowercase())
        .unwrap_or_default()
}

/// Elements of the tensors that candle reads.
pub fn parameters(folder: &ModelFolder) -> u64 {
    read_tensors(folder).map(Tensor::elements).sum()
}

/// Bytes that a load leaves in memory. candle widens the embedding, the norms, the biases and every float matrix to
/// f32, and keeps the embedding a second time, as the file has it, where it is the output matrix too.
pub fn resident_bytes(folder: &ModelFolder) -> u64 {
    let matrix = |tensor: &Tensor| match tensor.dtype {
        "F32" | "F16" | "BF16" => tensor.elements() * 4,
        _ => tensor.bytes,
    };
    let bytes = read_tensors(folder).map(|tensor| match tensor.name.as_str() {
        "token_embd.weight" if folder.config.tie_word_embeddings => tensor.elements() * 4 + matrix(tensor),
        "token_embd.weight" => tensor.elements() * 4,
        _ if tensor.shape.len() == 1 => tensor.elements() * 4,
        _ => matrix(tensor),
    });
    bytes.sum()
}

fn read_tensors(folder: &ModelFolder) -> impl Iterator<Item = &Tensor> {
    folder.tensors.iter().filter(|tensor| tensor.name != ROPE_FREQUENCIES)
}

fn key(folder: &ModelFolder, name: &str) -> String {
    format!("{}.{name}", folder.config.architecture)
}
