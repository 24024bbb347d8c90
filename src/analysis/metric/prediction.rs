//! The metrics of a scored text: how well an engine predicts it, and how far its log-probabilities are from those of the verifier
//! in f32.

use super::observation::Observation;
use crate::analysis::loss::{self, Loss};
use crate::record::TextScores;

fn loss_of(scores: &TextScores) -> Option<Loss> {
    Loss::of(scores.windows.iter().map(|it| it.logprobs.as_slice()))
}

fn scored(observed: &Observation) -> Option<Loss> {
    loss_of(observed.sample.scores.as_ref()?)
}

pub fn mean_loss(observed: &Observation) -> Vec<f64> {
    scored(observed).map(Loss::mean).into_iter().collect()
}

pub fn perplexity(observed: &Observation) -> Vec<f64> {
    scored(observed).and_then(Loss::perplexity).into_iter().collect()
}

pub fn bits_per_byte(observed: &Observation) -> Vec<f64> {
    let bytes = observed.sample.scores.as_ref().map_or(0, TextScores::text_bytes);
    scored(observed).and_then(|it| it.bits_per_byte(bytes)).into_iter().collect()
}

pub fn perplexity_change(observed: &Observation) -> Vec<f64> {
    let change = observed.sample.scores.as_ref().zip(observed.reference_scores);
    change.and_then(|(own, reference)| change_of_perplexity(own, reference)).into_iter().collect()
}

pub fn drift(observed: &Observation) -> Vec<f64> {
    let both = observed.sample.scores.as_ref().zip(observed.reference_scores);
    both.and_then(|(own, reference)| drift_from(own, reference)).into_iter().collect()
}

/// The change of the perplexity against that of other scores of the same text, as a share.
pub fn change_of_perplexity(scores: &TextScores, others: &TextScores) -> Option<f64> {
    let (own, other) = (loss_of(scores)?, loss_of(others)?);
    // The difference of the means is known even if both perplexities overflow.
    let change = (own.tokens() == other.tokens()).then(|| (own.mean() - other.mean()).exp_m1());
    change.filter(|it| it.is_finite())
}

/// The root mean square of the differences between the log-probabilities of the same text, in nats.
pub fn drift_from(scores: &TextScores, others: &TextScores) -> Option<f64> {
    loss::drift(scores.logprobs(), others.logprobs())
}
