//! The rule that ends an experiment when it has enough blocks.

use serde::{Deserialize, Serialize};

/// The numbers of blocks with an interim analysis. Each analysis costs confidence (see `Design::t_confidence`), so there are
/// few. Each step adds at least half of the blocks so far, because fewer blocks would hardly narrow an interval.
pub const INTERIM_ANALYSES: [usize; 4] = [5, 8, 12, 20];

/// Ends an experiment by the width of its intervals alone (Chow and Robbins, "On the Asymptotic Theory of Fixed-Width
/// Sequential Confidence Intervals for the Mean", Annals of Mathematical Statistics 36 (1965)). The rule never sees estimates:
/// an experiment that ends when its result looks good overstates that result.
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
    /// At the last interim analysis, some interval was still too wide.
    #[serde(alias = "last_look")]
    LastAnalysis,
    /// The time budget of the run was used up, or the user interrupted the run.
    Time,
    /// The number of blocks was fixed: the user set it, or the order is sequential.
    #[serde(alias = "asked")]
    Fixed,
}

/// The result of an interim analysis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Analysis {
    /// Measure until the next interim analysis, which is after `until` blocks.
    GoOn {
        until: usize,
    },
    Stop(StoppedBy),
}

impl Default for Rule {
    fn default() -> Self {
        Self { half_width: 0.02f64.ln_1p() }
    }
}

impl Rule {
    /// The rule for a target: with 0.02, the experiment ends when every interval has a half width of at most 2 %. `None` for a
    /// target that is not between 0 and 1.
    pub fn with_target(target: f64) -> Option<Self> {
        (target > 0.0 && target < 1.0).then(|| Self { half_width: target.ln_1p() })
    }

    /// The largest half width, as a log ratio, of an interval that is narrow enough.
    pub fn half_width(self) -> f64 {
        self.half_width
    }

    /// The interim analysis after `blocks` blocks, with the half widths of all intervals: infinity for a pair that has too few
    /// blocks. The caller leaves out failed pairs and configurations, which would delay the end until the last analysis.
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
    fn narrow_intervals_end_an_experiment_only_at_an_interim_analysis() {
        let rule = Rule::default();
        let analyses = [1, 4, 5, 6, 8, 11, 12, 13, 20]
            .map(|blocks| rule.analyse(blocks, &[0.001, 0.99 * rule.half_width()]));
        let (stop, until) = (Analysis::Stop(StoppedBy::Width), |until| Analysis::GoOn { until });
        assert_eq!(analyses, [until(5), until(5), stop, until(8), stop, until(12), stop, until(20), stop]);
    }

    #[test]
    fn one_wide_interval_continues_an_experiment_until_the_last_interim_analysis() {
        let rule = Rule::default();
        let analyses =
            [5, 8, 12, 20, 25].map(|blocks| rule.analyse(blocks, &[0.001, 1.01 * rule.half_width()]));
        let (last, until) = (Analysis::Stop(StoppedBy::LastAnalysis), |until| Analysis::GoOn { until });
        assert_eq!(analyses, [until(8), until(12), until(20), last, last]);
        assert_eq!(rule.analyse(5, &[f64::NAN]), until(8));
    }

    #[test]
    fn a_target_between_0_and_1_becomes_a_half_width_on_log_ratios() {
        assert_eq!(Rule::with_target(0.02), Some(Rule::default()));
        assert!((Rule::with_target(0.05).unwrap().half_width() - 1.05f64.ln()).abs() < 1e-15);
        assert_eq!([0.0, -0.1, 1.0, f64::NAN].map(Rule::with_target), [None; 4]);
    }
}
