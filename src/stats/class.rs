//! The severity of a change, for the decision whether it may pass.

use serde::Serialize;

use super::verdict::Verdict;
use super::words::Quality;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Informative,
    Warning,
    Critical,
}

/// Shares by which a metric may become worse: 0 < warning <= critical.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    warning: f64,
    critical: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { warning: 0.1, critical: 0.2 }
    }
}

impl Thresholds {
    pub fn new(warning: f64, critical: f64) -> Option<Self> {
        (warning > 0.0 && warning <= critical && critical.is_finite()).then_some(Self { warning, critical })
    }
}

impl Class {
    /// Only a certain change for the worse is more than informative: an improvement does no harm, and an inconclusive result
    /// proves nothing (it has its own exit status). The share is the printed one.
    pub fn of(verdict: Verdict, log_ratio: f64, quality: Quality, thresholds: Thresholds) -> Self {
        let worse = quality.worsening(log_ratio);
        match verdict {
            Verdict::Slower if worse > thresholds.critical => Self::Critical,
            Verdict::Slower if worse >= thresholds.warning => Self::Warning,
            _ => Self::Informative,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(verdict: Verdict, share_of_speed: f64) -> Class {
        Class::of(verdict, share_of_speed.ln(), Quality::Speed, Thresholds::default())
    }

    #[test]
    fn a_certain_worsening_is_classified_by_its_size() {
        let classes = [0.95, 0.905, 0.895, 0.805, 0.795, 0.1].map(|share| class(Verdict::Slower, share));
        use Class::{Critical, Informative, Warning};
        assert_eq!(classes, [Informative, Informative, Warning, Warning, Critical, Critical]);
    }

    #[test]
    fn improvements_and_inconclusive_results_are_informative() {
        assert_eq!(class(Verdict::Faster, 4.0), Class::Informative);
        assert_eq!([Verdict::Same, Verdict::Inconclusive].map(|it| class(it, 0.5)), [Class::Informative; 2]);
    }

    #[test]
    fn more_memory_is_judged_by_the_share_that_is_printed() {
        let more =
            |factor: f64| Class::of(Verdict::Slower, -factor.ln(), Quality::Amount, Thresholds::default());
        assert_eq!([1.09, 1.19, 1.21].map(more), [Class::Informative, Class::Warning, Class::Critical]);
    }

    #[test]
    fn thresholds_are_settable_and_in_order() {
        let strict = Thresholds::new(0.01, 0.05).unwrap();
        assert_eq!(Class::of(Verdict::Slower, 0.94f64.ln(), Quality::Speed, strict), Class::Critical);
        let wrong = [(0.2, 0.1), (0.0, 0.1), (f64::NAN, 0.2), (0.1, f64::INFINITY)];
        assert_eq!(wrong.map(|(warning, critical)| Thresholds::new(warning, critical)), [None; 4]);
    }
}
