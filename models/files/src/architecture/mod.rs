//! The supported architectures, and the tensors of each, so that models can be synthesised, converted, checked and identified.
//!
//! A new architecture is an entry in `ARCHITECTURES` (`table`), and a function with its tensors if they differ from Llama's.

#[cfg(test)]
mod config_fields;
pub(crate) mod metadata;
pub(crate) mod rope;
mod table;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::text::printable;
use crate::{Config, Format};
pub use metadata::Key;
pub use table::ARCHITECTURES;

pub struct Architecture {
    /// `model_type` in config.json.
    pub name: &'static str,
    /// `general.architecture` in GGUF; some architectures share one.
    pub gguf: &'static str,
    /// The name of the architecture's class in the library transformers, for config.json.
    pub class: &'static str,
    /// Whether the output matrix is the embedding by default.
    pub(crate) tied: bool,
    /// The default head size, where it is not the hidden size divided by the number of heads.
    pub(crate) head_dim: Option<u32>,
    /// The default epsilon of norms for a config.json without one. A GGUF must have one.
    pub norm_epsilon: f64,
    /// The default inner size in multiples of the hidden size, if config.json may omit it.
    inner_multiple: Option<u32>,
    /// The name of the pre-tokenizer (`PreTokenizer`) of a model that is synthesised from a config.json.
    pub(crate) pre: &'static str,
    /// Ends of tensor names that identify the architecture: every model of the architecture has all of them.
    pub(crate) marks: &'static [&'static str],
    /// Marks of other architectures that some models of this architecture also have.
    pub(crate) may_have: &'static [&'static str],
    /// Ends of the names of tensors that can be computed from the config, such as masks and frequencies. Some checkpoints have
    /// them.
    pub(crate) buffers: &'static [&'static str],
    /// The prefix that some checkpoints add, and the beginnings of the names that get it.
    prefix: Option<(&'static str, &'static [&'static str])>,
    /// Whether llama.cpp supports the biases of `attention_bias` in a GGUF of this architecture.
    gguf_has_attention_bias: bool,
    /// The fields of config.json that have a key in GGUF's metadata.
    pub(crate) keys: &'static [Key],
    /// Other fields that a conversion writes to config.json. A config.json with another value in one of them cannot become a
    /// GGUF. Fields of biases may have other values, because biases are tensors.
    pub(crate) constants: &'static str,
    /// Further fields of config.json that GGUF lacks, each with the value that changes nothing.
    neutral: &'static str,
    /// Whether the activation `gelu` means its tanh approximation.
    gelu_means_tanh: bool,
    /// The sliding window in tokens of a config.json without this field.
    default_window: Option<u32>,
    specs: fn(&Config) -> Result<Vec<TensorSpec>>,
}

impl Architecture {
    /// Finds an architecture by its `model_type` in config.json.
    pub fn named(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.name == name).copied()
    }

    /// Finds an architecture by its `general.architecture` in GGUF.
    pub fn of_gguf(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.gguf == name).copied()
    }

    /// Finds the architecture of a config in this format.
    pub fn of(config: &Config, format: Format) -> Result<&'static Self> {
        let architecture = match format {
            Format::Safetensors => Self::named(&config.architecture),
            Format::Gguf => Self::of_gguf(&config.architecture),
        };
        architecture.with_context(|| {
            let known: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
            format!(
                "architecture `{}` is not one of `{}`",
                printable(&config.architecture),
                known.join("`, `")
            )
        })
    }

    /// The inner size of the feed-forward network, from the config or by default.
    pub fn inner_size(&self, config: &Config) -> Option<u32> {
        let default = || self.inner_multiple.map(|multiple| config.hidden_size.saturating_mul(multiple));
        config.intermediate_size.or_else(default)
    }

    /// The name of a tensor without the prefix that some checkpoints add.
    pub fn shorter_name<'a>(&self, name: &'a str) -> &'a str {
        self.prefix.and_then(|(prefix, _)| name.strip_prefix(prefix)).unwrap_or(name)
    }

    /// Every tensor of a model with this config: embeddings, then layer by layer, then the last norm and the output.
    pub fn tensor_specs(&self, config: &Config) -> Result<Vec<TensorSpec>> {
        let sizes = [
            ("hidden size", config.hidden_size),
            ("layers", config.layers),
            ("heads", config.heads),
            ("key-value heads", config.kv_heads),
            ("head size", config.head_dim),
            ("vocabulary", config.vocabulary_size),
            ("intermediate size", config.intermediate_size.unwrap_or(1)),
        ];
        for (name, size) in sizes {
            ensure!((1..=MAX_SIZE).contains(&size), "{name}: expected 1 to {MAX_SIZE}, found {size}");
        }
        ensure!(config.layers <= MAX_LAYERS, "{} layers exceed the limit of {MAX_LAYERS}", config.layers);
        let (heads, kv_heads) = (config.heads, config.kv_heads);
        ensure!(
            heads.is_multiple_of(kv_heads),
            "{heads} heads do not divide into {kv_heads} key-value heads"
        );
        let specs = (self.specs)(config)?;
        let has_rotation = !specs.iter().any(|spec| spec.component == Component::Positions);
        ensure!(
            !has_rotation || config.head_dim.is_multiple_of(2),
            "rotation requires an even head size, found {}",
            config.head_dim
        );
        let empty = specs.iter().find(|spec| spec.shape.contains(&0));
        ensure!(empty.is_none(), "`{}` would have no numbers", empty.map_or("", |spec| &spec.name));
        Ok(specs)
    }
}

