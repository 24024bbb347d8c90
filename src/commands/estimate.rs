//! An estimate of a run's time, from the times of the records in its results folder: for the dry run, and for the warning before a run
//! whose budget is too short. Measures nothing.

use std::path::Path;
use std::time::Duration;

use super::earlier_times::{BlockExtent, EarlierTimes, duration};
use crate::machine::Machine;
use crate::plan::budget::{self, FIRST_CHECK_DIVISOR, RunTimes, TokenCheck};
use crate::plan::{Configuration, Order, Plan, Role, Verification};
use crate::record::{self, RunRecord};
use crate::run;
use crate::shell::this_command_with_value;
use crate::text;
use stats::{INTERIM_ANALYSES, MIN_VERDICT_BLOCKS};

/// The maximum number of earlier records that are read, the newest first.
const MAX_RECORDS: usize = 30;

/// The parts of an estimate that a run needs before it begins.
#[derive(Debug, Default)]
pub struct BeforeRun {
    /// The warning about a budget that is too short.
    pub warning: Option<String>,
    /// The time of the check of the measured tokens.
    pub token_check: Option<Duration>,
}

impl BeforeRun {
    /// The estimate for a run that has a budget. No record is read for another run.
    pub fn of(plan: &Plan, results: &Path) -> Self {
        let Some(budget) = Budget::of(plan) else { return Self::default() };
        let expected = Expected::of(plan, &EarlierTimes::of(&history(results)), &[]);
        let token_check = match expected.token_check {
            TokenCheck::Takes(time) => Some(time),
            TokenCheck::Off | TokenCheck::Unknown => None,
        };
        Self { warning: budget.warning(&expected), token_check }
    }
}

/// Reads the newest `MAX_RECORDS` files of a folder, in order of time. Unreadable ones and those of other machines are ignored.
pub fn history(results: &Path) -> Vec<RunRecord> {
    let mut paths = record::files_in(results).unwrap_or_default();
    let newest = paths.split_off(paths.len().saturating_sub(MAX_RECORDS));
    let mut records: Vec<RunRecord> = newest.iter().filter_map(|path| record::read(path).ok()).collect();
    if !records.is_empty() {
        let here = Machine::probe().fingerprint();
        records.retain(|it| it.header.fingerprint == here);
    }
    records
}

/// The expected times of a run, from earlier runs. Configurations of unknown time count as 0.
#[derive(Debug, Default)]
pub struct Expected<'a> {
    /// The time of the first output checks.
    pub checks_ns: f64,
    /// The time for these checks in which the share of each is long enough.
    first_checks: Duration,
    /// The time of scoring texts before the first block, with the launches for it.
    pub scoring_ns: f64,
    /// The time of a block with all its rounds.
    pub block_ns: f64,
    /// The time of a block with one round of each workload, after the shortest warm-up.
    min_block_ns: f64,
    pub token_check: TokenCheck,
    /// The number of configurations of known time, without twins.
    pub known: usize,
    /// The labels of the configurations of unknown time, without twins.
    pub unknown: Vec<&'a str>,
}

impl<'a> Expected<'a> {
    /// `prepared_first`: the engines that the run builds or sets up first, although they cannot start now.
    pub fn of(plan: &'a Plan, times: &EarlierTimes, prepared_first: &[String]) -> Self {
        let can_start =
            |it: &Configuration| it.unavailable.is_none() || is_prepared_first(it, prepared_first);
        let is_measured = |it: &&Configuration| can_start(it) && it.role != Some(Role::Verifier);
        let checks = times.first_checks(plan);
        let (blocks, _) = planned_blocks(plan);
        let token_check =
            run::token_check_time(plan, blocks as u32, |verifier| times.of_verifier(plan, verifier));
        let mut expected = Self {
            checks_ns: checks.iter().map(|(_, time)| time.as_nanos() as f64).sum(),
            first_checks: budget::time_for_shares(&checks),
            token_check: match plan.verification {
                Verification::Off => TokenCheck::Off,
                Verification::Usual | Verification::Named => TokenCheck::of(plan, token_check),
            },
            ..Self::default()
        };
        for configuration in plan.configurations.iter().filter(is_measured) {
            let ns_of = |extent| match plan.has_blocks() {
                true => times.block_ns(plan, configuration, extent),
                false => Some(0.0),
            };
            let of_block = ns_of(BlockExtent::Usual).zip(ns_of(BlockExtent::Shortest));
            // An unknown time of scoring must not hide the estimate of the blocks.
            let scoring_ns =
                times.scoring_ns(plan, configuration).or_else(|| plan.has_blocks().then_some(0.0));
            // The user named no twin and no null engine. A twin has the times of its row.
            let is_named = !matches!(configuration.role, Some(Role::Twin { .. } | Role::NullEngine));
            match of_block.zip(scoring_ns) {
                Some(((ns, min_ns), scoring_ns)) => {
                    expected.known += usize::from(is_named);
                    expected.block_ns += ns;
                    expected.min_block_ns += min_ns;
                    expected.scoring_ns += scoring_ns;
                }
                None => expected.unknown.extend(is_named.then_some(&*configuration.label)),
            }
        }
        expected
    }
}

