//! The nats that an engine's generated tokens lose, in sum over all compared outputs: by how much the verifier finds them less
//! likely than its own tokens after the same text. Rounding changes a token only where two tokens are almost equally likely. So
//! an engine that generates in a narrower dtype than it reports loses more.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::costs::Cost;
use super::greedy::Greedy;
use super::tokens::{SampleKey, Text, blocks};
use super::verifier::Verifier;
use crate::record::{CheckedOutput, DifferingToken, RunRecord};

/// The largest probability that a correct engine loses more than the bound.
const PROBABILITY: f64 = 1e-6;

/// The loss of a configuration's measured tokens, in nats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLoss {
    /// The number of compared positions.
    pub positions: usize,
    /// The number of different tokens. A pair of tokens (engine's, verifier's) counts once in an output: an output that repeats
    /// itself also repeats its near ties.
    pub differing: usize,
    /// The sum of their gaps.
    pub nats: f64,
    /// The largest loss of a correct engine over this many positions. `None` if no cost or too few gaps were measured.
    pub bound: Option<f64>,
    #[serde(skip)]
    pub largest: Option<LargestGap>,
}

/// The token that is less likely than the verifier's by the largest gap.
#[derive(Debug, Clone, PartialEq)]
pub struct LargestGap {
    pub text: Text,
    pub position: usize,
    pub gap: f64,
}

impl TokenLoss {
    pub fn of(
        record: &RunRecord,
        configuration: usize,
        verifier: &Verifier,
        greedy: Option<&Greedy>,
        cost: Option<&Cost>,
    ) -> Option<Self> {
        let plan = &record.header.plan;
        let verifier = verifier.configuration?;
        // The costs are measured on text. After dependent prompts, rounding loses more.
        let dependent: BTreeSet<SampleKey> =
            record.measured().filter(|it| it.dependent).map(|it| (it.launch, it.case, it.index)).collect();
        let is_about = |it: &&CheckedOutput| {
            it.verifier == verifier
                && plan.cases[it.case].configuration == configuration
                && !dependent.contains(&(it.launch, it.case, it.index))
        };
        let mut checked: BTreeMap<SampleKey, &CheckedOutput> = BTreeMap::new();
        for output in record.checked_outputs.iter().filter(is_about) {
            checked.insert((output.launch, output.case, output.index), output);
        }
        // An output that equals that of the verifier's own row is not checked again. Its positions count, without a loss.
        let equal = greedy.map_or(0, |it| it.equal_sample_tokens);
        let positions = checked.values().map(|it| it.positions as usize).sum::<usize>() + equal;
        let (mut differing, mut nats, mut largest) = (0, 0.0, None::<(SampleKey, usize, f64)>);
        for (&sample, output) in &checked {
            let mut pairs: BTreeSet<(u32, u32)> = BTreeSet::new();
            let mut by_gap: Vec<(&DifferingToken, f64)> =
                output.differing.iter().filter_map(|it| Some((it, gap(it)?))).collect();
            by_gap.sort_by(|(_, a), (_, b)| b.total_cmp(a));
            for (token, gap) in by_gap {
                if pairs.insert((token.engine_token, token.verifier_token)) {
                    differing += 1;
                    nats += gap;
                    if largest.is_none_or(|(_, _, largest)| gap > largest) {
                        largest = Some((sample, token.position as usize, gap));
                    }
                }
            }
        }
        let blocks = blocks(record);
        let largest = largest.map(|(sample, position, gap)| LargestGap {
            text: Text::of(plan, &blocks, sample),
            position,
            gap,
        });
        let loss = cost.and_then(|it| it.loss);
        let bound = loss.map(|it| it.bound(positions, PROBABILITY));
        // Older records have neither compared outputs nor costs.
        let is_known = !checked.is_empty() || cost.is_some();
        (positions > 0 && is_known).then_some(Self { positions, differing, nats, bound, largest })
    }
}

/// By how many nats the engine's token is less likely than the verifier's. Infinite for an impossible token; `None` if a
/// log-probability of the verifier is not a number.
pub fn gap(token: &DifferingToken) -> Option<f64> {
    let engine = token.engine_logprob.unwrap_or(f64::NEG_INFINITY);
    Some((token.verifier_logprob - engine).max(0.0)).filter(|gap| !gap.is_nan())
}
