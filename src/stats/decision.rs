//! Decides whether a difference counts: first by its evidence against the noise floor, then among all comparisons that gate.
//! Comparisons within one record and between two differ only in their evidence and in the sources of their noise floor.

use serde::Serialize;

use super::interval::{Evidence, Interval};
use super::noise_floor::{Epsilon, NoiseFloor};
use super::significance::holm;
use super::verdict::Verdict;

/// A comparison before the decision whether its difference counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Undecided {
    /// On the log ratio; above zero is better.
    pub evidence: Evidence,
    /// The highest noise floor known for the two configurations on this machine.
    pub floor: Option<NoiseFloor>,
    /// Whether the configurations were measured in turn. If they were measured one after the other, drift looks like a
    /// difference: there is evidence, but no verdict.
    pub interleaved: bool,
    /// Whether a build fails on it. Only gating comparisons share in the risk of a false alarm.
    pub gating: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Decision {
    pub epsilon: Epsilon,
    /// `None` for fewer than five blocks, or where the configurations were not measured in turn.
    #[serde(skip)]
    pub verdict: Option<Verdict>,
    /// The verdict was a difference by itself, but not among all gating comparisons.
    pub lost_among_many: bool,
    /// The two-sided p value of the interval for no difference, so that it always agrees with the interval.
    pub p: Option<f64>,
    /// `p` adjusted by Holm's method among the gating comparisons.
    pub p_adjusted: Option<f64>,
}

/// One decision for each comparison, in their order. All that gate are one family: at 5 % each, one of twenty true equalities
/// would be called a difference. Holm's step-down uses the p values of the intervals, because those are shown. With five
/// blocks, Mann-Whitney's p is at least 0.008, which is not significant among seven.
pub fn decide(all: &[Undecided]) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = all.iter().map(Decision::alone).collect();
    let gating = all.iter().zip(&mut decisions).filter(|(it, _)| it.gating);
    let mut family: Vec<(&mut Decision, f64)> =
        gating.filter_map(|(_, decision)| decision.p.map(|p| (decision, p))).collect();
    let adjusted = holm(&family.iter().map(|(_, p)| *p).collect::<Vec<_>>());
    for ((decision, _), adjusted) in family.iter_mut().zip(adjusted) {
        let verdict = decision.verdict.map(|verdict| verdict.among_many(adjusted));
        decision.lost_among_many = verdict != decision.verdict;
        (decision.verdict, decision.p_adjusted) = (verdict, Some(adjusted));
    }
    decisions
}

impl Undecided {
    /// The interval that carries a verdict.
    pub fn verdict_interval(&self) -> Option<Interval> {
        self.evidence.firm().filter(|_| self.interleaved)
    }
}

impl Decision {
    fn alone(undecided: &Undecided) -> Self {
        let (interval, epsilon) = (undecided.verdict_interval(), Epsilon::over(undecided.floor));
        Self {
            epsilon,
            verdict: interval.map(|interval| Verdict::of(&interval, epsilon)),
            lost_among_many: false,
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

    /// Blocks around that log ratio, with that spread.
    fn undecided(log_ratio: f64, apart: f64, blocks: usize) -> Undecided {
        let shape = [-1.0, 1.0, -0.5, 0.5, 0.0];
        let blocks: Vec<f64> = (0..blocks).map(|block| log_ratio + apart * shape[block % 5]).collect();
        let evidence = Evidence::of(&Ratios::of_blocks(&blocks), Design::Fixed);
        Undecided { evidence, floor: None, interleaved: true, gating: true }
    }

    fn alone(undecided: Undecided) -> Decision {
        decide(&[undecided]).remove(0)
    }

    #[test]
    fn a_difference_counts_where_it_is_certain_beyond_the_floor_and_measured_in_turn() {
        let faster = undecided(0.3, 0.01, 5);
        assert_eq!(alone(faster).verdict, Some(Verdict::Faster));
        let floor = NoiseFloor::of(&[0.4; 20]);
        let below = alone(Undecided { floor, ..faster });
        assert_eq!((below.verdict, below.epsilon), (Some(Verdict::Inconclusive), Epsilon::over(floor)));
        let sequential = alone(Undecided { interleaved: false, ..faster });
        assert_eq!((sequential.verdict, sequential.p, sequential.p_adjusted), (None, None, None));
        let few = alone(undecided(0.3, 0.01, 4));
        assert_eq!((few.verdict, few.p), (None, None));
    }

    #[test]
    fn a_difference_that_gates_must_hold_among_all_that_do() {
        let barely = undecided(0.1, 0.075, 5);
        let p = alone(barely).p.unwrap();
        assert!((0.0125..0.05).contains(&p), "{p}");
        let among = |others: usize, gating: bool| {
            let certain = undecided(0.3, 0.001, 5);
            let nothing = undecided(0.001, 0.1, 5);
            let others = (1..=others).map(|it| if it % 2 == 0 { nothing } else { certain });
            let mut all: Vec<Undecided> = others.collect();
            // Its position in the family does not matter.
            all.insert(all.len() / 2, Undecided { gating, ..barely });
            decide(&all)[(all.len() - 1) / 2]
        };
        let alone = among(0, true);
        assert_eq!((alone.verdict, alone.lost_among_many), (Some(Verdict::Faster), false));
        assert_eq!((alone.p, alone.p_adjusted), (Some(p), Some(p)));
        // Three others are certain; of the other four it is the best.
        let among_many = among(6, true);
        assert_eq!((among_many.verdict, among_many.lost_among_many), (Some(Verdict::Inconclusive), true));
        assert_eq!((among_many.p, among_many.p_adjusted), (Some(p), Some(4.0 * p)));
        let informative = among(6, false);
        assert_eq!((informative.verdict, informative.lost_among_many), (Some(Verdict::Faster), false));
        assert_eq!(informative.p_adjusted, None);
    }
}
