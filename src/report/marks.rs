//! The marks and words in the cells of a report, each with its meaning. The legends of tables and `orchestrate explain` have these
//! texts.

use std::fmt;

use stats::MIN_VERDICT_BLOCKS;

/// With fewer values, the 95th percentile is about the largest value.
pub const MIN_VALUES_FOR_P95: usize = 20;
/// With fewer values, the 99th percentile depends on one or two of them.
pub const MIN_VALUES_FOR_P99: usize = 100;

/// The caution beside a geometric mean.
pub const MEAN_CAUTION: &str = "each has the same weight; no single workload has this ratio";

/// A mark beside a value, or a word in place of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    FewValues,
    NotAQuotient,
    /// A ratio whose comparison is inconclusive.
    Inconclusive,
    /// A ratio without a verdict.
    NoVerdict,
    /// A setting that the engine does not report.
    Unreported,
    Contradicted,
    NotAvailable,
    Reference,
    /// The status of an output whose check continues after the last block.
    NotYetChecked,
    /// The value of an axis in a heading.
    AxisValue,
    Interval,
    /// A line of warning.
    Warning,
    /// A headline metric in a comparison of two records.
    Headline,
    CriticalChange,
    WarningChange,
    GeometricMean,
}

impl Mark {
    pub const ALL: [Self; 16] = [
        Self::FewValues,
        Self::NotAQuotient,
        Self::Inconclusive,
        Self::NoVerdict,
        Self::Unreported,
        Self::Contradicted,
        Self::NotAvailable,
        Self::Reference,
        Self::NotYetChecked,
        Self::AxisValue,
        Self::Interval,
        Self::Warning,
        Self::Headline,
        Self::CriticalChange,
        Self::WarningChange,
        Self::GeometricMean,
    ];

    pub const fn sign(self) -> &'static str {
        match self {
            Self::FewValues => "~",
            Self::NotAQuotient => "*",
            Self::Inconclusive | Self::NoVerdict | Self::Unreported => "?",
            Self::Contradicted | Self::Warning | Self::WarningChange => "!",
            Self::CriticalChange => "!!",
            Self::GeometricMean => "geometric mean",
            Self::Headline => ">",
            Self::NotAvailable => "n/a",
            Self::Reference => "ref",
            Self::NotYetChecked => "later",
            Self::AxisValue => "@",
            Self::Interval => "[a, b]",
        }
    }

    /// The meaning, in a text that follows the sign.
    pub fn about(self) -> String {
        match self {
            Self::FewValues => format!(
                "uncertain, because it has few values: a p99 needs {MIN_VALUES_FOR_P99}, a p95 {MIN_VALUES_FOR_P95}"
            ),
            Self::NotAQuotient => {
                "ratio of paired rounds, not of the two shown values, which are medians over all launches"
                    .into()
            }
            Self::Inconclusive | Self::NoVerdict => format!(
                "after a ratio: neither faster, slower nor the same: inconclusive, or no verdict, which needs \
                 {MIN_VERDICT_BLOCKS} blocks"
            ),
            Self::Unreported => "of a setting: the engine does not report it; a value before it was requested".into(),
            Self::Contradicted => {
                "an observation contradicts a claim of the engine (a warning has both values), so it has no rank".into()
            }
            Self::NotAvailable => {
                "it was not measured, or it cannot be computed or compared; a line below the table has the reason".into()
            }
            Self::Reference => "the row is the reference: the other engines are compared with it".into(),
            Self::NotYetChecked => "the output check continues after the last block".into(),
            Self::AxisValue => {
                "in a heading, before the value of the axis that varies: `TTFT @512` has 512 prompt tokens".into()
            }
            Self::Warning => "before a line: a warning; read it before you use the results".into(),
            Self::Headline => "decides the exit status: the scenario's headline metric".into(),
            Self::CriticalChange => "critical change against the base".into(),
            Self::WarningChange => "a warning: a change for the worse against the base".into(),
            Self::GeometricMean => format!("the mean of an engine's ratios over all workloads; {MEAN_CAUTION}"),
            Self::Interval => "the interval in which the true ratio lies with 95 % confidence. A factor below 1.1 is in per cent: \
                `[8.8 % slower, 1.2x]` is from 1.09 times slower to 1.2 times as fast"
                .into(),
        }
    }

    /// The explanation below a table: `* ratio of paired rounds; ...`.
    pub fn legend(self) -> String {
        format!("{self} {}", self.about())
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.sign())
    }
}
