//! The numbers of a model that a benchmark needs, from its config, headers and tokenizer, never from its weights.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::architecture::{Architecture, Component, TensorSpec};
use crate::synth::Shape;
use crate::tokenizer::TokenizerFacts;
use crate::weights::find;
use crate::{Config, Dtype, Format, ModelFolder};

#[derive(Debug, Clone, Serialize)]
pub struct ModelFacts {
    pub name: String,
    /// `None` for a shape, which has no files.
    pub path: Option<PathBuf>,
    pub format: &'static str,
    pub files: usize,
    pub architecture: String,
    /// The source of the architecture, in words, such as "the names of its tensors".
    pub architecture_from: &'static str,
    pub parameters: u64,
    pub weights_bytes: u64,
    /// Bytes by dtype.
    pub dtypes: BTreeMap<&'static str, u64>,
    pub layers: u32,
    pub hidden_size: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub vocabulary_size: u32,
    pub context_tokens: Option<u32>,
    pub tied_output: bool,
    pub tokenizer: Option<TokenizerFacts>,
    /// Empty for an unsupported architecture.
    pub components: Vec<ComponentFacts>,
    /// The bytes of weights that one decode step reads, without the KV cache.
    pub weight_bytes_per_token: u64,
    /// The parameters that one decode step reads, independent of the dtype.
    pub parameters_per_token: u64,
    /// The KV cache of one position in all layers, with 16 bits a number.
    pub kv_bytes_per_position: u64,
    /// The identity of the weights. `None` if only reading all weights would tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct ComponentFacts {
    pub component: &'static str,
    pub parameters: u64,
    pub bytes: u64,
}

impl ModelFacts {
    /// The facts of a model. It is an error if the config and the tensors of a supported architecture do not agree. For an
    /// unsupported architecture, `components` is empty, and a decode step counts all weights.
    pub fn of(model: &ModelFolder) -> Result<Self> {
        let config = &model.config;
        let mut facts = Self {
            path: Some(model.path.clone()),
            files: model.weights.len(),
            architecture_from: model.architecture_from,
            parameters: model.parameters(),
            weights_bytes: model.weights_bytes(),
            dtypes: model.dtypes(),
            tokenizer: tokenizer_facts(model)?,
            weight_bytes_per_token: model.weights_bytes(),
            parameters_per_token: model.parameters(),
            identity: model.known_identity(),
            ..Self::of_config(&model.name, config, model.format)
        };
        if Architecture::of(config, model.format).is_ok() {
            let bytes: HashMap<_, _> =
                model.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.bytes)).collect();
            let bytes_of =
                |spec: &TensorSpec| find(&bytes, spec.name_in(model.format)).copied().unwrap_or_default();
            facts.add_components(&model.tensor_specs()?, bytes_of);
        }
        Ok(facts)
    }

    /// The facts of a model that `synthesise` would write as safetensors of this dtype. Nothing is written.
    pub fn of_shape(shape: &Shape, dtype: Dtype) -> Result<Self> {
        let config = Config::from_json(shape.config.clone(), &shape.generation)?;
        let specs = Architecture::of(&config, Format::Safetensors)?.tensor_specs(&config)?;
        let bytes_of = |spec: &TensorSpec| dtype.bytes(spec.elements());
        let weights_bytes = specs.iter().map(bytes_of).sum();
        let mut facts = Self {
            weights_bytes,
            dtypes: BTreeMap::from([(dtype.as_str(), weights_bytes)]),
            ..Self::of_config(&shape.name, &config, Format::Safetensors)
        };
        facts.add_components(&specs, bytes_of);
        Ok(facts)
    }

    /// The facts in a config. The others are empty or 0.
    fn of_config(name: &str, config: &Config, format: Format) -> Self {
        let kv = u64::from(config.kv_heads) * u64::from(config.head_dim);
        Self {
            name: name.into(),
            path: None,
            format: format.as_str(),
            files: 0,
            architecture: config.architecture.clone(),
            architecture_from: "`model_type` of its config",
            parameters: 0,
            weights_bytes: 0,
            dtypes: BTreeMap::new(),
            layers: config.layers,
            hidden_size: config.hidden_size,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            vocabulary_size: config.vocabulary_size,
            context_tokens: config.context_tokens,
            tied_output: config.tie_word_embeddings,
            tokenizer: None,
            components: Vec::new(),
            weight_bytes_per_token: 0,
            parameters_per_token: 0,
            // Keys and values, two bytes a number.
            kv_bytes_per_position: kv.saturating_mul(4).saturating_mul(u64::from(config.layers)),
            identity: None,
        }
    }

    /// The least memory that the model needs: weights, and the KV cache of this many positions.
    pub fn memory_bytes(&self, context_tokens: u64) -> u64 {
        self.weights_bytes.saturating_add(self.kv_bytes_per_position.saturating_mul(context_tokens))
    }

    /// Adds the facts by component, and the facts of a decode step.
    fn add_components(&mut self, specs: &[TensorSpec], bytes_of: impl Fn(&TensorSpec) -> u64) {
        let mut sums: BTreeMap<Component, (u64, u64)> = BTreeMap::new();
        (self.weight_bytes_per_token, self.parameters_per_token, self.parameters) = (0, 0, 0);
        for spec in specs {
            let bytes = bytes_of(spec);
            self.parameters += spec.elements();
            let sum = sums.entry(spec.component).or_default();
            *sum = (sum.0 + spec.elements(), sum.1 + bytes);
            // A token reads one row of a table. But an embedding that is also the output matrix is read as a whole.
            let is_table = match spec.component {
                Component::Embedding => !self.tied_output,
                Component::Positions => true,
                _ => false,
            };
            let rows = if is_table { spec.shape[0].max(1) } else { 1 };
            self.weight_bytes_per_token += bytes / rows;
            self.parameters_per_token += spec.elements() / rows;
        }
        let facts = sums.into_iter().map(|(component, (parameters, bytes))| ComponentFacts {
            component: component.as_str(),
            parameters,
            bytes,
        });
        self.components = facts.collect();
    }
}

/// The tokenizer's facts. A tokenizer with ids beyond the model's embedding belongs to another model and is refused.
pub(crate) fn tokenizer_facts(model: &ModelFolder) -> Result<Option<TokenizerFacts>> {
    let Some(facts) = model.tokenizer_facts()? else { return Ok(None) };
    let vocabulary = model.config.vocabulary_size;
    let too_high = facts.highest_id.filter(|highest| *highest >= vocabulary);
    ensure!(
        too_high.is_none(),
        "`{}`: the tokenizer has another vocabulary than the model: its {} entries go up to id {}, but the model has {vocabulary} tokens",
        facts.source.display(),
        facts.entries,
        too_high.unwrap_or_default()
    );
    Ok(Some(facts))
}