/// The name with the prefix that some checkpoints use, if an architecture has a prefix for this name.
pub(crate) fn prefixed_name(name: &str) -> Option<String> {
    let mut prefixes = ARCHITECTURES.iter().filter_map(|architecture| architecture.prefix);
    let prefix = prefixes.find(|(_, starts)| starts.iter().any(|start| name.starts_with(start)));
    prefix.map(|(prefix, _)| format!("{prefix}{name}"))
}

/// A bound on sizes: the product of two stays far below the largest u64.
const MAX_SIZE: u32 = 1 << 24;
/// A bound on layers: the list of tensors stays short.
const MAX_LAYERS: u32 = 4096;

/// Finds the architecture of a model, and the source of that fact: `model_type` of the config, else the class that the config
/// names, else the names of the tensors. The model's name decides between architectures with the same tensor names.
pub(crate) fn detect<'a>(
    config: &Value,
    tensors: impl Iterator<Item = &'a str> + Clone,
    model_name: &str,
) -> Option<(String, &'static str)> {
    if let Some(stated) = config.get("model_type").or_else(|| config.pointer("/text_config/model_type")) {
        return Some((stated.as_str()?.into(), "`model_type` of config.json"));
    }
    let classes = config.get("architectures").and_then(Value::as_array);
    let class = classes.and_then(|classes| classes.first()).and_then(Value::as_str);
    if let Some(known) = ARCHITECTURES.iter().find(|architecture| Some(architecture.class) == class) {
        return Some((known.name.into(), "`architectures` of config.json"));
    }
    let (candidates, model_name) = (matching_architectures(tensors), model_name.to_ascii_lowercase());
    match candidates.iter().find(|candidate| model_name.contains(candidate.name)) {
        Some(candidate) if candidates.len() > 1 => {
            Some((candidate.name.into(), "the names of its tensors and of its folder"))
        }
        _ => candidates.first().map(|candidate| (candidate.name.into(), "the names of its tensors")),
    }
}

/// The architectures that match the tensors' names: all marks of the architecture occur, and no mark that it cannot have. The
/// architecture with the most marks comes first.
pub(crate) fn matching_architectures<'a>(
    tensors: impl Iterator<Item = &'a str> + Clone,
) -> Vec<&'static Architecture> {
    let all = ARCHITECTURES.iter().flat_map(|architecture| architecture.marks);
    let mut found_marks: Vec<&str> =
        all.copied().filter(|mark| tensors.clone().any(|name| name.ends_with(mark))).collect();
    found_marks.sort_unstable();
    found_marks.dedup();
    let fits = |architecture: &&&Architecture| {
        let allowed = |mark: &&str| architecture.marks.contains(mark) || architecture.may_have.contains(mark);
        architecture.marks.iter().all(|mark| found_marks.contains(mark)) && found_marks.iter().all(allowed)
    };
    let mut fitting: Vec<_> = ARCHITECTURES.iter().filter(fits).copied().collect();
    fitting.sort_by_key(|architecture| std::cmp::Reverse(architecture.marks.len()));
    fitting
}