/// Whether an engine that cannot start now is built or set up by the run.
pub fn is_prepared_first(configuration: &Configuration, prepared_first: &[String]) -> bool {
    !configuration.unsupported && prepared_first.contains(&configuration.engine)
}

/// The fewest and the most blocks of a run that the budget does not end.
pub fn planned_blocks(plan: &Plan) -> (usize, usize) {
    match (plan.extent.blocks, plan.order) {
        (Some(blocks), _) => (blocks as usize, blocks as usize),
        (None, Order::Sequential) => (MIN_VERDICT_BLOCKS, MIN_VERDICT_BLOCKS),
        (None, Order::Interleaved) => (MIN_VERDICT_BLOCKS, INTERIM_ANALYSES[INTERIM_ANALYSES.len() - 1]),
    }
}

/// A time budget, and the blocks that should fit into it.
pub struct Budget {
    ns: f64,
    is_default: bool,
    blocks: usize,
    max_blocks: usize,
}

/// The parts of a run that fit into a budget. Unknown times count as 0, so they make no budget too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The time of a configuration is unknown.
    Unknown,
    /// This many complete blocks, at least the wanted number.
    Complete(usize),
    /// The wanted number of blocks, with fewer rounds.
    FewerRounds,
    /// Fewer blocks than wanted, of one round each.
    TooShort(usize),
    /// The output checks have too little time.
    ShortChecks,
}

impl Budget {
    /// `None` without a budget, or without blocks.
    pub fn of(plan: &Plan) -> Option<Self> {
        let (blocks, max_blocks) = planned_blocks(plan);
        let budget = plan.extent.budget().filter(|_| plan.has_blocks())?;
        let (ns, is_default) = (budget.as_nanos() as f64, plan.extent.has_default_budget);
        Some(Self { ns, is_default, blocks, max_blocks })
    }

    fn fit(&self, expected: &Expected) -> Fit {
        let checks_ns = match self.is_default {
            true => expected.checks_ns,
            false => expected.checks_ns.min(self.ns / f64::from(FIRST_CHECK_DIVISOR)),
        };
        let left = duration(self.ns - checks_ns - expected.scoring_ns);
        let reserved = expected.token_check.reserved(left);
        // The default budget ends no check.
        let is_check_short = !self.is_default
            && (duration(self.ns) < expected.first_checks * FIRST_CHECK_DIVISOR
                || matches!(expected.token_check, TokenCheck::Takes(time) if reserved < time));
        let (left_ns, wanted) = ((left - reserved).as_nanos() as f64, self.blocks as f64);
        match () {
            () if expected.min_block_ns * wanted > left_ns => {
                Fit::TooShort((left_ns / expected.min_block_ns) as usize)
            }
            () if is_check_short => Fit::ShortChecks,
            () if expected.block_ns <= 0.0 || !expected.unknown.is_empty() => Fit::Unknown,
            () if expected.block_ns * wanted <= left_ns => {
                Fit::Complete(((left_ns / expected.block_ns) as usize).min(self.max_blocks))
            }
            () => Fit::FewerRounds,
        }
    }

