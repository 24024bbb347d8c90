//! The plan of a run, and an estimate of its time from the records in its results folder. Measures nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::output::{self, WIDTH};
use crate::analysis::values::Values;
use crate::cli::exit_code::DONE;
use crate::machine::Machine;
use crate::plan::budget;
use crate::plan::context::Unfit;
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Order, Plan, Prompt, Role, Verification, Workload, context, models};
use crate::record::{self, RunRecord};
use crate::run;
use crate::text::{self, plural};
use anyhow::Result;
use stats::{INTERIM_ANALYSES, MIN_VERDICT_BLOCKS, median};

/// The maximum number of earlier records that are read, the newest first.
const MAX_RECORDS: usize = 30;

/// `warnings`: those that the run would have because of its arguments.
pub fn show(plan: &Plan, results: &Path, warnings: &[String]) -> Result<u8> {
    let warnings: String =
        warnings.iter().map(|it| text::break_lines(&format!("warning: {it}"), WIDTH)).collect();
    output::print_text(&format!("{}{warnings}", describe(plan, &history(results)))).map(|()| DONE)
}

/// Reads the newest `MAX_RECORDS` files of a folder, in order of time. Unreadable ones and those of other machines are ignored.
fn history(results: &Path) -> Vec<RunRecord> {
    let mut paths = record::files_in(results).unwrap_or_default();
    let newest = paths.split_off(paths.len().saturating_sub(MAX_RECORDS));
    let mut records: Vec<RunRecord> = newest.iter().filter_map(|path| record::read(path).ok()).collect();
    if !records.is_empty() {
        let here = Machine::probe().fingerprint();
        records.retain(|it| it.header.fingerprint == here);
    }
    records
}

fn describe(plan: &Plan, history: &[RunRecord]) -> String {
    let times = EarlierTimes::of(history);
    let mut lines = vec![match plan.has_blocks() {
        true => format!("would measure, in {}:", describe_order(plan)),
        false => "would measure, where each configuration scores the text once:".into(),
    }];
    if plan.has_blocks() && plan.extent.blocks.is_none() && plan.order == Order::Interleaved {
        let target = plan.extent.target * 100.0;
        lines
            .push(format!("(until intervals are within {target} % of their ratios, or the budget is spent)"));
    }
    lines.push(String::new());
    for (index, configuration) in plan.configurations.iter().enumerate() {
        let note = match (&configuration.unavailable, configuration.role) {
            (Some(unavailable), _) if configuration.unsupported => {
                format!("  (unsupported: {})", unavailable.reason)
            }
            (Some(unavailable), _) => format!("  ({})", unavailable.reason),
            (None, Some(Role::Twin { .. })) => {
                "  (a twin: the same configuration again, to measure noise)".into()
            }
            (None, Some(Role::Baseline { .. })) => "  (the baseline's program)".into(),
            (None, Some(Role::NullEngine)) => {
                "  (computes nothing: its queries cost what the pipe costs)".into()
            }
            (None, Some(Role::Verifier)) if plan.cases_of(index).is_empty() => {
                "  (the verifier: only for output checks)".into()
            }
            (None, Some(Role::Verifier)) => "  (the verifier: scores the text, and checks outputs)".into(),
            (None, None) => String::new(),
        };
        let dtype = configuration.dtype.as_ref().map_or_else(String::new, |dtype| format!(" in {dtype}"));
        let model = match configuration.role {
            // It loads no model.
            Some(Role::NullEngine) => String::new(),
            _ => format!(" on {}", configuration.model.name),
        };
        lines.push(format!("  {}{model}{dtype}{note}", configuration.label));
    }
    lines.push(String::new());
    let mut listed = BTreeSet::new();
    let workloads = plan.cases.iter().map(|case| &case.workload);
    let distinct = workloads.filter(|workload| listed.insert(workload.label.as_str()));
    let unfit = context::unfit(plan, models::context_limit);
    let is_measured = |workload: &&Workload| {
        let is_unfit =
            |model: &str| unfit.iter().any(|it| it.workload == workload.label && it.model == model);
        let mut cases = plan.cases.iter().filter(|case| case.workload.label == workload.label);
        cases.any(|case| !is_unfit(&plan.configurations[case.configuration].model.name))
    };
    let measured = distinct.filter(is_measured);
    lines.extend(measured.map(|workload| format!("  {}", describe_requests(plan, workload))));
    lines.extend(left_out(&unfit));
    lines.push(String::new());
    lines.extend(output_checks(plan, &times));
    lines.extend(describe_time(plan, &times));
    text::break_lines(&lines.join("\n"), WIDTH)
}

