//! An estimate of a run's time, from the times of the records in its results folder: for the dry run, and for the warning before a run
//! whose budget is too short. Measures nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::analysis::values::Values;
use crate::machine::Machine;
use crate::plan::budget::{self, FIRST_CHECK_DIVISOR, RunTimes, TokenCheck};
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Order, Plan, Role, Verification, Workload};
use crate::record::{self, RunRecord};
use crate::run::{self, VerifierTimes};
use crate::text::{self, plural};
use stats::{INTERIM_ANALYSES, MIN_VERDICT_BLOCKS, median};

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
    token_check: TokenCheck,
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

/// The size of the block that an estimate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockExtent {
    Usual,
    /// One round of each workload, after the shortest warm-up.
    Shortest,
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
        let hint = || format!("hint: --budget {}", self.sufficient(expected));
        match self.fit(expected) {
            Fit::Unknown if wanted == 1 => format!("{budget}; rounds that do not fit are left out"),
            Fit::Unknown => format!("{budget}; the first block shows how many blocks fit"),
            Fit::Complete(blocks) => format!("{budget}: about {} fit", plural(blocks, "block")),
            Fit::FewerRounds if wanted == 1 => format!("{budget}: the block fits, with fewer rounds"),
            Fit::FewerRounds => format!("{budget}: {wanted} blocks fit, with fewer rounds"),
            Fit::ShortChecks => format!("{budget}: the output checks need more time\n{}", hint()),
            Fit::TooShort(blocks) => {
                let verdicts = match blocks < MIN_VERDICT_BLOCKS {
                    true => format!("; a verdict needs {MIN_VERDICT_BLOCKS} blocks"),
                    false => String::new(),
                };
                format!("{budget}: {}{verdicts}\n{}", self.too_short(blocks), hint())
            }
        }
    }

    fn warning(&self, expected: &Expected) -> Option<String> {
        let fitting = match self.fit(expected) {
            Fit::TooShort(blocks) => format!(": {}", self.too_short(blocks)),
            Fit::ShortChecks => " for the output checks".into(),
            Fit::Unknown | Fit::Complete(_) | Fit::FewerRounds => return None,
        };
        let budget = match self.is_default {
            true => format!("the default time budget of {}", rounded_time(self.ns)),
            false => format!("--budget {}", budget::as_given(duration(self.ns))),
        };
        let (sufficient, source) =
            (self.sufficient(expected), "by the times of earlier runs on this machine");
        Some(format!("{budget} is too short{fitting}, {source}; hint: `--budget {sufficient}`"))
    }

    fn too_short(&self, blocks: usize) -> String {
        let wanted = self.blocks;
        match blocks {
            0 if self.is_default => "the first block takes longer, and is measured completely".into(),
            0 => "no block fits, not even one round".into(),
            1 => format!("about 1 of {wanted} blocks fits, with one round"),
            _ => format!("about {blocks} of {wanted} blocks fit, with one round each"),
        }
    }

    fn sufficient(&self, expected: &Expected) -> String {
        let times = RunTimes {
            before_blocks: duration(expected.checks_ns + expected.scoring_ns),
            first_checks: expected.first_checks,
            blocks: duration(expected.block_ns * self.blocks as f64),
            token_check: expected.token_check,
        };
        budget::budget_text(times.sufficient_budget())
    }
}

/// The times of earlier runs. Times of later records replace those of earlier ones.
#[derive(Debug, Default)]
pub struct EarlierTimes {
    /// Nanoseconds of a launch, by `configuration_key`.
    launches: BTreeMap<String, f64>,
    /// Nanoseconds of a request, by `configuration_key` and `workload_key`.
    requests: BTreeMap<(String, String), f64>,
    /// Nanoseconds of the `score` requests of an output check, by `configuration_key`.
    scores: BTreeMap<String, f64>,
    /// By `configuration_key`.
    verifiers: BTreeMap<String, VerifierTimes>,
}

impl EarlierTimes {
    pub fn of(history: &[RunRecord]) -> Self {
        let mut times = Self::default();
        for record in history {
            let (plan, values) = (&record.header.plan, Values::of(record));
            for (index, configuration) in plan.configurations.iter().enumerate() {
                let key = configuration_key(configuration);
                let launch_ns = record.launches_of(index).filter_map(|it| Some(it.loaded_ns? as f64));
                let launch_ns = median(&launch_ns.collect::<Vec<_>>());
                times.launches.extend(launch_ns.map(|ns| (key.clone(), ns)));
                let scored = record.scored.iter().filter(|it| it.configuration == index);
                let scores_ns: f64 = scored.map(|it| it.elapsed_ns as f64).sum();
                times.scores.extend((scores_ns > 0.0).then(|| (key.clone(), scores_ns)));
                let verifier = VerifierTimes::of(record, index).filter(|_| configuration.verifies);
                times.verifiers.extend(verifier.map(|it| (key.clone(), it)));
                for case in plan.cases_of(index) {
                    let requests: Vec<f64> = values.samples(case).map(|it| it.elapsed_ns() as f64).collect();
                    let key = (key.clone(), workload_key(&plan.cases[case].workload));
                    times.requests.extend(median(&requests).map(|ns| (key, ns)));
                }
            }
        }
        times
    }

