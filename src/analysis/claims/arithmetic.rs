//! Compares an engine's scores with the dtype that it states. Rounding to a narrow dtype shows in the scores: only f32 scores as
//! f32 does.

use super::subject::{About, Contradiction, Subject};
use crate::analysis::agreement::Against;
use crate::plan::dtype;

/// The largest difference of engines in f32 that add in other orders (root mean square of log-probabilities, per token). The
/// finest rounding of weights that is worth stating, f16 of f32, differs by more.
const AS_F32: f64 = 3e-5;
/// The least difference that shows rounding: f16, the finest below f32, was measured at 0.001, f32 at 1e-6
/// (`agreement::bounds`).
const ROUNDED: f64 = 2e-4;
/// The least number of tokens: over fewer, a difference may be chance.
const MIN_TOKENS: usize = 64;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    rounds_nothing(subject).or_else(|| rounds(subject)).into_iter().collect()
}

/// The engine states f32 throughout, with the model's own numbers, and scores as a narrower dtype does.
fn rounds(subject: &Subject) -> Option<Contradiction> {
    let is_wide = |dtype: &str| dtype::bits(dtype).is_some_and(|bits| bits >= 32.0);
    let on_disk = subject.configuration.model.dtype.as_deref()?;
    // Every engine multiplies block formats with rounded activations, whatever it states.
    let plain = dtype::bits(on_disk).is_some_and(|bits| bits >= 16.0);
    let weights = subject.fact(|facts| facts.weights_dtype.as_deref())?;
    let own = is_wide(weights) || weights.eq_ignore_ascii_case(on_disk);
    let compute = subject.fact(|facts| facts.compute_dtype.as_deref()).filter(|dtype| is_wide(dtype))?;
    let kv = subject.fact(|facts| facts.kv_dtype.as_deref()).is_none_or(is_wide);
    let rms = rms(subject).filter(|rms| plain && own && kv && *rms > ROUNDED)?;
    let observed = format!("{rms:.1e}");
    let message = format!(
        "states that it computes in `{compute}`, but its log-probabilities differ from those of f32 by {observed} (root mean \
         square): it computes in a narrower dtype, or another model"
    );
    Some(subject.contradiction(About::Dtype, true, compute.into(), observed, &message))
}

/// The difference from another engine: the verifier's own is zero by definition.
fn rms(subject: &Subject) -> Option<f64> {
    let is_another =
        matches!(subject.agreement.against, Against::Engine { .. } | Against::StoredAnswers { .. });
    let scores = subject.agreement.scores.as_ref();
    scores.filter(|scores| is_another && scores.tokens >= MIN_TOKENS).map(|scores| scores.rms)
}

/// The engine states a narrower dtype than f32, and scores as f32 does.
fn rounds_nothing(subject: &Subject) -> Option<Contradiction> {
    let on_disk = subject.configuration.model.dtype.as_deref();
    let weights = subject.fact(|facts| facts.weights_dtype.as_deref());
    let compute = subject.fact(|facts| facts.compute_dtype.as_deref());
    // bf16 weights are exact in f32: only a dtype narrower than that of the file is rounded.
    let weights =
        weights.filter(|weights| on_disk.is_some_and(|on_disk| dtype::is_narrower(weights, on_disk)));
    let compute = compute.filter(|compute| dtype::is_narrower(compute, "f32"));
    let (what, reported) = match (compute, weights) {
        (Some(compute), _) => ("computes in", compute),
        (None, Some(weights)) => ("holds its weights in", weights),
        (None, None) => return None,
    };
    let rms = rms(subject).filter(|rms| *rms < AS_F32)?;
    let observed = format!("{rms:.1e}");
    let message = format!(
        "states that it {what} `{reported}`, but its log-probabilities are those of f32 (they differ by {observed}, root \
         mean square): it does not round"
    );
    Some(subject.contradiction(About::Dtype, true, reported.into(), observed, &message))
}
