//! How well a configuration predicts the held-out text: the loss of a token, and the perplexity that follows from it.

use serde::Serialize;

use super::verifier::Verifier;
use crate::analysis::loss::Loss;
use crate::record::RunRecord;

/// The prediction of the windows of held-out text that a configuration scored. No window overlaps another one. Each begins with
/// the tokenizer's BOS, and every id but the first has a log-probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// The mean loss of a token, in nats.
    pub loss: f64,
    /// `None` if it is too large for a number.
    pub perplexity: Option<f64>,
    /// `None` if the record lacks the lengths of the texts.
    pub bits_per_byte: Option<f64>,
    /// The number of predicted tokens.
    pub tokens: usize,
    /// The verifier's perplexity on the same windows, in f32.
    pub verifier_perplexity: Option<f64>,
}

impl Prediction {
    /// `None` without scores, or if the configuration finds a token impossible: then there is no finite loss.
    pub fn of(record: &RunRecord, configuration: usize) -> Option<Self> {
        let model = &record.header.plan.configurations.get(configuration)?.model;
        let held_out = record.held_out.iter().find(|it| it.model == model.path)?;
        let verifier = Verifier::of(record, configuration).ok();
        let (mut all, mut of_verifier) = (Vec::new(), Some(Vec::new()));
        let mut bytes = Some(0);
        let mut windows: Vec<usize> = Vec::new();
        for scored in record.scored.iter().filter(|it| it.configuration == configuration) {
            if windows.contains(&scored.sequence) {
                continue;
            }
            windows.push(scored.sequence);
            all.push(scored.logprobs.as_slice());
            let expected = verifier.as_ref().and_then(|it| it.logprobs(scored.sequence));
            of_verifier = of_verifier.zip(expected).map(|(mut all, logprobs)| {
                all.push(logprobs);
                all
            });
            let length = held_out.text_bytes.get(scored.sequence);
            bytes = bytes.zip(length).map(|(bytes, length)| bytes + length);
        }
        let loss = Loss::of(all)?;
        Some(Self {
            loss: loss.mean(),
            perplexity: loss.perplexity(),
            bits_per_byte: bytes.and_then(|bytes| loss.bits_per_byte(bytes)),
            tokens: loss.tokens(),
            verifier_perplexity: of_verifier.and_then(Loss::of).and_then(Loss::perplexity),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::agreement::specimen;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_loss() {
        let mut record = specimen::checked();
        for scored in record.scored.iter_mut().filter(|it| it.configuration == specimen::ENGINE) {
            scored.logprobs = vec![Some(-(8.0_f64.ln())); scored.logprobs.len()];
        }
        let windows = record.held_out[0].sequences.clone();
        record.held_out[0].text_bytes = windows.iter().map(|ids| 3 * (ids.len() as u64 - 1)).collect();
        let found = Prediction::of(&record, specimen::ENGINE).unwrap();
        assert!((found.perplexity.unwrap() - 8.0).abs() < 1e-9, "{found:?}");
        // Three bits for each token of three bytes.
        assert!((found.bits_per_byte.unwrap() - 1.0).abs() < 1e-9, "{found:?}");
        assert!(found.verifier_perplexity.is_some());
        record.held_out[0].text_bytes.clear();
        assert_eq!(Prediction::of(&record, specimen::ENGINE).unwrap().bits_per_byte, None);
    }

    #[test]
    fn a_token_that_an_engine_finds_impossible_leaves_no_loss() {
        let mut record = specimen::checked();
        let scored = record.scored.iter_mut().find(|it| it.configuration == specimen::ENGINE).unwrap();
        scored.logprobs[0] = None;
        assert_eq!(Prediction::of(&record, specimen::ENGINE), None);
    }
}
