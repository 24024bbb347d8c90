//! How it scores, against the dtype that it states. A narrow number is a rounded one, and rounding shows: who scores as f32
//! does computes in f32, and who does not, does not.

use super::{About, Doubt, Subject};
use crate::analysis::agreement::Against;
use crate::plan::dtype;

/// Engines in f32 that add up in other orders differ by less than this (per token, root mean square of log-probabilities);
/// the narrowest rounding of weights that is worth stating, f16 of f32, differs by more.
const AS_F32: f64 = 3e-5;
/// Whoever differs by more rounds somewhere: f16, the finest rounding there is below f32, was found at 0.001, f32 at 1e-6
/// (`agreement::bounds`).
const ROUNDED: f64 = 2e-4;
/// A difference over fewer tokens is chance.
const LEAST_TOKENS: usize = 64;

pub fn doubts(subject: &Subject, _: &[Subject]) -> Vec<Doubt> {
    rounds_nothing(subject).or_else(|| rounds(subject)).into_iter().collect()
}

/// States f32 throughout, on numbers that are the model's own, and scores as something narrower does.
fn rounds(subject: &Subject) -> Option<Doubt> {
    let is_wide = |dtype: &str| dtype::bits(dtype).is_some_and(|bits| bits >= 32.0);
    let on_disk = subject.configuration.model.dtype.as_deref()?;
    // Files in blocks are multiplied with rounded activations by everyone, whatever they say of it.
    let plain = dtype::bits(on_disk).is_some_and(|bits| bits >= 16.0);
    let weights = subject.fact(|facts| facts.weights_dtype.as_deref())?;
    let own = is_wide(weights) || weights.eq_ignore_ascii_case(on_disk);
    let compute = subject.fact(|facts| facts.compute_dtype.as_deref()).filter(|dtype| is_wide(dtype))?;
    let kv = subject.fact(|facts| facts.kv_dtype.as_deref()).is_none_or(is_wide);
    let rms = rms(subject).filter(|rms| plain && own && kv && *rms > ROUNDED)?;
    let seen = format!("{rms:.1e}");
    let says = format!(
        "states that it computes in `{compute}`, and its log-probabilities lie {seen} from those of f32 (root mean square): \
         something narrower is at work, or another model"
    );
    Some(subject.doubt(About::Dtype, true, compute.into(), seen, &says))
}

/// Against another's: of the witness itself nothing is rounded by definition.
fn rms(subject: &Subject) -> Option<f64> {
    let is_another = matches!(subject.agreement.against, Against::Engine { .. } | Against::Kept { .. });
    let scores = subject.agreement.scores.as_ref();
    scores.filter(|scores| is_another && scores.tokens >= LEAST_TOKENS).map(|scores| scores.rms)
}

/// States something narrower than f32, and scores as f32 does.
fn rounds_nothing(subject: &Subject) -> Option<Doubt> {
    let on_disk = subject.configuration.model.dtype.as_deref();
    let weights = subject.fact(|facts| facts.weights_dtype.as_deref());
    let compute = subject.fact(|facts| facts.compute_dtype.as_deref());
    // A model in bf16 computes in f32 as it is: only what is narrower than the file is rounded.
    let weights =
        weights.filter(|weights| on_disk.is_some_and(|on_disk| dtype::is_narrower(weights, on_disk)));
    let compute = compute.filter(|compute| dtype::is_narrower(compute, "f32"));
    let (what, stated) = match (compute, weights) {
        (Some(compute), _) => ("computes in", compute),
        (None, Some(weights)) => ("holds its weights in", weights),
        (None, None) => return None,
    };
    let rms = rms(subject).filter(|rms| *rms < AS_F32)?;
    let seen = format!("{rms:.1e}");
    let says = format!(
        "states that it {what} `{stated}`, and its log-probabilities are those of f32 (they differ by {seen}, root mean \
         square): it rounds nothing"
    );
    Some(subject.doubt(About::Dtype, true, stated.into(), seen, &says))
}
