//! Options for the length of an experiment, its baseline, and its thresholds.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::plan::{Extent, Order};
use crate::shell::Usage;
use stats::{Class, Rule, Thresholds};

#[derive(Debug, Args)]
#[command(next_help_heading = "Length and order")]
pub struct ExtentArgs {
    /// Number of blocks, each with one launch of every engine; default: 5 to 20, until `--target` or `--budget` is reached
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub blocks: Option<u32>,
    /// Run one block: values without verdicts
    #[arg(long, conflicts_with_all = ["blocks", "target"])]
    pub quick: bool,
    /// Half-width of the ratios' intervals at which a run ends
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = target, conflicts_with = "blocks")]
    pub target: Share,
    /// Time budget of the run, as in `90s` or `5m`; default: five blocks of any length, and more within two minutes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: Option<Duration>,
    /// Longest time of one request; a slower case is reported as `too slow`
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub case_cap: Duration,
    /// Order of requests: `interleaved` among engines, or `sequential` by engine and without verdicts
    #[arg(long, value_enum, default_value_t = Order::Interleaved)]
    pub order: Order,
    /// Print the plan and its estimated time, and measure nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Baselines")]
pub struct BaselineArgs {
    /// Store this run, and the programs that it measured, under a name
    #[arg(long, value_name = "NAME")]
    pub save_baseline: Option<String>,
    /// Compare with this baseline, with the exit codes of `compare`; with --rerun-baseline also the path of a program
    #[arg(long, value_name = "NAME|PATH")]
    pub baseline: Option<String>,
    /// Measure the baseline's programs again, interleaved with the new ones, in place of using its stored values
    #[arg(long, requires = "baseline")]
    pub rerun_baseline: bool,
}

/// The thresholds of a comparison, and the changes that fail it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Judging changes")]
pub struct JudgeArgs {
    /// Lowest severity of a change in a headline metric that gives exit code 1
    #[arg(long, value_name = "CLASS", default_value = "critical", value_parser = failing_class())]
    pub fail_on: Class,
    /// Smallest worsening that is a warning
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = share)]
    pub warning: Share,
    /// Worsening above which a change is critical
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = share)]
    pub critical: Share,
    /// Compare records that are not comparable, with a warning
    #[arg(long)]
    pub force: bool,
}

impl Default for JudgeArgs {
    fn default() -> Self {
        Self { fail_on: Class::Critical, warning: Share(0.1), critical: Share(0.2), force: false }
    }
}

impl JudgeArgs {
    /// The thresholds of the command line.
    pub fn thresholds(&self) -> Result<Thresholds, Usage> {
        let Self { warning, critical, .. } = self;
        let thresholds = Thresholds::new(warning.0, critical.0);
        let percent = |share: f64| {
            format!("{:.3}", 100.0 * share).trim_end_matches('0').trim_end_matches('.').to_string()
        };
        thresholds.ok_or_else(|| {
            let (warning, critical) = (percent(warning.0), percent(critical.0));
            Usage(format!("--warning {warning}% is above --critical {critical}%"))
        })
    }
}

/// A share: 0.02 is 2 %.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share(pub f64);

impl Default for ExtentArgs {
    fn default() -> Self {
        Self {
            blocks: None,
            quick: false,
            target: Share(0.02),
            budget: None,
            case_cap: Duration::from_secs(60),
            order: Order::default(),
            dry_run: false,
        }
    }
}

impl ExtentArgs {
    pub fn extent(&self) -> Extent {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Extent {
            blocks: if self.quick { Some(1) } else { self.blocks },
            target: self.target.0,
            budget_ns: self.budget.map(ns),
            case_cap_ns: ns(self.case_cap),
        }
    }
}

impl ValueEnum for Order {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Interleaved, Self::Sequential]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Interleaved => "interleaved".into(),
            Self::Sequential => "sequential".into(),
        })
    }
}

/// The classes that `--fail-on` accepts.
fn failing_class() -> impl TypedValueParser<Value = Class> {
    PossibleValuesParser::new(["critical", "warning"]).map(|name| match name.as_str() {
        "warning" => Class::Warning,
        _ => Class::Critical,
    })
}

/// A bare number below it may be meant as a share.
const DOUBTFUL: f64 = 0.1;

/// `2%`, `2 %` or `2`.
fn share(text: &str) -> Result<Share, String> {
    let text = text.trim();
    let number = text.trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(bare) if number == text && bare > 0.0 && bare < DOUBTFUL => {
            // `0.07` is 7 %, not 7.000000000000001 %.
            let percent = (bare * 1e8).round() / 1e6;
            Err(format!("ambiguous: write `{percent}%` or `{number}%`"))
        }
        Ok(percent) if percent.is_finite() && percent > 0.0 => Ok(Share(percent / 100.0)),
        _ => Err("expected a percentage above zero, as in `2%`".into()),
    }
}

fn target(text: &str) -> Result<Share, String> {
    let share = share(text)?;
    Rule::to_within(share.0).map(|_| share).ok_or_else(|| "expected a percentage below 100".into())
}

fn duration(text: &str) -> Result<Duration, String> {
    // A bare number is seconds.
    let text = text.trim();
    let seconds = text.parse::<f64>().ok().filter(|it| it.is_finite() && *it > 0.0 && *it < 1e9);
    let parsed = seconds.map(Duration::from_secs_f64).or_else(|| humantime::parse_duration(text).ok());
    parsed.filter(|time| !time.is_zero()).ok_or_else(|| "expected a time, as in `90s` or `5m`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_may_be_bare_unless_it_could_be_a_share() {
        for text in ["2%", "2 %", "2", " 2% "] {
            assert_eq!(share(text), Ok(Share(0.02)), "{text}");
        }
        assert_eq!(share("0.02%"), Ok(Share(0.0002)));
        assert_eq!(share("0.5"), Ok(Share(0.005)));
        assert_eq!(share("0.02").unwrap_err(), "ambiguous: write `2%` or `0.02%`");
        assert_eq!(share("0.07").unwrap_err(), "ambiguous: write `7%` or `0.07%`");
        for text in ["", "%", "0", "-1", "nan", "inf%", "x"] {
            assert!(share(text).unwrap_err().starts_with("expected a percentage above zero"), "{text}");
        }
    }
}
