//! Decides whether a difference counts: first by its evidence and the noise floor, then with a correction for the number of
//! gating comparisons. Comparisons within one record and between two records differ only in their evidence and in the sources
//! of their noise floor.

use serde::Serialize;

use super::interval::{Evidence, Interval};
use super::noise_floor::{NoiseFloor, VerdictThresholds};
use super::significance::holm;
use super::verdict::Verdict;

/// A comparison before the decision whether its difference counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Undecided {
    /// The evidence on the log ratio, which is above zero if the first configuration is better.
    pub evidence: Evidence,
    /// The highest noise floor known for the two configurations on this machine.
    pub floor: Option<NoiseFloor>,
    /// Whether the rounds of the configurations were interleaved. Without interleaving, drift looks like a difference: there is
    /// evidence, but no verdict.
    pub interleaved: bool,
    /// Whether this comparison can fail a build. Holm's correction counts only gating comparisons.
    pub gating: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Decision {
    pub thresholds: VerdictThresholds,
    /// `None` for fewer than five blocks, or without interleaving.
    #[serde(skip)]
    pub verdict: Option<Verdict>,
    /// Whether Holm's correction changed the verdict from a difference to inconclusive.
    pub lost_to_correction: bool,
    /// The two-sided p value for no difference, computed from the interval so that both always agree.
    pub p: Option<f64>,
    /// `p` adjusted by Holm's method among the gating comparisons.
    pub p_adjusted: Option<f64>,
}

/// One decision for each comparison, in their order. All gating comparisons are one family: at 5 % each, one of twenty equal
/// pairs would be called different. Holm's method uses the p values of the intervals, because the report shows these. With
/// five blocks, Mann-Whitney's p is at least 0.008, which is not significant among seven comparisons.
pub fn decide(comparisons: &[Undecided]) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = comparisons.iter().map(Decision::unadjusted).collect();
    let gating = comparisons.iter().zip(&mut decisions).filter(|(it, _)| it.gating);
    let mut family: Vec<(&mut Decision, f64)> =
        gating.filter_map(|(_, decision)| decision.p.map(|p| (decision, p))).collect();
    let adjusted = holm(&family.iter().map(|(_, p)| *p).collect::<Vec<_>>());
    for ((decision, _), adjusted) in family.iter_mut().zip(adjusted) {
        let verdict = decision.verdict.map(|verdict| verdict.after_correction(adjusted));
        decision.lost_to_correction = verdict != decision.verdict;
        (decision.verdict, decision.p_adjusted) = (verdict, Some(adjusted));
    }
    decisions
}

impl Undecided {
    /// The interval that carries a verdict; `None` if there can be no verdict.
    pub fn verdict_interval(&self) -> Option<Interval> {
        self.evidence.interval_of_enough_blocks().filter(|_| self.interleaved)
    }
}

impl Decision {
    fn unadjusted(undecided: &Undecided) -> Self {
        let (interval, thresholds) =
            (undecided.verdict_interval(), VerdictThresholds::above_floor(undecided.floor));
        Self {
            thresholds,
            verdict: interval.map(|interval| Verdict::of(&interval, thresholds)),
            lost_to_correction: false,
            p: interval.map(|interval| interval.p()),
            p_adjusted: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Design;
    use crate::ratio::Ratios;

    /// A comparison whose blocks lie at most `spread` from this log ratio.
    fn undecided(log_ratio: f64, spread: f64, blocks: usize) -> Undecided {
        let shape = [-1.0, 1.0, -0.5, 0.5, 0.0];
        let blocks: Vec<f64> = (0..blocks).map(|block| log_ratio + spread * shape[block % 5]).collect();
        let evidence = Evidence::of(&Ratios::of_blocks(&blocks), Design::Fixed);
        Undecided { evidence, floor: None, interleaved: true, gating: true }
    }

    fn decide_one(undecided: Undecided) -> Decision {
        decide(&[undecided]).remove(0)
    }

    #[test]
    fn a_difference_counts_if_it_is_certain_above_the_floor_and_interleaved() {
        let faster = undecided(0.3, 0.01, 5);
        assert_eq!(decide_one(faster).verdict, Some(Verdict::Faster));
        let floor = NoiseFloor::of(&[0.4; 20]);
        let below = decide_one(Undecided { floor, ..faster });
        assert_eq!(below.verdict, Some(Verdict::Inconclusive));
        assert_eq!(below.thresholds, VerdictThresholds::above_floor(floor));
        let sequential = decide_one(Undecided { interleaved: false, ..faster });
        assert_eq!((sequential.verdict, sequential.p, sequential.p_adjusted), (None, None, None));
        let few = decide_one(undecided(0.3, 0.01, 4));
        assert_eq!((few.verdict, few.p), (None, None));
    }

    #[test]
    fn a_gating_difference_must_be_significant_among_all_gating_comparisons() {
        let barely_certain = undecided(0.1, 0.075, 5);
        let p = decide_one(barely_certain).p.unwrap();
        assert!((0.0125..0.05).contains(&p), "{p}");
        let decision_among = |others: usize, gating: bool| {
            let certain = undecided(0.3, 0.001, 5);
            let equal = undecided(0.001, 0.1, 5);
            let others = (1..=others).map(|it| if it % 2 == 0 { equal } else { certain });
            let mut comparisons: Vec<Undecided> = others.collect();
            // The position in the family does not matter.
            comparisons.insert(comparisons.len() / 2, Undecided { gating, ..barely_certain });
            decide(&comparisons)[(comparisons.len() - 1) / 2]
        };
        let alone = decision_among(0, true);
        assert_eq!((alone.verdict, alone.lost_to_correction), (Some(Verdict::Faster), false));
        assert_eq!((alone.p, alone.p_adjusted), (Some(p), Some(p)));
        // Three comparisons have a smaller p value, so Holm's method multiplies this p value by the remaining four.
        let among_many = decision_among(6, true);
        assert_eq!((among_many.verdict, among_many.lost_to_correction), (Some(Verdict::Inconclusive), true));
        assert_eq!((among_many.p, among_many.p_adjusted), (Some(p), Some(4.0 * p)));
        let not_gating = decision_among(6, false);
        assert_eq!((not_gating.verdict, not_gating.lost_to_correction), (Some(Verdict::Faster), false));
        assert_eq!(not_gating.p_adjusted, None);
    }
}