    /// The budget, and the blocks that fit into it.
    pub fn describe(&self, expected: &Expected) -> String {
        let kind = if self.is_default { "default time budget" } else { "time budget" };
        let (budget, wanted) = (format!("the {kind} is {}", rounded_time(self.ns)), self.blocks);
        // The run keeps this time, so fewer rounds fit than the times of the blocks suggest.
        let kept = match expected.token_check {
            TokenCheck::Unknown => "; the run keeps up to half of it for the check of the measured tokens",
            TokenCheck::Off | TokenCheck::Takes(_) => "",
        };
        match self.fit(expected) {
            Fit::Unknown if wanted == 1 => format!("{budget}; rounds that do not fit are left out"),
            Fit::Unknown => format!("{budget}; the first block shows how many blocks fit"),
            Fit::Complete(1) => format!("{budget}: about 1 block fits{kept}"),
            Fit::Complete(blocks) => format!("{budget}: about {blocks} blocks fit{kept}"),
            Fit::FewerRounds if wanted == 1 => format!("{budget}: the block fits, with fewer rounds{kept}"),
            Fit::FewerRounds => format!("{budget}: {wanted} blocks fit, with fewer rounds{kept}"),
            fit @ (Fit::TooShort(_) | Fit::ShortChecks) => {
                let (too_short, sufficient) = (self.too_short(fit), self.sufficient(expected));
                format!("{too_short}; {}\nhint: {sufficient}", budget::PROPOSAL)
            }
        }
    }

    fn warning(&self, expected: &Expected) -> Option<String> {
        let fit = self.fit(expected);
        matches!(fit, Fit::TooShort(_) | Fit::ShortChecks).then(|| {
            let (too_short, sufficient) = (self.too_short(fit), self.sufficient(expected));
            format!("{too_short}, by the times of earlier runs on this machine; hint: `{sufficient}`")
        })
    }

    fn too_short(&self, fit: Fit) -> String {
        let subject = match fit {
            Fit::TooShort(blocks) => budget::blocks_that_do_not_fit(self.blocks, &self.fitting(blocks)),
            _ => "the output checks".into(),
        };
        budget::too_short_for(&subject, duration(self.ns), self.is_default)
    }

    fn fitting(&self, blocks: usize) -> String {
        match blocks {
            0 if self.is_default => "the first one takes longer, and is measured completely".into(),
            0 => "none fits, not even with one round".into(),
            1 => "about 1 fits, with one round".into(),
            _ => format!("about {blocks} fit, with one round each"),
        }
    }

    /// The command line of this process with a budget that is probably sufficient.
    fn sufficient(&self, expected: &Expected) -> String {
        let times = RunTimes {
            before_blocks: duration(expected.checks_ns + expected.scoring_ns),
            first_checks: expected.first_checks,
            blocks: duration(expected.block_ns * self.blocks as f64),
            token_check: expected.token_check,
        };
        this_command_with_value("--budget", None, &budget::budget_text(times.sufficient_budget()))
    }
}

