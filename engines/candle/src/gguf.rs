//! Loads a GGUF file like candle's examples: the header, then each tensor; quantized matrices stay quantized.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::BufReader;

use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value as MetadataValue};
use engine_kit::{OrFail, Phases};
use model_files::{Format, ModelFolder, Tensor, TensorSpec};
use protocol::{Facts, Failed, FailureKind, Load};
use serde_json::Value;

use crate::architectures::Architecture;
use crate::config::{Feature, LongestContext, config_path, expect_full_width_heads, intermediate_size};
use crate::device;
use crate::failure::{build_decoder, first_line, model_failure, unsupported};
use crate::model::{Built, Decoder};

/// A loader for a model whose metadata was checked.
pub struct Loader {
    pub longest_context: LongestContext,
    /// A tensor that candle ignores. The model is loaded anyway, and a progress message states it.
    pub ignored_tensor: Option<&'static str>,
    pub build: fn(Source) -> Built,
}

/// An open file whose header was read, with the settings of the load.
pub struct Source<'a> {
    pub content: Content,
    pub reader: BufReader<File>,
    pub device: &'a Device,
    context_tokens: u32,
}

impl Source<'_> {
    /// Lowers `{architecture}.context_length` to the context in effect, because candle allocates position tables and caches
    /// for the whole length.
    pub fn with_context_length(mut self, architecture: &str) -> Self {
        let context_tokens = MetadataValue::U32(self.context_tokens);
        self.content.metadata.insert(format!("{architecture}.context_length"), context_tokens);
        self
    }
}

pub fn load(
    architecture: &Architecture,
    folder: &ModelFolder,
    load: &Load,
    device: &Device,
    phases: &mut Phases,
    facts: &mut Facts,
) -> Result<Box<dyn Decoder>, Failed> {
    let Some(loader_of) = architecture.gguf else {
        let message = format!("architecture `{}` in a GGUF: candle has no model for it", architecture.name);
        return Err(unsupported(message).hint("load the model from safetensors"));
    };
    let loader = loader_of(&Metadata { folder })?;
    let weights_dtype = weights_dtype(folder);
    if let Some(dtype) = load.dtype.as_deref().filter(|&dtype| dtype != weights_dtype) {
        let message =
            format!("dtype `{}`: a GGUF keeps its own dtype, `{weights_dtype}`", dtype.escape_debug());
        return Err(unsupported(message));
    }
    let context_tokens = loader.longest_context.context(folder, load.context_tokens)?;
    let specs = folder.tensor_specs().or_fail(FailureKind::Model)?;
    let names: HashSet<&str> = specs.iter().map(|spec| spec.name_in(Format::Gguf)).collect();
    let is_loaded = |tensor: &&Tensor| names.contains(tensor.name.as_str());
    for tensor in folder.tensors.iter().filter(|tensor| !is_loaded(tensor)) {
        if loader.ignored_tensor != Some(&tensor.name) {
            return Err(ignored_tensor_failure(folder, tensor));
        }
        let note =
            format!("candle ignores `{}`, so its outputs differ from those of other engines", tensor.name);
        phases.progress(0.0, Some(note));
    }

    phases.begin("weights");
    let path = config_path(folder);
    let to_failed = |error: candle_core::Error| model_failure(&path, first_line(&error));
    // Buffered, because the header is read in pieces of a few bytes.
    let mut reader = BufReader::new(File::open(&path).map_err(|error| model_failure(&path, error))?);
    let content = Content::read(&mut reader).map_err(to_failed)?;
    let weights_bytes = resident_bytes(folder, folder.tensors.iter().filter(is_loaded));
    device::expect_free_memory(device, weights_bytes)?;
    let decoder =
        build_decoder(&path, device, || (loader.build)(Source { content, reader, device, context_tokens }))?;

    let parameters: u64 = specs.iter().map(TensorSpec::elements).sum();
    facts.context_tokens = Some(context_tokens);
    facts.parameters = Some(parameters);
    facts.weights_bytes = Some(weights_bytes);
    facts.compute_dtype = Some(compute_dtype(&weights_dtype, device).into());
    facts.weights_dtype = Some(weights_dtype);
    facts.kv_dtype = Some("f32".into());
    Ok(decoder)
}

/// The metadata of a GGUF file. Methods take field names without the prefix of the architecture.
pub struct Metadata<'a> {
    pub folder: &'a ModelFolder,
}