/// One tensor of a network, with its name and layout in both formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name in the Hugging Face hub's safetensors.
    pub name: String,
    /// The name in GGUF.
    pub gguf: String,
    /// The shape in safetensors, outermost dimension first.
    pub shape: Vec<u64>,
    pub kind: Kind,
    pub component: Component,
    pub gguf_layout: GgufLayout,
    /// How many inputs each output is computed from.
    pub fan_in: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Matrix,
    Bias,
    Norm,
    NormBias,
}

/// The component of the network to which a tensor belongs. `orchestrate model info` lists the sizes of components.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    Embedding,
    Positions,
    Attention,
    FeedForward,
    Norms,
    Output,
}

impl Component {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Positions => "positions",
            Self::Attention => "attention",
            Self::FeedForward => "feed-forward",
            Self::Norms => "norms",
            Self::Output => "output",
        }
    }
}

/// The difference in content between GGUF's tensor and Hugging Face's. Only `PlusOne` changes values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufLayout {
    Same,
    /// Rotary embeddings rotate pairs of rows. Hugging Face stores the two halves of a head in sequence; GGUF stores the
    /// two rows of each pair side by side.
    Pairs {
        heads: u64,
    },
    /// GPT-2 stores its matrices as inputs by outputs; GGUF stores all as outputs by inputs.
    Transposed,
    /// Gemma's norms multiply by the stored value plus one; GGUF stores the sum.
    PlusOne,
}

impl TensorSpec {
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub fn name_in(&self, format: Format) -> &str {
        match format {
            Format::Safetensors => &self.name,
            Format::Gguf => &self.gguf,
        }
    }

    pub fn shape_in(&self, format: Format) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if format == Format::Gguf && self.gguf_layout == GgufLayout::Transposed {
            shape.reverse();
        }
        shape
    }

    /// The number and length of rows in this format. A vector is one row.
    pub fn rows_in(&self, format: Format) -> (u64, u64) {
        match self.shape_in(format).as_slice() {
            [rows, columns] => (*rows, *columns),
            // No supported architecture has tensors of more than two dimensions.
            other => (1, other.iter().product()),
        }
    }

    /// Whether GGUF stores the tensor in f32 only: ggml multiplies by norms, and adds biases and learned positions, in f32.
    pub fn is_f32_in_gguf(&self) -> bool {
        self.kind != Kind::Matrix || self.component == Component::Positions
    }

    /// The index that row `row` of format `from` has in the other format. Not for `Transposed`: its rows are columns there.
    pub fn row_in_other_format(&self, row: u64, from: Format) -> u64 {
        let GgufLayout::Pairs { heads } = self.gguf_layout else { return row };
        let head_rows = self.shape[0] / heads;
        let (head, row_in_head, half) = (row / head_rows, row % head_rows, head_rows / 2);
        let other_row = match from {
            Format::Safetensors => row_in_head % half * 2 + row_in_head / half,
            Format::Gguf => row_in_head % 2 * half + row_in_head / 2,
        };
        head * head_rows + other_row
    }
}

/// The tensors of a network, collected in order.
#[derive(Default)]
struct TensorSpecs {
    list: Vec<TensorSpec>,
    /// The beginnings of the names in the current layer, in each format.
    layer_prefixes: (String, String),
}

impl TensorSpecs {
    /// Adds a matrix of outputs by inputs, by its names in safetensors and in GGUF.
    fn matrix(
        &mut self,
        component: Component,
        names: (&str, &str),
        outputs: u32,
        inputs: u32,
    ) -> &mut TensorSpec {
        self.add(component, Kind::Matrix, names, vec![u64::from(outputs), u64::from(inputs)], inputs)
    }

    fn bias(
        &mut self,
        component: Component,
        names: (&str, &str),
        outputs: u32,
        inputs: u32,
    ) -> &mut TensorSpec {
        self.add(component, Kind::Bias, names, vec![u64::from(outputs)], inputs)
    }

    fn norm(&mut self, names: (&str, &str), size: u32) {
        self.add(Component::Norms, Kind::Norm, names, vec![u64::from(size)], size);
    }

    fn norm_bias(&mut self, names: (&str, &str), size: u32) {
        self.add(Component::Norms, Kind::NormBias, names, vec![u64::from(size)], size);
    }

