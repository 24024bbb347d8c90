//! A loaded model: it generates and scores.

use burn::tensor::Tensor;
use engine_kit::{Flow, Job, Model, OrFail, Tokens, sampling};
use protocol::{Facts, Failed, FailureKind};

use crate::device::Opened;
use crate::network::{Cache, Input, Network};

pub struct LoadedModel {
    pub network: Network,
    pub opened: Opened,
    pub facts: Facts,
}

/// How many positions of a scored text have their logits in memory at once.
const SCORED_AT_ONCE: usize = 128;

const NOT_FINITE: &str = "the model's weights lead to logits that are NaN or infinite";

impl Model for LoadedModel {
    fn facts(&self) -> Facts {
        Facts { device_memory: self.opened.memory(), ..self.facts.clone() }
    }

    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        let rows = job.prompts.len();
        let longest = job.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let pads: Vec<usize> = job.prompts.iter().map(|prompt| longest - prompt.len()).collect();
        let mut cache = job.use_cache.then(|| Cache::new(&self.network));
        let mut chooser = Chooser::new(job, rows);
        // All rows have the same length: pads, the prompt, new tokens. Any id will do for a pad and for a sequence that is done.
        let mut sequences: Vec<Vec<u32>> = pads
            .iter()
            .zip(&job.prompts)
            .map(|(&pads, prompt)| [&vec![0; pads], &**prompt].concat())
            .collect();
        let mut fed = 0;
        while !tokens.all_done() && !tokens.is_cancelled() {
            let is_first = fed == 0;
            let ids = sequences.iter().flat_map(|ids| &ids[fed..]).copied().collect();
            let hidden = self.network.forward(Input { ids, rows, pads: &pads }, cache.as_mut());
            let logits = self.network.last_logits(hidden, rows); // [rows, vocabulary]
            if cache.is_some() {
                fed = sequences[0].len();
            }
            let ids = chooser.choose(logits.clone())?;
            let mut is_last = false;
            for (row, id) in ids.into_iter().enumerate() {
                if !tokens.is_done(row) {
                    is_last |= tokens.push(row, id) == Flow::Done;
                }
                sequences[row].push(id);
            }
            // Keys and values of NaN stay in the cache, so NaN at any token gives NaN at the last token. The check at the first
            // token ends a request with broken weights at once. The other tokens are not checked, to save time.
            if (is_first || is_last) && !is_finite(logits)? {
                return Err(Failed::new(FailureKind::Model, NOT_FINITE));
            }
        }
        Ok(())
    }

    /// All positions in one forward pass, like a prompt.
    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        let Some(predicted) = ids.len().checked_sub(1).filter(|&count| count > 0) else {
            return Ok(Vec::new());
        };
        let input = Input { ids: ids[..predicted].to_vec(), rows: 1, pads: &[0] };
        let hidden = self.network.forward(input, None); // [columns, hidden]
        let width = hidden.dims()[1];
        let mut scores = Vec::with_capacity(predicted);
        for start in (0..predicted).step_by(SCORED_AT_ONCE) {
            let end = (start + SCORED_AT_ONCE).min(predicted);
            let logits = host(self.network.logits(hidden.clone().slice([start..end, 0..width])))?;
            let vocabulary = logits.len() / (end - start);
            let targets = &ids[start + 1..=end];
            let of_row = |(logits, &id): (&[f32], &u32)| sampling::log_softmax_at(logits, id);
            scores.extend(logits.chunks_exact(vocabulary).zip(targets).map(of_row));
        }
        match scores.iter().all(|score| score.is_finite()) {
            true => Ok(scores),
            false => Err(Failed::new(FailureKind::Model, NOT_FINITE)),
        }
    }
}

/// The values of a tensor in f32, on the host.
fn host<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, Failed> {
    tensor
        .try_into_data()
        .or_fail(FailureKind::Internal)?
        .try_into_vec::<f32>()
        .or_fail(FailureKind::Internal)
}

/// Whether all logits are finite; an argmax takes an id from other logits too.
fn is_finite(logits: Tensor<2>) -> Result<bool, Failed> {
    Ok(host(logits.sum())?.iter().all(|sum| sum.is_finite()))
}

/// Chooses the next ids. Greedy decoding is one argmax on the device, for all rows; sampling copies the logits to the host.
enum Chooser {
    Greedy,
    Sampled(Option<protocol::Sampling>, Vec<sampling::Rng>),
}

impl Chooser {
    fn new(job: &Job, rows: usize) -> Self {
        match &job.sampling {
            Some(requested) if !sampling::is_greedy(requested) => {
                let generators = (0..rows).map(|row| sampling::Rng::for_sequence(&job.sampling, row));
                Self::Sampled(job.sampling, generators.collect())
            }
            _ => Self::Greedy,
        }
    }

    /// An id for each row of the logits, [rows, vocabulary].
    fn choose(&mut self, logits: Tensor<2>) -> Result<Vec<u32>, Failed> {
        match self {
            Self::Greedy => {
                let ids = logits.argmax(1).try_into_data().or_fail(FailureKind::Internal)?;
                Ok(ids.iter::<u32>().collect())
            }
            Self::Sampled(sampling, generators) => {
                let [rows, vocabulary] = logits.dims();
                let logits = host(logits)?;
                let rows = logits.chunks_exact(vocabulary).zip(generators).take(rows);
                Ok(rows.map(|(logits, generator)| sampling::sample(logits, sampling, generator)).collect())
            }
        }
    }
}
