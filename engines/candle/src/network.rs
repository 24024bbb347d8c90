//! candle's four models behind one face: start a sequence, feed it ids, get the logits of the last one.
//!
//! Every model is driven as candle's own examples drive it: the prompt in one call, then one id at a time with the
//! position it stands at.

use candle_core::{Device, Result, Tensor};
use candle_transformers::models::{llama, quantized_llama, quantized_qwen2, qwen2};

/// A model with its weights.
pub struct Network {
    pub device: Device,
    pub kind: Kind,
    /// Forward passes run inside candle's own pool of threads; its examples leave them outside.
    pub own_pool: bool,
}

pub enum Kind {
    /// The caches are never written to: a sequence works on a copy, which shares the position tables.
    Llama {
        weights: Box<llama::Llama>,
        cache: llama::Cache,
        no_cache: llama::Cache,
    },
    Qwen2(Box<qwen2::ModelForCausalLM>),
    QuantizedLlama(Box<quantized_llama::ModelWeights>),
    QuantizedQwen2(Box<quantized_qwen2::ModelWeights>),
}

impl Network {
    /// Whether a sequence can do without the cache. candle's quantised models keep a mask for every length that they
    /// ever saw, so without a cache they would keep the sum of all squares up to the sequence's length.
    pub fn can_run_without_cache(&self) -> bool {
        matches!(self.kind, Kind::Llama { .. } | Kind::Qwen2(_))
    }

    /// A sequence that knows nothing of any other.
    pub fn start(&mut self, use_cache: bool) -> Sequence<'_> {
        let steps = match &mut self.kind {
            Kind::Llama { weights, cache, no_cache } => Steps::Llama {
                weights,
                pristine: if use_cache { &*cache } else { &*no_cache },
                cache: if use_cache { cache.clone() } else { no_cache.clone() },
            },
            Kind::Qwen2(model) => {
                model.clear_kv_cache();
                Steps::Qwen2(model.as_mut())
            }
            Kind::QuantizedLlama(model) => {
                model.clear_kv_cache();
                Steps::QuantizedLlama(model.as_mut())
            }
            Kind::QuantizedQwen2(model) => {
                model.clear_kv_cache();
                Steps::QuantizedQwen2(model.as_mut())
            }
        };
        let without_cache = (!use_cache).then(Vec::new);
        Sequence { device: &self.device, steps, own_pool: self.own_pool, position: 0, without_cache }
    }
}

/// One sequence: its keys and values, or all its ids where there is no cache.
pub struct Sequence<'a> {
    device: &'a Device,
    steps: Steps<'a>,
    own_pool: bool,
    position: usize,
    without_cache: Option<Vec<u32>>,
}

enum Steps<'a> {
    Llama { weights: &'a llama::Llama, pristine: &'a llama::Cache, cache: llama::Cache },
    Qwen2(&'a mut qwen2::ModelForCausalLM),
    QuantizedLlama(&'a mut quantized_llama::ModelWeights),
    QuantizedQwen2(&'a mut quantized_qwen2::ModelWeights),
}

impl Sequence<'_> {
    /// Continues the sequence by `ids`; the logits of what comes after the last of them, [vocabulary] in f32.
    pub fn feed(&mut self, ids: &[u32]) -> Result<Tensor> {
        let (input, position) = match &mut self.without_cache {
            Some(all) => {
                all.extend_from_slice(ids);
                self.steps.forget();
                (Tensor::new(all.as_slice(), self.device)?, 0)
            }
            None => (Tensor::new(ids, self.device)?, self.position),
        };
        let input = input.unsqueeze(0)?; // [1, length]
        let steps = &mut self.steps;
        let logits = match self.own_pool {
            true => self.device.with_context(|| steps.forward(&input, position))?,
            false => steps.forward(&input, position)?,
        };
        self.position += ids.len();
        logits.flatten_all()?.to_dtype(candle_core::DType::F32) // from [1, vocabulary] or [1, 1, vocabulary]
    }
}

impl Steps<'_> {
    fn forward(&mut self, input: &Tensor, position: usize) -> Result<Tensor> {
        match self {
            Self::Llama { weights, cache, .. } => weights.forward(input, position, cache),
            Self::Qwen2(model) => model.forward(input, position),
            Self::QuantizedLlama(model) => model.forward(input, position),
            Self::QuantizedQwen2(model) => model.forward(input, position),
        }
    }

    /// Back to the state before the first id. llama keeps its masks in the cache: without this, a sequence without
    /// cache would keep one for each of its lengths.
    fn forget(&mut self) {
        match self {
            Self::Llama { pristine, cache, .. } => *cache = pristine.clone(),
            Self::Qwen2(model) => model.clear_kv_cache(),
            Self::QuantizedLlama(model) => model.clear_kv_cache(),
            Self::QuantizedQwen2(model) => model.clear_kv_cache(),
        }
    }
}