/// The workloads that are left out, with the reason: a line for each model.
fn left_out(unfit: &[Unfit]) -> Vec<String> {
    let reason = |it: &Unfit| (it.model.clone(), context::common_reason(&it.reason).map(String::from));
    let mut groups: BTreeMap<(String, Option<String>), Vec<&Unfit>> = BTreeMap::new();
    unfit.iter().for_each(|it| groups.entry(reason(it)).or_default().push(it));
    let line = |((model, reason), unfit): ((String, Option<String>), Vec<&Unfit>)| {
        let workloads: Vec<&str> = unfit.iter().map(|it| it.workload.as_str()).collect();
        let reason = reason.map_or_else(|| unfit[0].reason.clone(), |it| format!("the requests {it}"));
        format!("  not measured on {model}: {} ({reason})", workloads.join(", "))
    };
    groups.into_iter().map(line).collect()
}

/// The line about the output checks before the first block. The later check of measured tokens has no estimate.
fn output_checks(plan: &Plan, times: &EarlierTimes) -> Option<String> {
    let ns = times.checks_ns(plan);
    let time = if ns > 0.0 { format!("; they take {}", about(ns)) } else { String::new() };
    let before = if plan.has_blocks() { " before the first block" } else { "" };
    (plan.verification != Verification::Off).then(|| {
        format!("output checks{before}: each engine scores held-out text and continues a prompt{time}")
    })
}

fn describe_order(plan: &Plan) -> String {
    let blocks = match (plan.extent.blocks, plan.order) {
        (Some(blocks), _) => plural(blocks, "block"),
        (None, Order::Sequential) => format!("{MIN_VERDICT_BLOCKS} blocks"),
        (None, Order::Interleaved) => {
            format!("{MIN_VERDICT_BLOCKS} to {} blocks", INTERIM_ANALYSES[INTERIM_ANALYSES.len() - 1])
        }
    };
    match (plan.mode, plan.order) {
        (Mode::OneShot, _) => format!("{blocks}, with one process for each request"),
        (Mode::Warm, Order::Interleaved) => format!("{blocks}, each launching every configuration"),
        (Mode::Warm, Order::Sequential) => format!("{blocks} of each configuration, one after the other"),
    }
}

fn describe_requests(plan: &Plan, workload: &Workload) -> String {
    let rounds = workload.rounds;
    if workload.kind == Kind::Score {
        let tokens = if let Prompt::Tokens(tokens) = workload.prompt { tokens } else { 0 };
        let windows = plural(rounds, "window");
        let before = if plan.has_blocks() { " before the first block" } else { "" };
        return format!(
            "{}: at most {windows} of {tokens} tokens, scored once by each configuration{before}",
            workload.label
        );
    }
    let warm_up = match workload.warmup {
        Some(0) => String::new(),
        Some(requests) => format!(" after {requests} warm-up requests"),
        None => " after warm-up".into(),
    };
    format!("{}: {} in each block{warm_up}", workload.label, plural(rounds, "request"))
}

/// The expected times of a run, from earlier runs. Configurations of unknown time count as 0.
#[derive(Debug, Default)]
struct Expected<'a> {
    checks_ns: f64,
    /// The time of scoring texts before the first block, with the launches for it.
    scoring_ns: f64,
    /// The time of a block with all its rounds.
    block_ns: f64,
    /// The time of a block with one round of each workload, after the shortest warm-up.
    min_block_ns: f64,
    /// The labels of the configurations of unknown time.
    unknown: Vec<&'a str>,
}

