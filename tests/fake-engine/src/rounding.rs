//! Rounding in narrow dtypes: errors of log-probabilities, and other greedy ids at near ties.

use crate::answer::{mix, normal, uniform};
use crate::script::Script;

/// The log-probability of the likeliest id at a near tie.
pub const NEAR_TIE_LOGPROB: f64 = -0.8;
/// The largest difference between the log-probabilities of the two likeliest ids at a near tie.
const LARGEST_GAP: f64 = 0.2;
// Each of these gives an independent random number for the same state.
const TIE: u64 = 1;
const GAP: u64 = 2;
const DIFFERENCE: u64 = 3;
/// If a model's path names one of these dtypes, its weights were rounded to that dtype.
const DTYPES_OF_PATHS: [&str; 2] = ["q8_0", "q4_0"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Score,
    Generate,
}

/// The dtype in which an engine computes after a load: that of the model's path, else the requested one.
pub fn dtype_of<'a>(model: &'a str, requested: Option<&'a str>) -> &'a str {
    let of_path = DTYPES_OF_PATHS.into_iter().find(|dtype| model.contains(dtype));
    of_path.or(requested).unwrap_or("f32")
}

fn dtype(script: &Script, work: Work) -> &str {
    let of_generate = script.text("generates_in");
    if work == Work::Generate && !of_generate.is_empty() { of_generate } else { script.text("computes_in") }
}

/// The error of a log-probability. It depends only on the dtype and on the ids so far.
pub fn error(script: &Script, work: Work, state: u64) -> f64 {
    let dtype = dtype(script, work);
    let deviation = script.value("rounding")[dtype].as_f64().unwrap_or(0.0);
    let seed = dtype.bytes().fold(state, |seed, byte| mix(seed ^ u64::from(byte)));
    if deviation == 0.0 { 0.0 } else { deviation * normal(seed) }
}

/// By how much the log-probability of the second id is below that of the likeliest one, if this is a near tie.
pub fn gap(script: &Script, state: u64) -> Option<f64> {
    let share = script.value("near_ties").as_f64().unwrap_or(0.0);
    (uniform(mix(state ^ TIE)) < share).then(|| LARGEST_GAP * uniform(mix(state ^ GAP)))
}

/// Whether rounding makes the second id the likeliest one.
pub fn is_second_likelier(script: &Script, work: Work, state: u64) -> bool {
    gap(script, state).is_some_and(|gap| error(script, work, mix(state ^ DIFFERENCE)) > gap)
}