    fn of_verifier(&self, plan: &Plan, verifier: usize) -> Option<VerifierTimes> {
        self.verifiers.get(&configuration_key(&plan.configurations[verifier])).copied()
    }

    /// The weight and the time of each output check before the first block, as far as the times are known.
    fn first_checks(&self, plan: &Plan) -> Vec<(u32, Duration)> {
        let check = |it: &Configuration| {
            let key = configuration_key(it);
            let scores_ns = self.scores.get(&key).copied();
            let verifier = self.verifiers.get(&key);
            match it.role {
                _ if it.unavailable.is_some() => None,
                Some(Role::Twin { .. } | Role::NullEngine) => None,
                // Stored answers replace those of a verifier that scored no text.
                Some(Role::Verifier) => {
                    let launch = verifier?.launch;
                    Some((run::check_weight(it.verifies), launch + duration(scores_ns?)))
                }
                Some(Role::Baseline { .. }) | None => {
                    let launch_ns = self.launches.get(&key).copied().unwrap_or(0.0);
                    let ns = launch_ns + scores_ns.unwrap_or(0.0);
                    Some((run::check_weight(it.verifies), duration(ns)))
                }
            }
        };
        let is_off = plan.verification == Verification::Off;
        plan.configurations.iter().filter(|_| !is_off).filter_map(check).collect()
    }

    /// The time in which a configuration scores its texts, with the launch for it; `None` where a part is not known.
    fn scoring_ns(&self, plan: &Plan, configuration: &Configuration) -> Option<f64> {
        let (key, index) = (configuration_key(configuration), index_of(plan, configuration)?);
        let workloads = plan.workloads_of(index).into_iter().filter(|it| it.kind == Kind::Score);
        let requests: Option<Vec<f64>> =
            workloads.map(|it| self.requests.get(&(key.clone(), workload_key(&it))).copied()).collect();
        let requests = requests?;
        let launch_ns = if requests.is_empty() { 0.0 } else { *self.launches.get(&key)? };
        Some(launch_ns + requests.iter().sum::<f64>())
    }

    /// The time of a configuration's launch, warm-up and rounds in one block; `None` where a part is not known.
    fn block_ns(&self, plan: &Plan, configuration: &Configuration, extent: BlockExtent) -> Option<f64> {
        let key = configuration_key(configuration);
        let mut ns = *self.launches.get(&key)?;
        let index = index_of(plan, configuration)?;
        let is_of_blocks = |case: &usize| plan.cases[*case].workload.kind != Kind::Score;
        for case in plan.cases_of(index).into_iter().filter(is_of_blocks) {
            let request_ns = *self.requests.get(&(key.clone(), workload_key(&plan.cases[case].workload)))?;
            ns += request_ns * f64::from(requests_of(plan, case, duration(request_ns), extent));
        }
        Some(ns)
    }
}

fn index_of(plan: &Plan, configuration: &Configuration) -> Option<usize> {
    plan.configurations.iter().position(|it| it.label == configuration.label)
}

/// The number of requests of a case in one block, by the rules of a run.
fn requests_of(plan: &Plan, case: usize, request_time: Duration, extent: BlockExtent) -> u32 {
    let workload = &plan.cases[case].workload;
    let (warm_up, rounds) = match extent {
        BlockExtent::Usual => (run::usual_requests(workload.warmup, request_time), workload.rounds),
        BlockExtent::Shortest => (run::fewest_requests(workload.warmup), workload.rounds.min(1)),
    };
    match workload.kind {
        // A text is scored before the blocks.
        Kind::Score => return 0,
        Kind::Launch => return rounds,
        Kind::Warm | Kind::Speculative | Kind::Query if plan.mode == Mode::OneShot => return rounds,
        Kind::Warm | Kind::Speculative | Kind::Query => {}
    }
    let discards = run::is_paused_between_requests(plan, case) && run::is_slowed_by_pause(request_time);
    warm_up.saturating_add(rounds.saturating_mul(if discards { 2 } else { 1 }))
}

/// The key of configurations with equal times: all settings, without the label and the role.
fn configuration_key(it: &Configuration) -> String {
    let options = serde_json::Value::Object(it.options.clone());
    let model = &it.model.path;
    format!("{}:{:?} {model} {} {:?} {} {options}", it.engine, it.preset, it.device, it.dtype, it.threads)
}

/// The key of workloads whose requests take equal times.
fn workload_key(workload: &Workload) -> String {
    format!("{} {:?} {} {:?}", workload.label, workload.prompt, workload.max_new_tokens, workload.shape)
}

/// A time in nanoseconds that an estimate computed; zero if it is below zero.
fn duration(ns: f64) -> Duration {
    Duration::from_nanos(ns as u64)
}