impl<'a> Expected<'a> {
    fn of(plan: &'a Plan, times: &EarlierTimes) -> Self {
        let is_measured = |it: &&Configuration| it.unavailable.is_none() && it.role != Some(Role::Verifier);
        let mut expected = Self { checks_ns: times.checks_ns(plan), ..Self::default() };
        for configuration in plan.configurations.iter().filter(is_measured) {
            let ns_of = |extent| match plan.has_blocks() {
                true => times.block_ns(plan, configuration, extent),
                false => Some(0.0),
            };
            let of_block = ns_of(BlockExtent::Usual).zip(ns_of(BlockExtent::Shortest));
            // An unknown time of scoring must not hide the estimate of the blocks.
            let scoring_ns =
                times.scoring_ns(plan, configuration).or_else(|| plan.has_blocks().then_some(0.0));
            match of_block.zip(scoring_ns) {
                Some(((ns, min_ns), scoring_ns)) => {
                    expected.block_ns += ns;
                    expected.min_block_ns += min_ns;
                    expected.scoring_ns += scoring_ns;
                }
                None => expected.unknown.push(&configuration.label),
            }
        }
        expected
    }
}

/// The size of the block that an estimate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockExtent {
    Usual,
    /// One round of each workload, after the shortest warm-up.
    Shortest,
}

/// The fewest and the most blocks of a run that the budget does not end.
fn planned_blocks(plan: &Plan) -> (usize, usize) {
    match (plan.extent.blocks, plan.order) {
        (Some(blocks), _) => (blocks as usize, blocks as usize),
        (None, Order::Sequential) => (MIN_VERDICT_BLOCKS, MIN_VERDICT_BLOCKS),
        (None, Order::Interleaved) => (MIN_VERDICT_BLOCKS, INTERIM_ANALYSES[INTERIM_ANALYSES.len() - 1]),
    }
}

fn describe_time(plan: &Plan, times: &EarlierTimes) -> Vec<String> {
    let expected = Expected::of(plan, times);
    let (mut lines, (min_blocks, max_blocks)) = (Vec::new(), planned_blocks(plan));
    let exception = if expected.unknown.is_empty() { "" } else { ", without configurations of unknown time" };
    if !plan.has_blocks() && expected.scoring_ns > 0.0 {
        let all = about(expected.checks_ns + expected.scoring_ns);
        lines.push(format!("{all}{exception}, from earlier runs on this machine"));
    }
    if expected.block_ns > 0.0 {
        let total = |blocks: usize| rounded_time(expected.block_ns * blocks as f64);
        let first = about(expected.checks_ns + expected.scoring_ns + expected.block_ns);
        lines.push(format!(
            "{} a block{exception}, from earlier runs on this machine; first results after {first}",
            about(expected.block_ns)
        ));
        let longest = match max_blocks > min_blocks {
            true => format!(", {} for {max_blocks}", total(max_blocks)),
            false => String::new(),
        };
        if max_blocks > 1 {
            lines.push(format!("{} for {}{longest}", total(min_blocks), plural(min_blocks, "block")));
        }
    }
    if !expected.unknown.is_empty() {
        lines.push(format!(
            "no estimate without an earlier record in the folder of records: {}",
            expected.unknown.join(", ")
        ));
    }
    lines.extend(Budget::of(plan).map(|budget| budget.describe(&expected)));
    lines
}

/// The warning about a budget of the user that is too short, if earlier records show this.
pub fn too_short_budget(plan: &Plan, results: &Path) -> Option<String> {
    plan.extent.set_budget()?;
    Budget::of(plan)?.warning(&Expected::of(plan, &EarlierTimes::of(&history(results))))
}

/// A time budget, and the blocks that should fit into it.
struct Budget {
    ns: f64,
    /// The part of `ns` that is reserved for the check of the measured tokens.
    reserved_ns: f64,
    is_default: bool,
    blocks: usize,
    max_blocks: usize,
}

