//! The rule that ends an experiment when it has enough blocks.

use serde::{Deserialize, Serialize};

/// The numbers of blocks with an interim analysis. Each costs confidence (see `Design::computed_at`), so there are few. Each
/// adds about half of the blocks so far, because fewer would hardly narrow an interval.
pub const INTERIM_ANALYSES: [usize; 4] = [5, 8, 12, 20];

/// Stops by the width of the intervals alone (Chow and Robbins, "On the Asymptotic Theory of Fixed-Width Sequential
/// Confidence Intervals for the Mean", Annals of Mathematical Statistics 36 (1965)). The rule never sees estimates: an
/// experiment that ends when its result looks good has a result that looks too good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    half_width: f64,
}

/// The reason why an experiment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// Every interval was narrow enough.
    Width,
    /// Not every interval was narrow enough at the last interim analysis.
    #[serde(alias = "last_look")]
    LastAnalysis,
    /// The time for the run was over.
    Time,
    /// The number of blocks was fixed: the user set it, or the order is sequential.
    #[serde(alias = "asked")]
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Analysis {
    /// The number of blocks at the next interim analysis.
    GoOn {
        until: usize,
    },
    Stop(StoppedBy),
}

impl Default for Rule {
    /// A target of 2 %.
    fn default() -> Self {
        Self { half_width: 0.02f64.ln_1p() }
    }
}

impl Rule {
    /// A target of 0.02 ends the experiment when ratios are known to 2 %. `None` for a target that is not between 0 and 1.
    pub fn to_within(target: f64) -> Option<Self> {
        (target > 0.0 && target < 1.0).then(|| Self { half_width: target.ln_1p() })
    }

    /// The half width of an interval on log ratios that is narrow enough.
    pub fn half_width(self) -> f64 {
        self.half_width
    }

    /// The interim analysis after `blocks` blocks, with the half width of every pair's interval. The caller leaves out a pair
    /// without an interval (failed, or too few blocks): it would delay the end to the last interim analysis.
    pub fn analyse(self, blocks: usize, half_widths: &[f64]) -> Analysis {
        let narrow = half_widths.iter().all(|&half| half <= self.half_width);
        if narrow && INTERIM_ANALYSES.contains(&blocks) {
            return Analysis::Stop(StoppedBy::Width);
        }
        let next = INTERIM_ANALYSES.into_iter().find(|&until| until > blocks);
        next.map_or(Analysis::Stop(StoppedBy::LastAnalysis), |until| Analysis::GoOn { until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_intervals_stop_a_run_only_at_an_interim_analysis() {
        let rule = Rule::default();
        let found = [1, 4, 5, 6, 8, 11, 12, 13, 20].map(|blocks| rule.analyse(blocks, &[0.001, 0.019]));
        let (stop, until) = (Analysis::Stop(StoppedBy::Width), |until| Analysis::GoOn { until });
        assert_eq!(found, [until(5), until(5), stop, until(8), stop, until(12), stop, until(20), stop]);
    }

    #[test]
    fn one_wide_interval_continues_a_run_until_the_last_interim_analysis() {
        let rule = Rule::default();
        let found = [5, 8, 12, 20, 25].map(|blocks| rule.analyse(blocks, &[0.001, 0.0199]));
        let (last, until) = (Analysis::Stop(StoppedBy::LastAnalysis), |until| Analysis::GoOn { until });
        assert_eq!(found, [until(8), until(12), until(20), last, last]);
        assert_eq!(rule.analyse(5, &[f64::NAN]), until(8));
    }

    #[test]
    fn the_target_is_a_share_of_the_ratio() {
        assert_eq!(Rule::to_within(0.02), Some(Rule::default()));
        assert!((Rule::to_within(0.05).unwrap().half_width() - 1.05f64.ln()).abs() < 1e-15);
        assert_eq!([0.0, -0.1, 1.0, f64::NAN].map(Rule::to_within), [None; 4]);
    }
}
