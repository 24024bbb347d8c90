//! Compares the tokens of measured requests with the verifier's tokens after the same text. The gap of a token is the
//! verifier's log-probability of its own token minus that of the engine's token. A difference at a near tie is no error. A token
//! that the verifier finds unlikely is an error, even if the engine's scores are good.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::tokens::{SampleKey, Text, blocks};
use super::verifier::Verifier;
use crate::record::{ReferenceToken, RunRecord, Sample};

/// The gaps of an engine's tokens, in nats: by how much the verifier's tokens are more likely.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gaps {
    /// The number of positions that the verifier checked.
    pub positions: usize,
    /// The number of positions where the verifier gives another token.
    pub differing: usize,
    /// The mean gap over all checked positions; equal tokens count as zero.
    pub mean: f64,
    /// The largest gap.
    pub worst: f64,
    /// The lowest position in a sample where the verifier gives another token.
    pub first: Option<usize>,
    /// The tail with the largest mean gap. `None` if no gap is notable. In JSON it is `worst_run`.
    #[serde(rename = "worst_run")]
    pub worst_tail: Option<Tail>,
    #[serde(skip)]
    gaps: BTreeMap<(SampleKey, u32), f64>,
    /// The cases with checked tokens.
    #[serde(skip)]
    cases: BTreeSet<usize>,
}

/// The checked positions of one sample from the first notable gap on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tail {
    pub text: Text,
    /// The position of the first notable gap, counted from 0.
    pub from: usize,
    /// The mean gap from that position on.
    pub mean: f64,
    /// The number of checked positions from there on.
    pub positions: usize,
}

impl Gaps {
    /// Only this verifier's answers about samples for which `counts` is true are used. `notable` is the smallest gap that is
    /// worth reporting, in nats.
    pub fn of(
        record: &RunRecord,
        configuration: usize,
        verifier: &Verifier,
        notable: f64,
        counts: impl Fn(&Sample) -> bool,
    ) -> Option<Self> {
        let plan = &record.header.plan;
        let verifier = verifier.configuration?;
        let is_about = |it: &&ReferenceToken| {
            it.verifier == verifier && plan.cases[it.case].configuration == configuration
        };
        let left_out: BTreeSet<SampleKey> =
            record.measured().filter(|it| !counts(it)).map(|it| (it.launch, it.case, it.index)).collect();
        let (mut gaps, mut differing, mut cases) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        for answer in record.reference_tokens.iter().filter(is_about) {
            let Some(gap) = gap(answer) else { continue };
            cases.insert(answer.case);
            if left_out.contains(&(answer.launch, answer.case, answer.index)) {
                continue;
            }
            if answer.verifier_token != answer.engine_token {
                differing.push(answer.position as usize);
            }
            let sample = (answer.launch, answer.case, answer.index);
            gaps.insert((sample, answer.position), gap);
        }
        if cases.is_empty() {
            return None;
        }
        let positions = gaps.len();
        Some(Self {
            positions,
            differing: differing.len(),
            mean: gaps.values().sum::<f64>() / positions.max(1) as f64,
            worst: gaps.values().copied().fold(0.0, f64::max),
            first: differing.into_iter().min(),
            worst_tail: worst_tail(record, &gaps, notable),
            gaps,
            cases,
        })
    }

    /// Whether the verifier checked some tokens of this case.
    pub fn is_about(&self, case: usize) -> bool {
        self.cases.contains(&case)
    }

    /// The gap of a token, if the verifier checked the token.
    pub fn gap(&self, sample: SampleKey, position: usize) -> Option<f64> {
        self.gaps.get(&(sample, u32::try_from(position).ok()?)).copied()
    }
}

/// The gap of one answer: 0 for equal tokens, infinite for an impossible token. `None` for different tokens without the
/// log-probability of the verifier's own token.
pub fn gap(answer: &ReferenceToken) -> Option<f64> {
    if answer.verifier_token == answer.engine_token {
        return Some(0.0);
    }
    let verifier = answer.verifier_logprob.filter(|it| it.is_finite())?;
    let engine = answer.engine_logprob.filter(|it| !it.is_nan()).unwrap_or(f64::NEG_INFINITY);
    // A negative gap is a rounding difference between two requests to the verifier.
    Some((verifier - engine).max(0.0))
}

fn worst_tail(record: &RunRecord, gaps: &BTreeMap<(SampleKey, u32), f64>, notable: f64) -> Option<Tail> {
    let mut samples: BTreeMap<SampleKey, Vec<(u32, f64)>> = BTreeMap::new();
    for (&(sample, position), &gap) in gaps {
        samples.entry(sample).or_default().push((position, gap));
    }
    let blocks = blocks(record);
    let tails = samples.into_iter().filter_map(|(sample, positions)| {
        let first = positions.iter().position(|(_, gap)| *gap >= notable)?;
        let tail = &positions[first..];
        Some(Tail {
            text: Text::of(&record.header.plan, &blocks, sample),
            from: tail[0].0 as usize,
            mean: tail.iter().map(|(_, gap)| gap).sum::<f64>() / tail.len() as f64,
            positions: tail.len(),
        })
    });
    // Among equal means, the first tail counts.
    tails.reduce(|worst, tail| if tail.mean > worst.mean { tail } else { worst })
}