/// The blocks that fit into a budget. Unknown times count as 0, so they make no budget too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Unknown,
    /// This many complete blocks, at least the wanted number.
    Complete(usize),
    /// The wanted number of blocks, with fewer rounds.
    FewerRounds,
    /// Fewer blocks than wanted, of one round each.
    TooShort(usize),
}

impl Budget {
    /// `None` without a budget, or without blocks.
    fn of(plan: &Plan) -> Option<Self> {
        if !plan.has_blocks() {
            return None;
        }
        let (budget, (blocks, max_blocks)) = (plan.extent.budget()?, planned_blocks(plan));
        let reserved_ns = budget::for_token_check(plan, budget).as_nanos() as f64;
        let (ns, is_default) = (budget.as_nanos() as f64, plan.extent.has_default_budget);
        Some(Self { ns, reserved_ns, is_default, blocks, max_blocks })
    }

    fn fit(&self, expected: &Expected) -> Fit {
        if expected.block_ns <= 0.0 {
            return Fit::Unknown;
        }
        let checks_ns = match self.is_default {
            true => expected.checks_ns,
            false => expected.checks_ns.min(self.ns / f64::from(run::FIRST_CHECK_DIVISOR)),
        };
        let (left_ns, wanted) = (self.ns - self.reserved_ns - checks_ns, self.blocks as f64);
        match () {
            () if expected.block_ns * wanted <= left_ns => {
                Fit::Complete(((left_ns / expected.block_ns) as usize).min(self.max_blocks))
            }
            () if expected.min_block_ns * wanted <= left_ns => Fit::FewerRounds,
            () => Fit::TooShort((left_ns / expected.min_block_ns).max(0.0) as usize),
        }
    }

    fn describe(&self, expected: &Expected) -> String {
        let kind = if self.is_default { "default time budget" } else { "time budget" };
        let (budget, wanted) = (format!("the {kind} is {}", rounded_time(self.ns)), self.blocks);
        match self.fit(expected) {
            Fit::Unknown => format!("{budget}; rounds or blocks that do not fit are left out"),
            Fit::Complete(blocks) => format!("{budget}: about {} fit", plural(blocks, "block")),
            Fit::FewerRounds if wanted == 1 => format!("{budget}: the block fits, with fewer rounds"),
            Fit::FewerRounds => format!("{budget}: {wanted} blocks fit, with fewer rounds"),
            Fit::TooShort(blocks) => {
                let verdicts = match blocks < MIN_VERDICT_BLOCKS {
                    true => format!("; a verdict needs {MIN_VERDICT_BLOCKS} blocks"),
                    false => String::new(),
                };
                let fitting = self.too_short(blocks);
                format!("{budget}: {fitting}{verdicts}\nhint: --budget {}", self.sufficient(expected))
            }
        }
    }

    fn warning(&self, expected: &Expected) -> Option<String> {
        let Fit::TooShort(blocks) = self.fit(expected) else { return None };
        let (fitting, sufficient) = (self.too_short(blocks), self.sufficient(expected));
        let budget = budget::as_given(Duration::from_nanos(self.ns as u64));
        Some(format!(
            "--budget {budget} is too short: {fitting}, by the times of earlier runs on this machine; hint: `--budget {sufficient}`"
        ))
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
        let time = |ns: f64| Duration::from_nanos(ns as u64);
        let blocks = time(expected.block_ns * self.blocks as f64);
        budget::sufficient_budget(blocks, time(expected.checks_ns), self.reserved_ns > 0.0)
    }
}

struct EarlierTimes {
    /// Nanoseconds of a launch, by `configuration_key`.
    launches: BTreeMap<String, f64>,
    /// Nanoseconds of a request, by `configuration_key` and `workload_key`.
    requests: BTreeMap<(String, String), f64>,
    /// Nanoseconds of the `score` requests of an output check, by `configuration_key`.
    scores: BTreeMap<String, f64>,
}

