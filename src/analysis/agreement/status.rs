//! The verification of one configuration: the status and the results of the checks.

use serde::Serialize;

use super::bounds::{AGREES, Bounds, EXACT, Precision};
use super::costs::Cost;
use super::early_text::EarlyText;
use super::gaps::Gaps;
use super::greedy::Greedy;
use super::scores::Scores;
use super::token_loss::TokenLoss;
use super::verifier::Against;
use crate::plan::Verification;
use crate::record::RunRecord;
use crate::shell::HINT;
use crate::text::significant_digits;

/// The most digits of a value near a bound.
const MAX_DIGITS_BESIDE_A_BOUND: i32 = 6;

/// The features of an engine that let a verifier check it.
pub const FEATURES: [&str; 2] = ["`score`", "`prompt_ids`"];

/// The next step for the author of an engine that lacks these features.
pub fn implement(features: &[&str]) -> String {
    format!("implement {}", features.join(" and "))
}

/// The verification status of an engine's output, in the order from the best one to the worst one, then unverified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The verifier's output, except for rounding in f32; all tokens are the same.
    Exact,
    /// As close as engines that round to 16 or 8 bits.
    Agrees,
    /// The tokens agree, in an engine that gives no log-probabilities.
    TokensAgree,
    /// The text is that of tokens that agree, in an engine that gives neither ids nor log-probabilities.
    TextAgrees,
    /// Not close, but within the bounds of its precision.
    Drifts,
    /// Not the output of this model.
    Wrong,
    /// The check is incomplete: the tokens of a workload, or the longest held-out text, were not compared.
    Unverified,
}

/// The status of one configuration, with the results of the checks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    pub status: Status,
    pub against: Against,
    /// The precision that sets the bounds.
    pub precision: Precision,
    /// The cost of the reported dtypes on this model, if it was measured. It narrows the bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    #[serde(skip)]
    pub bounds: Bounds,
    pub scores: Option<Scores>,
    pub greedy: Option<Greedy>,
    pub gaps: Option<Gaps>,
    /// By how many nats in sum the verifier finds the engine's generated tokens less likely than its own. `None` if no whole
    /// output was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_loss: Option<TokenLoss>,
    /// The answers to prompts whose next token depends on their first half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_text: Option<EarlyText>,
    /// The features that the engine lacks, if they are the reason why its output is unverified.
    #[serde(skip)]
    pub lacking: Vec<&'static str>,
    /// The reasons why the status is not better: sentences about `it`, the engine.
    pub reasons: Vec<String>,
}

impl Status {
    pub const ALL: [Self; 7] = [
        Self::Exact,
        Self::Agrees,
        Self::TokensAgree,
        Self::TextAgrees,
        Self::Drifts,
        Self::Wrong,
        Self::Unverified,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Agrees => "agrees",
            Self::TokensAgree => "tokens agree",
            Self::TextAgrees => "text agrees",
            Self::Drifts => "drifts",
            Self::Wrong => "wrong",
            Self::Unverified => "unverified",
        }
    }

    /// The meaning, as sentences that follow the name.
    pub fn about(self) -> String {
        match self {
            Self::Exact => format!("the same tokens as the verifier, and log-probabilities within {EXACT} nats of the verifier's."),
            Self::Agrees => format!(
                "log-probabilities within {AGREES} nats of the verifier's, like correct engines in 16 or 8 bits. In f32 the limit \
                 is {}. The limit is lower if the run measured the effect of the engine's dtype.",
                Precision::Full.bounds().rms
            ),
            Self::TokensAgree => {
                "the tokens are those of the verifier, or almost as likely. The engine gives no log-probabilities.".into()
            }
            Self::TextAgrees => {
                "the text is that of the verifier's tokens, or of almost as likely ones. The engine gives no log-probabilities."
                    .into()
            }
            Self::Drifts => {
                "the output differs clearly from the verifier's, but not more than the engine's precision may cause.".into()
            }
            Self::Wrong => {
                "the output is not that of this model: it differs by more than the precision may cause. Its speed is not compared."
                    .into()
            }
            Self::Unverified => {
                "it is unknown whether the engine computes the model: a part of the check is missing. It has no rank.".into()
            }
        }
    }
}

impl Agreement {
    /// The first hint that was recorded with a reason.
    pub fn recorded_hint(&self) -> Option<&str> {
        let hint = self.reasons.iter().find_map(|reason| Some(reason.split_once(HINT)?.1))?;
        Some(hint.strip_prefix('`').and_then(|it| it.strip_suffix('`')).unwrap_or(hint))
    }