impl Metadata<'_> {
    /// Refuses a model with a feature that candle's quantized models would ignore, unless `computed` has the feature.
    pub fn expect_only(&self, computed: &[Feature]) -> Result<(), Failed> {
        intermediate_size(self.folder)?;
        let is_ignored = |feature| !computed.contains(&feature);
        if let Some(rotated) = self.get("rope.dimension_count").and_then(Value::as_u64)
            && rotated != u64::from(self.folder.config.head_dim)
        {
            return Err(self.ignored_field("rope.dimension_count", rotated));
        }
        if let Some(scaling) = self.get("rope.scaling.type").and_then(Value::as_str)
            && scaling != "none"
        {
            return Err(self.ignored_field("rope.scaling.type", scaling.escape_debug()));
        }
        for name in ["rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"] {
            self.expect(name, 1.0)?;
        }
        self.expect("expert_count", 0.0)?;
        // `model_files` allows biases in every architecture that can have them; some of candle's models ignore them.
        let bias = self.folder.tensors.iter().find(|tensor| tensor.name.ends_with(".bias"));
        if let Some(bias) = bias.filter(|_| is_ignored(Feature::AttentionBias)) {
            return Err(ignored_tensor_failure(self.folder, bias));
        }
        if is_ignored(Feature::SeparateHeadDim) {
            expect_full_width_heads(self.folder)?;
        }
        Ok(())
    }

    /// Refuses the model if the field exists and differs from `computed`, the number that candle uses.
    pub fn expect(&self, name: &str, computed: f64) -> Result<(), Failed> {
        match self.get(name).and_then(Value::as_f64) {
            Some(found) if found != computed => Err(self.ignored_field(name, found)),
            _ => Ok(()),
        }
    }

    /// The longest context that the file and its sliding window allow.
    pub fn longest_context(&self) -> Result<LongestContext, Failed> {
        let window = self.get("attention.sliding_window").and_then(Value::as_u64);
        let window = window.filter(|&tokens| tokens > 0).and_then(|tokens| u32::try_from(tokens).ok());
        Ok(LongestContext::of(self.folder)?.limit_to_window(window))
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.folder.config.raw.get(format!("{}.{name}", self.folder.config.architecture))
    }

    fn ignored_field(&self, name: &str, found: impl std::fmt::Display) -> Failed {
        let (folder, architecture) = (&self.folder.name, &self.folder.config.architecture);
        unsupported(format!("`{folder}` has `{architecture}.{name}` `{found}`, which candle would ignore"))
    }
}

fn ignored_tensor_failure(folder: &ModelFolder, tensor: &Tensor) -> Failed {
    let (folder, tensor) = (&folder.name, tensor.name.escape_debug());
    unsupported(format!("`{folder}` has a tensor `{tensor}`, which candle would ignore"))
}

/// The dtype with the most bytes in the file, in lower case: `q4_k`.
fn weights_dtype(folder: &ModelFolder) -> String {
    let dtypes: BTreeMap<&str, u64> = folder.dtypes();
    dtypes
        .iter()
        .max_by_key(|(_, bytes)| **bytes)
        .map(|(dtype, _)| dtype.to_ascii_lowercase())
        .unwrap_or_default()
}

/// The dtype to which candle rounds the activations before a product with weights of this dtype. Float matrices are widened to
/// f32, and their activations stay in f32. The kernels for quantization blocks round to 8 bits: on the CPU to the type that ggml
/// names for these weights, on CUDA always to `q8_1`, on Metal not at all. (candle's repacked kernel for `q8_0` on x86 rounds to
/// `q8_k`.)
fn compute_dtype(weights_dtype: &str, device: &Device) -> &'static str {
    match weights_dtype {
        "f32" | "f16" | "bf16" => "f32",
        _ if device.is_metal() => "f32",
        _ if device.is_cuda() => "q8_1",
        "q4_1" | "q5_1" | "q8_1" => "q8_1",
        blocks if blocks.ends_with("_k") => "q8_k",
        _ => "q8_0",
    }
}

/// The bytes in memory after a load. candle widens the embedding, norms, biases and float matrices to f32. If the embedding
/// is also the output matrix, candle keeps a second copy in the file's dtype.
fn resident_bytes<'a>(folder: &ModelFolder, tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
    let matrix_bytes = |tensor: &Tensor| match tensor.dtype {
        "F32" | "F16" | "BF16" => tensor.elements() * 4,
        _ => tensor.bytes,
    };
    let bytes = tensors.map(|tensor| match tensor.name.as_str() {
        "token_embd.weight" if folder.config.tie_word_embeddings => {
            tensor.elements() * 4 + matrix_bytes(tensor)
        }
        "token_embd.weight" => tensor.elements() * 4,
        _ if tensor.shape.len() == 1 => tensor.elements() * 4,
        _ => matrix_bytes(tensor),
    });
    bytes.sum()
}