impl EarlierTimes {
    /// The times of all records. Times of later records replace times of earlier records.
    fn of(history: &[RunRecord]) -> Self {
        let mut times =
            Self { launches: BTreeMap::new(), requests: BTreeMap::new(), scores: BTreeMap::new() };
        for record in history {
            let (plan, values) = (&record.header.plan, Values::of(record));
            for (index, configuration) in plan.configurations.iter().enumerate() {
                let (key, cases) = (configuration_key(configuration), plan.cases_of(index));
                let launches = cases.iter().flat_map(|&case| values.launches(case));
                let launch_ns: Vec<f64> =
                    launches.filter_map(|it| Some(it.launch.loaded_ns? as f64)).collect();
                times.launches.extend(median(&launch_ns).map(|ns| (key.clone(), ns)));
                let scored = record.scored.iter().filter(|it| it.configuration == index);
                let scores_ns: f64 = scored.map(|it| it.elapsed_ns as f64).sum();
                times.scores.extend((scores_ns > 0.0).then(|| (key.clone(), scores_ns)));
                for case in cases {
                    let requests: Vec<f64> = values.samples(case).map(|it| it.elapsed_ns() as f64).collect();
                    let key = (key.clone(), workload_key(&plan.cases[case].workload));
                    times.requests.extend(median(&requests).map(|ns| (key, ns)));
                }
            }
        }
        times
    }