pub fn rounded_time(ns: f64) -> String {
    text::estimated_time(duration(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::earlier_times::configuration_key;
    use crate::plan::Selection;
    use crate::record::specimen::{planned, selection};
    use crate::run::VerifierTimes;

    #[test]
    fn the_check_of_tokens_has_a_time_only_where_tokens_are_checked_and_the_verifier_is_known() {
        let mut engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        engines.extent.budget_ns = Some(10_000_000_000);
        let mut plan = planned(&engines).header.plan;
        let token_check = |plan: &Plan, times: &EarlierTimes| Expected::of(plan, times, &[]).token_check;
        plan.configurations.iter_mut().for_each(|it| it.verifies = false);
        assert_eq!(token_check(&plan, &EarlierTimes::default()), TokenCheck::Off);
        plan.configurations[0].verifies = true;
        assert_eq!(token_check(&plan, &EarlierTimes::default()), TokenCheck::Unknown);
        let (launch, token) = (Duration::from_secs(5), Duration::ZERO);
        let verifiers = [(configuration_key(&plan.configurations[0]), VerifierTimes { launch, token })];
        let mut times = EarlierTimes::default();
        times.verifiers.extend(verifiers);
        assert_eq!(token_check(&plan, &times), TokenCheck::Takes(launch));
        plan.verification = Verification::Off;
        assert_eq!(token_check(&plan, &times), TokenCheck::Off);
    }

    /// Blocks of 8.6 s, or 3 s with one round, after output checks of 2 s, and a check of tokens of this time.
    fn expected(token_check_s: u64) -> Expected<'static> {
        Expected {
            checks_ns: 2e9,
            first_checks: Duration::from_secs(2),
            block_ns: 8.6e9,
            min_block_ns: 3e9,
            token_check: TokenCheck::Takes(Duration::from_secs(token_check_s)),
            ..Expected::default()
        }
    }

    /// The command line of the tests with this budget.
    fn with_budget(budget: &str) -> String {
        this_command_with_value("--budget", None, budget)
    }

    fn budget(seconds: f64) -> Budget {
        Budget { ns: seconds * 1e9, is_default: false, blocks: 5, max_blocks: 20 }
    }

    #[test]
    fn a_budget_is_described_with_the_blocks_that_fit() {
        let message = |seconds: f64| budget(seconds).describe(&expected(0));
        assert_eq!(message(60.0), "the time budget is 1 min: about 6 blocks fit");
        assert_eq!(message(600.0), "the time budget is 10 min: about 20 blocks fit");
        assert_eq!(message(20.0), "the time budget is 20 s: 5 blocks fit, with fewer rounds");
        assert_eq!(
            message(10.0),
            format!(
                "--budget 10s is too short for the 5 blocks of a verdict (about 2 fit, with one round each); the proposed budget has \
                 a reserve, and each check gets at most half of the time that is left\nhint: {}",
                with_budget("70s")
            )
        );
        assert!(message(2.0).contains("(none fits, not even with one round)"));
        let by_default = Budget { is_default: true, ..budget(4.0) }.describe(&expected(0));
        assert!(
            by_default.starts_with("the default time budget of 4 s is too short")
                && by_default.contains("(the first one takes longer"),
            "{by_default}"
        );
    }

    #[test]
    fn the_time_kept_for_a_check_of_unknown_time_is_named() {
        let described = |token_check| budget(60.0).describe(&Expected { token_check, ..expected(0) });
        assert!(!described(TokenCheck::Off).contains("keeps"));
        let kept = "the time budget is 1 min: about 5 blocks fit; the run keeps up to half of it for the check of \
                    the measured tokens";
        assert_eq!(described(TokenCheck::Unknown), kept);
    }

    #[test]
    fn with_an_unknown_time_no_number_of_blocks_is_promised() {
        let of_one = |seconds: f64| {
            let unknown = vec!["reed"];
            budget(seconds).describe(&Expected { unknown, ..expected(0) })
        };
        assert_eq!(of_one(600.0), "the time budget is 10 min; the first block shows how many blocks fit");
        assert!(
            of_one(10.0).contains("(about 2 fit, with one round each)"),
            "the known times alone are too long"
        );
        let one_block = Budget { blocks: 1, max_blocks: 1, ..budget(1.0) };
        let nothing_known = one_block.describe(&Expected::default());
        assert_eq!(nothing_known, "the time budget is 1 s; rounds that do not fit are left out");
    }

    #[test]
    fn the_check_of_tokens_takes_time_from_the_blocks_and_is_part_of_the_proposed_budget() {
        assert_eq!(
            budget(60.0).describe(&expected(20)),
            "the time budget is 1 min: 5 blocks fit, with fewer rounds"
        );
        let described = budget(40.0).describe(&expected(20));
        assert!(described.starts_with("--budget 40s is too short for the output checks; "), "{described}");
        assert!(described.ends_with(&format!("\nhint: {}", with_budget("90s"))), "{described}");
        let warning = format!(
            "--budget 40s is too short for the output checks, by the times of earlier runs on this machine; hint: `{}`",
            with_budget("90s")
        );
        assert_eq!(budget(40.0).warning(&expected(20)), Some(warning));
        // The default budget ends no check.
        assert_eq!(Budget { is_default: true, ..budget(40.0) }.warning(&expected(20)), None);
        // In the proposed budget, everything fits.
        assert_eq!(budget(90.0).warning(&expected(20)), None);
        assert!(budget(90.0).describe(&expected(20)).ends_with("about 7 blocks fit"));
    }

    #[test]
    fn a_budget_that_is_too_short_gets_a_warning() {
        let of_blocks = format!(
            "is too short for the 5 blocks of a verdict (about 2 fit, with one round each), by the times of earlier runs on this \
             machine; hint: `{}`",
            with_budget("70s")
        );
        assert_eq!(budget(10.0).warning(&expected(0)), Some(format!("--budget 10s {of_blocks}")));
        let by_default = Budget { is_default: true, ..budget(10.0) };
        let expected_warning = format!("the default time budget of 10 s {of_blocks}");
        assert_eq!(by_default.warning(&expected(0)), Some(expected_warning));
        assert_eq!(budget(60.0).warning(&expected(0)), None);
        assert_eq!(budget(1.0).warning(&Expected::default()), None, "unknown times make no budget too short");
    }
}
