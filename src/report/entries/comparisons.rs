//! Comparisons for programs.

use serde::Serialize;

use crate::report::run_report::Report;
use crate::report::verdicts::{Derived, Noise, PairVerdict, evidence};
use stats::{Probabilities, StoppedBy, Verdict};

/// A comparison. A ratio above 1 is better, for every metric.
#[derive(Serialize)]
pub struct ComparisonEntry<'a> {
    case: &'a str,
    metric: &'static str,
    is_headline: bool,
    engine: &'a str,
    against: &'a str,
    verdict: Option<Verdict>,
    sentence: &'a str,
    /// The reason why the fields below are empty.
    refused: Option<&'a str>,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    evidence: Option<&'static str>,
    /// The bootstrap interval, as a check of the first.
    bootstrap: Option<(f64, f64)>,
    /// The threshold of a difference, as a share.
    epsilon: Option<f64>,
    same_within: Option<f64>,
    lost_among_many: Option<bool>,
    blocks: Option<usize>,
    unpaired: Option<usize>,
    stopped_by: Option<StoppedBy>,
    p: Option<Probabilities>,
}

/// A preset against another of the same engine.
#[derive(Serialize)]
pub struct DerivedEntry<'a> {
    says: &'a str,
    comparisons: Vec<DerivedComparison<'a>>,
}

#[derive(Serialize)]
struct DerivedComparison<'a> {
    #[serde(flatten)]
    comparison: ComparisonEntry<'a>,
    /// The difference in time; of a rate, for each token. It is negative where the preset takes less.
    difference_ns: Option<f64>,
}

pub fn derived<'a>(report: &Report, derived: &'a Derived) -> DerivedEntry<'a> {
    let entry = |judged: &'a PairVerdict| DerivedComparison {
        comparison: comparison(judged),
        difference_ns: judged.difference_ns(&report.rows),
    };
    DerivedEntry { says: &derived.says, comparisons: derived.judged.iter().map(entry).collect() }
}

/// The difference between a configuration and its twin in this run.
#[derive(Serialize)]
pub struct NoiseEntry<'a> {
    engine: &'a str,
    case: &'a str,
    share: f64,
    blocks: usize,
}

pub fn comparison(judged: &PairVerdict) -> ComparisonEntry<'_> {
    let found = judged.result.as_ref().ok();
    let (low, high) = judged.bounds().unzip();
    ComparisonEntry {
        case: &judged.case,
        metric: judged.metric.name(),
        is_headline: judged.is_headline,
        engine: &judged.engine,
        against: &judged.against,
        verdict: found.and_then(|found| found.decision.verdict),
        sentence: &judged.sentence,
        refused: judged.result.as_ref().err().map(String::as_str),
        ratio: judged.times(),
        low,
        high,
        evidence: found.map(|found| evidence(&found.evidence)),
        bootstrap: found.and_then(|found| found.bootstrap).map(|(low, high)| (low.exp(), high.exp())),
        epsilon: found.map(|found| found.decision.epsilon.difference().exp_m1()),
        same_within: found.map(|found| found.decision.epsilon.same().exp_m1()),
        lost_among_many: found.map(|found| found.decision.lost_among_many),
        blocks: found.map(|found| found.blocks),
        unpaired: found.map(|found| found.unpaired),
        stopped_by: found.map(|found| found.stopped_by),
        p: found.map(|found| found.p),
    }
}

pub fn noise(noise: &Noise) -> impl Iterator<Item = NoiseEntry<'_>> {
    noise.floors.iter().map(|(case, floor)| NoiseEntry {
        engine: &noise.engine,
        case,
        share: floor.log_ratio().exp_m1(),
        blocks: floor.blocks(),
    })
}
