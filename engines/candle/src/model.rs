//! A loaded model: it generates as candle's examples do, and it scores. With the KV cache, `generate` feeds a prompt in one
//! call, then each new id alone.

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling as SamplingMethod};
use engine_kit::{Flow, Job, Model, Tokens, sampling};
use protocol::{Facts, Failed, FailureKind, Sampling};

use crate::device;
use crate::failure::{compute_failure, unsupported};

/// The network, and the facts of its load.
pub struct LoadedModel {
    pub network: Network,
    pub facts: Facts,
}

impl Model for LoadedModel {
    fn facts(&self) -> Facts {
        Facts { device_memory: device::memory(&self.network.device), ..self.facts.clone() }
    }

    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        if !job.use_cache && self.network.decoder.keeps_masks() {
            return Err(unsupported(
                "`use_cache: false` on this GGUF: candle would keep an attention mask for every length",
            ));
        }
        for (index, prompt) in job.prompts.iter().enumerate() {
            let mut sampler = sampler(job.sampling);
            let device = self.network.device.clone();
            let mut sequence = self.network.start(job.use_cache);
            let mut input = prompt.clone();
            let mut is_first = true;
            loop {
                let logits = sequence
                    .feed(&input)
                    .map_err(|error| compute_failure("forward pass", &error, &device))?;
                let sampling = |error| compute_failure("sampling a token", &error, &device);
                let id = sampler.sample(&logits).map_err(sampling)?;
                let is_last = tokens.push(index, id) == Flow::Done;
                // Keys and values of NaN stay in the cache, so NaN at any token gives NaN at the last token. The check at the
                // first token ends a request with broken weights at once. The other tokens are not checked, to save time.
                if (is_first || is_last) && !is_finite(&logits).map_err(sampling)? {
                    return Err(Failed::new(FailureKind::Model, NOT_FINITE));
                }
                if is_last {
                    break;
                }
                is_first = false;
                input = vec![id];
            }
        }
        Ok(())
    }

    /// Feeds one id at a time through the cache: candle's models return only the logits of the last position.
    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        let device = self.network.device.clone();
        let mut sequence = self.network.start(true);
        let step = |pair: &[u32]| {
            let logits = sequence.feed(&pair[..1])?.to_vec1::<f32>()?; // [vocabulary]
            Ok(sampling::log_softmax_at(&logits, pair[1]))
        };
        ids.windows(2)
            .map(step)
            .collect::<CandleResult<_>>()
            .map_err(|error| compute_failure("scoring", &error, &device))
    }
}

const NOT_FINITE: &str = "the model's weights lead to logits that are NaN or infinite";

/// Whether all logits are finite; candle's own argmax takes an id from other logits too.
fn is_finite(logits: &Tensor) -> CandleResult<bool> {
    Ok(logits.sum_all()?.to_scalar::<f32>()?.is_finite())
}

/// candle's own sampler, configured as in its examples. On the CPU its argmax takes the lowest id among equals; README.md has the
/// rule on CUDA.
fn sampler(requested: Option<Sampling>) -> LogitsProcessor {
    let requested = requested.unwrap_or_default();
    // candle divides in f32, where a tiny temperature makes probabilities of NaN.
    let greedy = sampling::is_greedy(&requested);
    let Sampling { temperature, top_k, top_p, seed } = requested;
    let method = match (top_k as usize, top_p) {
        _ if greedy => SamplingMethod::ArgMax,
        (0, None) => SamplingMethod::All { temperature },
        (0, Some(p)) => SamplingMethod::TopP { p, temperature },
        (k, None) => SamplingMethod::TopK { k, temperature },
        (k, Some(p)) => SamplingMethod::TopKThenTopP { k, p, temperature },
    };
    LogitsProcessor::from_sampling(seed, method)
}

/// One of candle's models with its weights, and the KV cache of one sequence.
pub trait Decoder: Send {
    /// The logits after the last id. `input` is [1, length]; its first id has the index `position`.
    fn forward(&mut self, input: &Tensor, position: usize) -> CandleResult<Tensor>;

    /// Resets the model to the state before the first id.
    fn reset(&mut self);

    /// Whether candle keeps the attention mask of every length that it has processed. Without a cache it would process every
    /// length of the sequence, and keep a square mask for each.
    fn keeps_masks(&self) -> bool {
        false
    }
}

pub type Built = CandleResult<Box<dyn Decoder>>;

/// A decoder on its device.
pub struct Network {
    pub device: Device,
    pub decoder: Box<dyn Decoder>,
    /// Forward passes run inside candle's own thread pool; its examples run them outside.
    pub own_pool: bool,
}

impl Network {
    /// Begins a new sequence, independent of earlier ones.
    pub fn start(&mut self, use_cache: bool) -> Sequence<'_> {
        self.decoder.reset();
        Sequence { network: self, length: 0, ids_without_cache: (!use_cache).then(Vec::new) }
    }
}

/// One sequence: the number of its ids so far, and all its ids if there is no cache.
pub struct Sequence<'a> {
    network: &'a mut Network,
    length: usize,
    ids_without_cache: Option<Vec<u32>>,
}

impl Sequence<'_> {
    /// Adds `ids` to the sequence and returns the logits after the last one, [vocabulary] in f32.
    pub fn feed(&mut self, ids: &[u32]) -> CandleResult<Tensor> {
        let Network { device, decoder, own_pool } = &mut *self.network;
        let (input, position) = match &mut self.ids_without_cache {
            Some(all_ids) => {
                all_ids.extend_from_slice(ids);
                decoder.reset();
                (Tensor::new(all_ids.as_slice(), device)?, 0)
            }
            None => (Tensor::new(ids, device)?, self.length),
        };
        let input = input.unsqueeze(0)?; // [1, length]
        let logits = match own_pool {
            true => device.with_context(|| decoder.forward(&input, position))?,
            false => decoder.forward(&input, position)?,
        };
        self.length += ids.len();
        logits.flatten_all()?.to_dtype(DType::F32) // from [1, vocabulary] or [1, 1, vocabulary]
    }
}
