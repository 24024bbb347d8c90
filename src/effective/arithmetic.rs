//! How it scores, against the dtype that it states. A narrow number is a rounded one, and rounding shows: who scores as f32
//! does computes in f32.

use super::{About, Doubt, Subject};
use crate::agreement::Against;
use crate::dtype;

/// Engines in f32 that add up in other orders differ by less than this (per token, root mean square of log-probabilities);
/// the narrowest rounding of weights that is worth stating, f16 of f32, differs by more.
const AS_F32: f64 = 3e-5;
/// A difference over fewer tokens is chance.
const LEAST_TOKENS: usize = 64;

pub fn doubts(subject: &Subject, _: &[Subject]) -> Vec<Doubt> {
    doubt(subject).into_iter().collect()
}

fn doubt(subject: &Subject) -> Option<Doubt> {
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
    // Of the witness itself nothing is rounded by definition.
    let is_another = matches!(subject.agreement.against, Against::Engine { .. } | Against::Kept { .. });
    let scores =
        subject.agreement.scores.as_ref().filter(|scores| is_another && scores.tokens >= LEAST_TOKENS)?;
    let rms = Some(scores.rms).filter(|rms| *rms < AS_F32)?;
    let seen = format!("{rms:.1e}");
    let says = format!(
        "states that it {what} `{stated}`, and its log-probabilities are those of f32 (they differ by {seen}, root mean \
         square): it rounds nothing"
    );
    Some(subject.doubt(About::Dtype, true, stated.into(), seen, &says))
}