    fn add(
        &mut self,
        component: Component,
        kind: Kind,
        (name, gguf): (&str, &str),
        shape: Vec<u64>,
        fan_in: u32,
    ) -> &mut TensorSpec {
        let (prefix, gguf_prefix) = &self.layer_prefixes;
        let (name, gguf) = (format!("{prefix}{name}"), format!("{gguf_prefix}{gguf}"));
        let (gguf_layout, fan_in) = (GgufLayout::Same, u64::from(fan_in));
        self.list.push_mut(TensorSpec { name, gguf, shape, kind, component, gguf_layout, fan_in })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rotated_rows_of_a_head_are_reordered_for_gguf_and_back() {
        let spec = TensorSpec {
            name: String::new(),
            gguf: String::new(),
            shape: vec![12, 1],
            kind: Kind::Matrix,
            component: Component::Attention,
            gguf_layout: GgufLayout::Pairs { heads: 2 },
            fan_in: 1,
        };
        let in_gguf: Vec<_> = (0..6).map(|row| spec.row_in_other_format(row, Format::Safetensors)).collect();
        assert_eq!(in_gguf, [0, 2, 4, 1, 3, 5]);
        for row in 0..12 {
            let other = spec.row_in_other_format(row, Format::Safetensors);
            assert_eq!(spec.row_in_other_format(other, Format::Gguf), row);
        }
    }

    fn detect_name(config: &Value, tensor: &str, folder: &str) -> Option<String> {
        detect(config, std::iter::once(tensor), folder).map(|(name, _)| name)
    }

    #[test]
    fn the_architecture_comes_from_the_model_type_or_else_the_class_the_tensor_names_or_the_folder() {
        let plain = "model.layers.0.self_attn.q_proj.weight";
        let stated = json!({ "model_type": "falcon", "architectures": ["LlamaForCausalLM"] });
        assert_eq!(detect_name(&stated, plain, "x").as_deref(), Some("falcon"));
        let class = json!({ "architectures": ["Phi3ForCausalLM"] });
        assert_eq!(detect_name(&class, plain, "x").as_deref(), Some("phi3"));
        assert_eq!(detect_name(&json!({}), plain, "x").as_deref(), Some("llama"));
        assert_eq!(detect_name(&json!({}), plain, "My-Gemma-2b").as_deref(), Some("gemma"));
        assert_eq!(detect_name(&json!({}), "h.0.attn.c_attn.weight", "llama").as_deref(), Some("gpt2"));
        assert_eq!(detect_name(&json!({}), "something.else", "llama"), None);
    }

    #[test]
    fn tensor_names_find_the_most_specific_architecture_first_and_exclude_other_architectures() {
        let matching_names = |ends: &[&str]| {
            let names = ends.iter().map(|end| format!("model.layers.0.self_attn.{end}")).collect::<Vec<_>>();
            let architectures = matching_architectures(names.iter().map(String::as_str));
            architectures.iter().map(|architecture| architecture.name).collect::<Vec<_>>()
        };
        assert_eq!(matching_names(&["q_proj.weight"]), ["llama", "mistral", "gemma"]);
        assert_eq!(matching_names(&["q_proj.weight", "q_proj.bias"]), ["qwen2", "llama", "gemma"]);
        assert_eq!(matching_names(&["q_proj.weight", "q_norm.weight"]), ["qwen3"]);
        assert_eq!(matching_names(&["q_proj.weight", "q_proj.bias", "q_norm.weight"]), ["qwen3"]);
        assert_eq!(matching_names(&["qkv_proj.weight"]), ["phi3"]);
    }

    #[test]
    fn every_architecture_is_found_by_the_names_of_its_own_tensors() {
        for (name, text) in crate::SHAPES.iter().filter(|(name, _)| name.starts_with("tiny-")) {
            let shape: Value = serde_json::from_str(text).unwrap();
            let config = crate::Config::from_json(shape["config"].clone(), &Value::Null).unwrap();
            let architecture = Architecture::named(&config.architecture).unwrap();
            let specs = architecture.tensor_specs(&config).unwrap();
            let matching = matching_architectures(specs.iter().map(|spec| spec.name.as_str()));
            assert!(matching.iter().any(|candidate| candidate.name == architecture.name), "{name}");
        }
    }
}