pub fn rounded_time(ns: f64) -> String {
    text::estimated_time(duration(ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Selection;
    use crate::record::specimen::{BEACON, ORIGINAL, measured, planned, selection};

    #[test]
    fn the_estimate_counts_the_requests_that_a_run_makes() {
        let engines = selection(&["patient-original", "beacon"]);
        let mut record = measured(&engines, &[ORIGINAL, BEACON]);
        let case = record.header.plan.cases.iter().position(|it| it.workload.label == "decode").unwrap();
        record.header.plan.cases[case].workload.rounds = 4;
        let (fast, slow) = (Duration::from_millis(100), Duration::from_secs(20));
        let counted = |plan: &Plan, time| {
            [BlockExtent::Usual, BlockExtent::Shortest].map(|extent| requests_of(plan, case, time, extent))
        };
        let mut plan = record.header.plan.clone();
        assert_eq!(counted(&plan, fast), [3 + 2 * 4, 1 + 2], "one is discarded before each measured request");
        assert_eq!(counted(&plan, slow), [1 + 4, 1 + 1], "a pause does not slow down a long request");
        plan.order = Order::Sequential;
        assert_eq!(counted(&plan, fast), [3 + 4, 1 + 1], "engines that run alone are not paused");
        plan.cases[case].workload.warmup = Some(0);
        assert_eq!(counted(&plan, fast), [4, 1]);
        plan.mode = Mode::OneShot;
        assert_eq!(counted(&plan, fast), [4, 1]);
    }

    #[test]
    fn the_estimate_of_a_block_has_its_launch_and_its_requests() {
        let engines = selection(&["patient-original", "beacon"]);
        let record = measured(&engines, &[ORIGINAL, BEACON]);
        let times = EarlierTimes::of(std::slice::from_ref(&record));
        let plan = &record.header.plan;
        let configuration = &plan.configurations[0];
        let decode = plan.cases.iter().find(|case| case.workload.label == "decode").unwrap();
        let request_ns = times.requests[&(configuration_key(configuration), workload_key(&decode.workload))];
        let one_case = Plan { cases: vec![decode.clone()], ..plan.clone() };
        let requests = requests_of(&one_case, 0, duration(request_ns), BlockExtent::Usual);
        let expected_ns =
            times.launches[&configuration_key(configuration)] + request_ns * f64::from(requests);
        let block_ns = times.block_ns(&one_case, configuration, BlockExtent::Usual).unwrap();
        assert!((block_ns - expected_ns).abs() < 1.0, "{block_ns}");
    }

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
        let times = EarlierTimes { verifiers: verifiers.into(), ..EarlierTimes::default() };
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
            "the time budget is 10 s: about 2 of 5 blocks fit, with one round each; a verdict needs 5 blocks\nhint: --budget 70s"
        );
        assert!(message(2.0).contains("no block fits, not even one round; a verdict needs 5 blocks"));
        let by_default = Budget { is_default: true, ..budget(4.0) }.describe(&expected(0));
        assert!(
            by_default.starts_with("the default time budget is 4 s: the first block takes longer"),
            "{by_default}"
        );
    }

    #[test]
    fn with_an_unknown_time_no_number_of_blocks_is_promised() {
        let of_one = |seconds: f64| {
            let unknown = vec!["reed"];
            budget(seconds).describe(&Expected { unknown, ..expected(0) })
        };
        assert_eq!(of_one(600.0), "the time budget is 10 min; the first block shows how many blocks fit");
        assert!(of_one(10.0).contains("about 2 of 5 blocks fit"), "the known times alone are too long");
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
        assert_eq!(
            budget(40.0).describe(&expected(20)),
            "the time budget is 40 s: the output checks need more time\nhint: --budget 90s"
        );
        let warning = "--budget 40s is too short for the output checks, by the times of earlier runs on this machine; hint: \
                       `--budget 90s`";
        assert_eq!(budget(40.0).warning(&expected(20)).as_deref(), Some(warning));
        // The default budget ends no check.
        assert_eq!(Budget { is_default: true, ..budget(40.0) }.warning(&expected(20)), None);
        // In the proposed budget, everything fits.
        assert_eq!(budget(90.0).warning(&expected(20)), None);
        assert!(budget(90.0).describe(&expected(20)).ends_with("about 7 blocks fit"));
    }

    #[test]
    fn a_budget_that_is_too_short_gets_a_warning() {
        let of_blocks = "about 2 of 5 blocks fit, with one round each, by the times of earlier runs on this machine; hint: \
                         `--budget 70s`";
        assert_eq!(
            budget(10.0).warning(&expected(0)),
            Some(format!("--budget 10s is too short: {of_blocks}"))
        );
        let by_default = Budget { is_default: true, ..budget(10.0) };
        assert_eq!(
            by_default.warning(&expected(0)),
            Some(format!("the default time budget of 10 s is too short: {of_blocks}"))
        );
        assert_eq!(budget(60.0).warning(&expected(0)), None);
        assert_eq!(budget(1.0).warning(&Expected::default()), None, "unknown times make no budget too short");
    }
}
