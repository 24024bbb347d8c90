//! A loaded model: generation and scoring, as in candle's examples.

use candle_transformers::generation::{LogitsProcessor, Sampling as Picking};
use engine_kit::{Flow, Job, Model, Tokens, sampling};
use protocol::{Facts, Failed, Sampling};

use crate::device;
use crate::failure::{computing, unsupported};
use crate::network::Network;

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
                "`use_cache: false` on this GGUF: candle would keep a mask for every length",
            ));
        }
        for (index, prompt) in job.prompts.iter().enumerate() {
            let mut picker = picker(job.sampling);
            let device = self.network.device.clone();
            let mut sequence = self.network.start(job.use_cache);
            let mut input = prompt.clone();
            loop {
                let logits =
                    sequence.feed(&input).map_err(|error| computing("forward pass", &error, &device))?;
                let id =
                    picker.sample(&logits).map_err(|error| computing("picking a token", &error, &device))?;
                if tokens.push(index, id) == Flow::Done {
                    break;
                }
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
            .collect::<candle_core::Result<_>>()
            .map_err(|error| computing("scoring", &error, &device))
    }
}

/// candle's own sampler, configured as in its examples. Its argmax takes the lowest id among equals.
fn picker(asked: Option<Sampling>) -> LogitsProcessor {
    let asked = asked.unwrap_or_default();
    // candle divides in f32, where a tiny temperature makes weights of NaN.
    let greedy = sampling::is_greedy(&asked);
    let Sampling { temperature, top_k, top_p, seed } = asked;
    let picking = match (top_k as usize, top_p) {
        _ if greedy => Picking::ArgMax,
        (0, None) => Picking::All { temperature },
        (0, Some(p)) => Picking::TopP { p, temperature },
        (k, None) => Picking::TopK { k, temperature },
        (k, Some(p)) => Picking::TopKThenTopP { k, p, temperature },
    };
    LogitsProcessor::from_sampling(seed, picking)
}
