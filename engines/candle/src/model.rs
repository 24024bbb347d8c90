//! A loaded model: it generates as candle's examples do, and it scores. With the KV cache, `generate` feeds a prompt in one
//! call, then each new id alone. A batch advances all of its sequences together, because candle's models have no positions
//! for each row.

use std::ops::Range;

use candle_core::{D, DType, Device, Result as CandleResult, Tensor};
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
        let device = self.network.device.clone();
        if job.prompts.len() > 1 && !self.network.decoder.computes_batches(&device) {
            return Err(unsupported("a batch on this GGUF: candle computes one sequence at a time on a CPU"));
        }
        let sampling = |error| compute_failure("sampling a token", &error, &device);
        let mut chooser = Chooser::new(job.sampling, job.prompts.len());
        let mut batch = self.network.start(job.use_cache);
        // The ids of each sequence: its prompt, then its new tokens.
        let mut sequences = job.prompts.clone();
        let mut columns = 0;
        while !tokens.all_done() && !tokens.is_cancelled() {
            let is_first = columns == 0;
            let next_columns = columns_to_feed(&sequences, columns, tokens);
            for (index, ids) in sequences.iter_mut().enumerate() {
                if tokens.is_done(index) {
                    // Its row stays in the batch, and any id will do.
                    ids.resize(next_columns.end, 0);
                }
            }
            let input: Vec<&[u32]> = sequences.iter().map(|ids| &ids[next_columns.clone()]).collect();
            columns = next_columns.end;
            let logits =
                batch.feed(&input).map_err(|error| compute_failure("forward pass", &error, &device))?;
            let is_ready = |&index: &usize| sequences[index].len() == columns && !tokens.is_done(index);
            let ready: Vec<usize> = (0..sequences.len()).filter(is_ready).collect();
            let ids = chooser.choose(&logits, &ready).map_err(sampling)?;
            let mut is_last = false;
            for (&index, id) in ready.iter().zip(ids) {
                is_last |= tokens.push(index, id) == Flow::Done;
                sequences[index].push(id);
            }
            // Keys and values of NaN stay in the cache, so NaN at any token gives NaN at the last token. The check at the
            // first token ends a request with broken weights at once. The other tokens are not checked, to save time.
            if (is_first || is_last) && !is_finite(&logits).map_err(sampling)? {
                return Err(Failed::new(FailureKind::Model, NOT_FINITE));
            }
        }
        Ok(())
    }

    /// Feeds one id at a time through the cache: candle's models return only the logits of the last position.
    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        let device = self.network.device.clone();
        let mut batch = self.network.start(true);
        let step = |pair: &[u32]| {
            let logits = batch.feed(&[&pair[..1]])?.flatten_all()?.to_vec1::<f32>()?; // [vocabulary]
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

/// The next columns of a batch whose first `columns` columns are in the model. All rows of candle's models have the same
/// positions, so a batch advances by the ids that each unfinished sequence has: at first by its shortest prompt. If one sequence
/// generates, the prompts of the others advance by one id too.
fn columns_to_feed(sequences: &[Vec<u32>], columns: usize, tokens: &Tokens) -> Range<usize> {
    let unfinished = sequences.iter().enumerate().filter(|&(index, _)| !tokens.is_done(index));
    columns..unfinished.map(|(_, ids)| ids.len()).min().unwrap_or(columns)
}

/// Chooses ids as candle's examples do, with `LogitsProcessor` or, for greedy decoding, its operation for all rows at once. On the
/// CPU the argmax takes the lowest id among equals; README.md has the rule on CUDA.
enum Chooser {
    Greedy,
    /// A sampler for each sequence, so that its ids do not depend on the other sequences.
    Sampled(Vec<LogitsProcessor>),
}

impl Chooser {
    fn new(requested: Option<Sampling>, sequences: usize) -> Self {
        let requested = requested.unwrap_or_default();
        // candle divides in f32, where a tiny temperature makes probabilities of NaN.
        if sampling::is_greedy(&requested) {
            return Self::Greedy;
        }
        let Sampling { temperature, top_k, top_p, seed } = requested;
        let method = match (top_k as usize, top_p) {
            (0, None) => SamplingMethod::All { temperature },
            (0, Some(p)) => SamplingMethod::TopP { p, temperature },
            (k, None) => SamplingMethod::TopK { k, temperature },
            (k, Some(p)) => SamplingMethod::TopKThenTopP { k, p, temperature },
        };
        let seeds = (0..sequences as u64).map(|index| seed.wrapping_add(index));
        Self::Sampled(seeds.map(|seed| LogitsProcessor::from_sampling(seed, method.clone())).collect())
    }

    /// An id for each of these rows of the logits, [rows, vocabulary].
    fn choose(&mut self, logits: &Tensor, rows: &[usize]) -> CandleResult<Vec<u32>> {
        match self {
            Self::Greedy => {
                let ids = logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
                Ok(rows.iter().map(|&row| ids[row]).collect())
            }
            Self::Sampled(samplers) => {
                rows.iter().map(|&row| samplers[row].sample(&logits.get(row)?)).collect()
            }
        }
    }
}

/// One of candle's models with its weights, and the KV cache of one batch.
pub trait Decoder: Send {
    /// The logits after the last column, [rows, vocabulary] or [rows, 1, vocabulary]. `input` is [rows, columns]; its first column
    /// has the index `position` in every row.
    fn forward(&mut self, input: &Tensor, position: usize) -> CandleResult<Tensor>;

    /// Resets the model to the state before the first id.
    fn reset(&mut self);

    /// Whether candle keeps the attention mask of every length that it has processed. Without a cache it would process every
    /// length of the sequence, and keep a square mask for each.
    fn keeps_masks(&self) -> bool {
        false
    }

    /// Whether candle computes several sequences at once on this device.
    fn computes_batches(&self, _device: &Device) -> bool {
        true
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
    /// Begins a new batch, independent of earlier ones.
    pub fn start(&mut self, use_cache: bool) -> Batch<'_> {
        self.decoder.reset();
        Batch { network: self, columns: 0, rows_without_cache: (!use_cache).then(Vec::new) }
    }
}

/// Sequences of equal length: the number of their columns so far, and all their ids if there is no cache.
pub struct Batch<'a> {
    network: &'a mut Network,
    columns: usize,
    rows_without_cache: Option<Vec<Vec<u32>>>,
}

impl Batch<'_> {
    /// Adds the same number of ids to each row, and returns the logits after the last ones, [rows, vocabulary] in f32.
    pub fn feed(&mut self, ids: &[&[u32]]) -> CandleResult<Tensor> {
        let Network { device, decoder, own_pool } = &mut *self.network;
        let rows = ids.len();
        let (input, position) = match &mut self.rows_without_cache {
            Some(all_ids) => {
                all_ids.resize(rows, Vec::new());
                all_ids.iter_mut().zip(ids).for_each(|(row, ids)| row.extend_from_slice(ids));
                decoder.reset();
                (all_ids.concat(), 0)
            }
            None => (ids.concat(), self.columns),
        };
        let columns = input.len() / rows;
        let input = Tensor::from_vec(input, (rows, columns), device)?;
        let logits = match own_pool {
            true => device.with_context(|| decoder.forward(&input, position))?,
            false => decoder.forward(&input, position)?,
        };
        self.columns = position + columns;
        logits.reshape((rows, ()))?.to_dtype(DType::F32)
    }
}