    /// The time of the output checks before the first block, as far as it is known.
    fn checks_ns(&self, plan: &Plan) -> f64 {
        let is_checked = |it: &&Configuration| {
            it.unavailable.is_none() && !matches!(it.role, Some(Role::Twin { .. } | Role::NullEngine))
        };
        let known_ns = |it: &Configuration| {
            let key = configuration_key(it);
            let ns_of = |times: &BTreeMap<String, f64>, key| times.get(key).copied();
            ns_of(&self.launches, &key).unwrap_or(0.0) + ns_of(&self.scores, &key).unwrap_or(0.0)
        };
        let checked = plan.configurations.iter().filter(is_checked);
        if plan.verification == Verification::Off { 0.0 } else { checked.map(known_ns).sum() }
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
            ns += request_ns
                * f64::from(requests_of(plan, case, Duration::from_nanos(request_ns as u64), extent));
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

/// `about 12 s`, or `less than 1 s`.
fn about(ns: f64) -> String {
    let time = rounded_time(ns);
    if time.starts_with("less") { time } else { format!("about {time}") }
}

fn rounded_time(ns: f64) -> String {
    text::estimated_time(Duration::from_nanos(ns as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Selection;
    use crate::record::specimen::{BEACON, ORIGINAL, add_unavailable, measured, planned, selection};

    /// The text without its line breaks.
    fn unbroken(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn engines_measured_before_have_an_estimate_and_others_are_listed() {
        let engines = selection(&["patient-original", "beacon"]);
        let history = [measured(&engines, &[ORIGINAL, BEACON])];
        let plan = planned(&engines).header.plan;
        let shown = describe(&plan, &history);
        assert!(shown.contains("a block, from earlier runs on this machine"), "{shown}");
        assert!(!shown.contains("no estimate without"), "{shown}");
        assert!(shown.contains("decode: 3 requests in each block after warm-up"), "{shown}");

        let plan = planned(&selection(&["patient-original", "reed"])).header.plan;
        let shown = unbroken(&describe(&plan, &history));
        assert!(
            shown.contains("no estimate without an earlier record in the folder of records: reed"),
            "{shown}"
        );
        assert!(shown.contains("without configurations of unknown time"), "{shown}");
        let shown = unbroken(&describe(&plan, &[]));
        assert!(shown.contains("folder of records: patient-original, reed"), "{shown}");
    }

    #[test]
    fn a_dry_run_lists_output_checks_with_their_time_unless_they_are_off() {
        let mut engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        let history = [measured(&engines, &[ORIGINAL, BEACON])];
        let shown = unbroken(&describe(&planned(&engines).header.plan, &history));
        assert!(shown.contains("continues a prompt; they take about "), "{shown}");
        let shown = unbroken(&describe(&planned(&engines).header.plan, &[]));
        assert!(shown.contains("continues a prompt") && !shown.contains("they take"), "{shown}");
        engines.verification = Verification::Off;
        assert!(!describe(&planned(&engines).header.plan, &history).contains("output checks"));
    }

    #[test]
    fn a_dry_run_fits_eighty_columns_except_for_hints() {
        let mut engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        engines.extent.budget_ns = Some(1_000_000_000);
        let history = [measured(&engines, &[ORIGINAL, BEACON])];
        let mut record = planned(&engines);
        let reason = "no NVIDIA driver found; its environment is not set up (9.0 GB to download)";
        add_unavailable(&mut record, 1, reason, "orchestrate setup beacon");
        let shown = describe(&record.header.plan, &history);
        assert!(
            shown.lines().all(|line| line.starts_with("hint: ") || text::width(line) <= WIDTH),
            "{shown}"
        );
        assert!(unbroken(&shown).contains(&format!("beacon on embedded ({reason})")), "{shown}");
    }

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
        let requests = requests_of(&one_case, 0, Duration::from_nanos(request_ns as u64), BlockExtent::Usual);
        let expected_ns =
            times.launches[&configuration_key(configuration)] + request_ns * f64::from(requests);
        let block_ns = times.block_ns(&one_case, configuration, BlockExtent::Usual).unwrap();
        assert!((block_ns - expected_ns).abs() < 1.0, "{block_ns}");
    }

    #[test]
    fn a_budget_is_reserved_for_the_token_check_only_where_tokens_are_checked() {
        let mut engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        engines.extent.budget_ns = Some(10_000_000_000);
        let mut plan = planned(&engines).header.plan;
        plan.configurations.iter_mut().for_each(|it| it.verifies = false);
        assert_eq!(Budget::of(&plan).unwrap().reserved_ns, 0.0);
        plan.configurations[0].verifies = true;
        assert_eq!(Budget::of(&plan).unwrap().reserved_ns, 1e9);
    }

    /// Blocks of 8.6 s, or 3 s with one round, after output checks of 2 s.
    const EXPECTED: Expected =
        Expected { checks_ns: 2e9, scoring_ns: 0.0, block_ns: 8.6e9, min_block_ns: 3e9, unknown: Vec::new() };

    fn budget(seconds: f64) -> Budget {
        Budget { ns: seconds * 1e9, reserved_ns: seconds * 1e8, is_default: false, blocks: 5, max_blocks: 20 }
    }

    #[test]
    fn a_budget_is_described_with_the_blocks_that_fit() {
        let message = |seconds: f64| budget(seconds).describe(&EXPECTED);
        assert_eq!(message(60.0), "the time budget is 1 min: about 6 blocks fit");
        assert_eq!(message(600.0), "the time budget is 10 min: about 20 blocks fit");
        assert_eq!(message(20.0), "the time budget is 20 s: 5 blocks fit, with fewer rounds");
        assert_eq!(
            message(10.0),
            "the time budget is 10 s: about 2 of 5 blocks fit, with one round each; a verdict needs 5 blocks\nhint: --budget 70s"
        );
        assert!(message(2.0).contains("no block fits, not even one round; a verdict needs 5 blocks"));
        // Without known times, no budget is too short.
        assert!(budget(1.0).describe(&Expected::default()).contains("that do not fit are left out"));
        let by_default = Budget { is_default: true, ..budget(4.0) }.describe(&EXPECTED);
        assert!(
            by_default.starts_with("the default time budget is 4 s: the first block takes longer"),
            "{by_default}"
        );
    }

    #[test]
    fn a_budget_that_is_too_short_gets_a_warning() {
        assert_eq!(
            budget(10.0).warning(&EXPECTED).as_deref(),
            Some(
                "--budget 10s is too short: about 2 of 5 blocks fit, with one round each, by the times of earlier runs on this \
                 machine; hint: `--budget 70s`"
            )
        );
        assert_eq!(budget(60.0).warning(&EXPECTED), None);
        assert_eq!(budget(1.0).warning(&Expected::default()), None);
    }
}
