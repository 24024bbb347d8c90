//! The verifier's answers on tokens that an engine gave while it was measured. The question is how much likelier the verifier's
//! own token is after the same text. A difference at a near tie is no error, whatever follows it. A token that the verifier finds
//! unlikely is an error, however good the engine's scores are.

use std::collections::BTreeMap;

use serde::Serialize;

use super::tokens::{SampleKey, Text, blocks};
use super::verifier::Verifier;
use crate::record::{ReferenceToken, RunRecord};

/// The gaps of an engine's tokens: how much less likely the verifier finds them than its own, in nats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gaps {
    pub positions: usize,
    /// The number of positions where the verifier gives another token.
    pub differing: usize,
    /// The mean gap over all positions; equal tokens count as zero.
    pub mean: f64,
    pub worst: f64,
    /// The first position, in any sample, where the verifier gives another token.
    pub first: Option<usize>,
    /// The sample with the largest mean gap, where there is one.
    pub worst_run: Option<Run>,
    #[serde(skip)]
    gaps: BTreeMap<(SampleKey, u32), f64>,
}

/// The positions of one sample from its first notable gap on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    pub text: Text,
    pub from: usize,
    /// The mean gap from there on.
    pub mean: f64,
    pub positions: usize,
}

impl Gaps {
    /// Only answers of this verifier count; `notable` is the smallest gap that is worth reporting.
    pub fn of(record: &RunRecord, configuration: usize, verifier: &Verifier, notable: f64) -> Option<Self> {
        let plan = &record.header.plan;
        let own = verifier.configuration?;
        let is_about =
            |it: &&ReferenceToken| it.verifier == own && plan.cases[it.case].configuration == configuration;
        let (mut gaps, mut differing) = (BTreeMap::new(), Vec::new());
        for reference in record.reference_tokens.iter().filter(is_about) {
            let Some(gap) = gap(reference) else { continue };
            if reference.verifier_token != reference.engine_token {
                differing.push(reference.position as usize);
            }
            let sample = (reference.launch, reference.case, reference.index);
            gaps.insert((sample, reference.position), gap);
        }
        if gaps.is_empty() {
            return None;
        }
        let positions = gaps.len();
        Some(Self {
            positions,
            differing: differing.len(),
            mean: gaps.values().sum::<f64>() / positions as f64,
            worst: gaps.values().copied().fold(0.0, f64::max),
            first: differing.into_iter().min(),
            worst_run: worst_run(record, &gaps, notable),
            gaps,
        })
    }

    /// Whether the verifier checked some tokens of this case.
    pub fn is_about(&self, case: usize) -> bool {
        self.gaps.keys().any(|((_, of, _), _)| *of == case)
    }

    /// The gap of a token, where the verifier checked it.
    pub fn gap(&self, sample: SampleKey, position: usize) -> Option<f64> {
        self.gaps.get(&(sample, u32::try_from(position).ok()?)).copied()
    }
}

/// The gap of one answer. `None` without the log-probability of the verifier's own token; infinite for an impossible token.
fn gap(reference: &ReferenceToken) -> Option<f64> {
    if reference.verifier_token == reference.engine_token {
        return Some(0.0);
    }
    let own = reference.verifier_logprob.filter(|own| own.is_finite())?;
    let theirs = reference.engine_logprob.filter(|theirs| !theirs.is_nan()).unwrap_or(f64::NEG_INFINITY);
    // A negative gap is rounding between two requests to the same engine.
    Some((own - theirs).max(0.0))
}

fn worst_run(record: &RunRecord, gaps: &BTreeMap<(SampleKey, u32), f64>, notable: f64) -> Option<Run> {
    let mut samples: BTreeMap<SampleKey, Vec<(u32, f64)>> = BTreeMap::new();
    for (&(sample, position), &gap) in gaps {
        samples.entry(sample).or_default().push((position, gap));
    }
    let blocks = blocks(record);
    let runs = samples.into_iter().filter_map(|(sample, positions)| {
        let begin = positions.iter().position(|(_, gap)| *gap >= notable)?;
        let after = &positions[begin..];
        Some(Run {
            text: Text::of(&record.header.plan, &blocks, sample),
            from: after[0].0 as usize,
            mean: after.iter().map(|(_, gap)| gap).sum::<f64>() / after.len() as f64,
            positions: after.len(),
        })
    });
    // The first one of equal means.
    runs.reduce(|worst, run| if run.mean > worst.mean { run } else { worst })
}