    /// The step that probably leads to a verified output: a recorded hint, work of the engine's author, or another verifier. `None`
    /// if no step is known, or if none is needed.
    pub fn next_step(&self) -> Option<String> {
        if self.status != Status::Unverified {
            return None;
        }
        let without_hint = || match (self.lacking.as_slice(), &self.against) {
            ([], Against::Nothing) => Some("--verifier ENGINE".to_string()),
            ([], _) => None,
            (features, Against::Nothing) => Some(format!("{}, or name --verifier", implement(features))),
            (features, _) => Some(implement(features)),
        };
        self.recorded_hint().map(String::from).or_else(without_hint)
    }

    /// The root mean square of the differences from the verifier's log-probabilities, over all tokens.
    pub fn rms(&self) -> Option<f64> {
        self.scores.as_ref().map(|scores| scores.rms)
    }

    pub fn is_wrong(&self) -> bool {
        self.status == Status::Wrong
    }

    /// The lowest position in a text where the verifier gives another token.
    pub fn first_difference(&self) -> Option<usize> {
        let greedy = self.greedy.as_ref().and_then(|greedy| greedy.first.as_ref()).map(|it| it.position);
        let gaps = self.gaps.as_ref().and_then(|gaps| gaps.first);
        greedy.into_iter().chain(gaps).min()
    }

    /// The text in a table: `exact`, `agrees 0.012`, `wrong 2.3`.
    pub fn cell(&self) -> String {
        let name = self.status.name();
        let bounds = [EXACT, AGREES, self.bounds.rms];
        self.shown_rms().map_or_else(|| name.into(), |rms| format!("{name} {}", digits_beside(rms, &bounds)))
    }

    /// The root mean square that a table shows next to the status, if it shows one.
    pub fn shown_rms(&self) -> Option<f64> {
        let has_number = matches!(self.status, Status::Agrees | Status::Drifts | Status::Wrong);
        // A number near 0 would not show why the tokens of an engine with exact scores differ.
        self.rms().filter(|rms| has_number && *rms > EXACT)
    }
}

/// The reason why a record has no output checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoChecks {
    /// The user turned output checks off.
    ByRequest,
    /// The record is older than output checks.
    ByAge,
}

/// The first version of records with output checks.
const MIN_RECORD_VERSION: u32 = 3;

/// The reason why a record has no output checks; `None` for a record with output checks.
pub fn no_checks(record: &RunRecord) -> Option<NoChecks> {
    if record.header.plan.verification == Verification::Off {
        return Some(NoChecks::ByRequest);
    }
    (record.header.record_version < MIN_RECORD_VERSION).then_some(NoChecks::ByAge)
}

/// The value with two significant digits, or as a whole number from 10 to 9,999.
pub fn two_digits(value: f64) -> String {
    if !value.is_finite() {
        return "infinite".into();
    }
    let written = format!("{value:.1e}");
    let exponent: i32 = written.rsplit_once('e').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
    match exponent {
        _ if value == 0.0 => "0".into(),
        -4..=0 => format!("{value:.*}", (1 - exponent) as usize),
        1..=3 => format!("{value:.0}"),
        _ => written,
    }
}

/// The value with two digits, or with as many as show on which side of each bound it is: `0.00103`, because `0.0010` would be
/// within a bound of 0.001.
pub fn digits_beside(value: f64, bounds: &[f64]) -> String {
    let is_on_its_side = |text: &str| {
        bounds.iter().all(|bound| text.parse().is_ok_and(|shown: f64| (shown > *bound) == (value > *bound)))
    };
    let more = (3..=MAX_DIGITS_BESIDE_A_BOUND).map(|digits| significant_digits(value, digits));
    let written = two_digits(value);
    std::iter::once(written.clone()).chain(more).find(|text| is_on_its_side(text)).unwrap_or(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_near_a_bound_has_the_digits_that_show_its_side() {
        let shown = |value| digits_beside(value, &[0.001, 0.1]);
        assert_eq!(
            [0.00103, 0.001002, 0.0012, 0.1004, 0.0996].map(shown),
            ["0.00103", "0.001002", "0.0012", "0.1004", "0.10"]
        );
        assert_eq!(shown(0.1), "0.10");
        assert_eq!(shown(f64::INFINITY), "infinite");
    }

    #[test]
    fn values_are_written_with_two_digits() {
        let written = [0.012345, 0.14, 2.34, 0.0, 1.2e-6, 12.6, f64::INFINITY, 1.5e300].map(two_digits);
        assert_eq!(written, ["0.012", "0.14", "2.3", "0", "1.2e-6", "13", "infinite", "1.5e300"]);
    }
}
