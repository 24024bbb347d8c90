//! The plan of a run, and an estimate of its time from earlier runs on this machine. Measures nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::output::{self, WIDTH};
use crate::analysis::values::Values;
use crate::plan::{Configuration, Mode, Order, Plan, Role, Verification, Workload, context, models};
use crate::record::{self, RunRecord};
use crate::text::{self, plural};
use anyhow::Result;
use stats::{INTERIM_ANALYSES, MIN_VERDICT_BLOCKS, median};

/// The maximum number of earlier records that are read, the newest first.
const MAX_RECORDS: usize = 30;
/// The requests of a usual warm-up. Only the first launch of a configuration needs more: at least nine (`run/warm_up.rs`).
const WARM_UP_REQUESTS: f64 = 3.0;

pub fn show(plan: &Plan, results: &Path) -> Result<u8> {
    output::succeed(describe(plan, &history(results)))
}

/// The newest records of a folder, oldest first. An unreadable one is ignored.
fn history(results: &Path) -> Vec<RunRecord> {
    let mut paths = record::files_in(results).unwrap_or_default();
    let newest = paths.split_off(paths.len().saturating_sub(MAX_RECORDS));
    newest.iter().filter_map(|path| record::read(path).ok()).collect()
}

fn describe(plan: &Plan, history: &[RunRecord]) -> String {
    let times = EarlierTimes::of(history);
    let mut lines = vec![format!("would measure, in {}:", describe_order(plan))];
    if plan.extent.blocks.is_none() && plan.order == Order::Interleaved {
        let target = plan.extent.target * 100.0;
        lines
            .push(format!("(until intervals are within {target} % of their ratios, or the budget is spent)"));
    }
    lines.push(String::new());
    for configuration in &plan.configurations {
        let note = match (&configuration.unavailable, configuration.role) {
            (Some(unavailable), _) if configuration.unsupported => {
                format!("  (unsupported: {})", unavailable.reason)
            }
            (Some(unavailable), _) => format!("  ({})", unavailable.reason),
            (None, Some(Role::Twin { .. })) => {
                "  (a twin: the same configuration again, to measure noise)".into()
            }
            (None, Some(Role::Baseline { .. })) => "  (the baseline's program)".into(),
            (None, Some(Role::Verifier)) => "  (the verifier: only for output checks)".into(),
            (None, None) => String::new(),
        };
        lines.push(format!("  {} on {}{note}", configuration.label, configuration.model.name));
    }
    lines.push(String::new());
    let mut listed = BTreeSet::new();
    let workloads = plan.cases.iter().map(|case| &case.workload);
    let distinct = workloads.filter(|workload| listed.insert(workload.label.as_str()));
    lines.extend(distinct.map(|workload| format!("  {}", describe_requests(workload))));
    let unfit = context::unfit(plan, models::context_limit).into_iter();
    lines.extend(unfit.map(|it| format!("  not measured: {} on {}: {}", it.workload, it.model, it.reason)));
    lines.push(String::new());
    lines.extend(output_checks(plan, &times));
    lines.extend(describe_time(plan, &times));
    text::break_lines(&lines.join("\n"), WIDTH)
}

/// The line about the output checks. Only the time of their launches is known: the requests depend on the model.
fn output_checks(plan: &Plan, times: &EarlierTimes) -> Option<String> {
    let is_checked =
        |it: &&Configuration| it.unavailable.is_none() && !matches!(it.role, Some(Role::Twin { .. }));
    let known_ns =
        plan.configurations.iter().filter(is_checked).filter_map(|it| times.launches.get(&key(it)));
    let launches_ns: f64 = known_ns.sum();
    let time =
        (launches_ns > 0.0).then(|| format!("; their launches take about {}", rounded_time(launches_ns)));
    let time = time.unwrap_or_default();
    (plan.verification != Verification::Off).then(|| {
        format!("output checks before the first block: each engine scores held-out text and continues a prompt{time}")
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

fn describe_requests(workload: &Workload) -> String {
    let rounds = workload.rounds;
    let warm_up = match workload.warmup {
        Some(0) => String::new(),
        Some(requests) => format!(" after {requests} warm-up requests"),
        None => " after warm-up".into(),
    };
    format!("{}: {} in each block{warm_up}", workload.label, plural(rounds, "request"))
}

fn describe_time(plan: &Plan, times: &EarlierTimes) -> Vec<String> {
    let is_measured = |it: &&Configuration| it.unavailable.is_none() && it.role != Some(Role::Verifier);
    let (mut block_ns, mut min_block_ns) = (0.0, 0.0);
    let mut unknown: Vec<&str> = Vec::new();
    for configuration in plan.configurations.iter().filter(is_measured) {
        let ns_with = |max_rounds: u32| times.block_ns(plan, configuration, max_rounds);
        match ns_with(u32::MAX).zip(ns_with(1)) {
            Some((ns, min_ns)) => {
                block_ns += ns;
                min_block_ns += min_ns;
            }
            None => unknown.push(&configuration.label),
        }
    }
    let mut lines = Vec::new();
    let (min_blocks, max_blocks) = match (plan.extent.blocks, plan.order) {
        (Some(blocks), _) => (blocks as usize, blocks as usize),
        (None, Order::Sequential) => (MIN_VERDICT_BLOCKS, MIN_VERDICT_BLOCKS),
        (None, Order::Interleaved) => (MIN_VERDICT_BLOCKS, INTERIM_ANALYSES[INTERIM_ANALYSES.len() - 1]),
    };
    if block_ns > 0.0 {
        let total = |blocks: usize| rounded_time(block_ns * blocks as f64);
        let exception = if unknown.is_empty() { "" } else { ", without configurations of unknown time" };
        lines.push(format!("about {} a block{exception}, from earlier runs on this machine", total(1)));
        let longest = match max_blocks > min_blocks {
            true => format!(", {} for {max_blocks}", total(max_blocks)),
            false => String::new(),
        };
        lines.push(format!("{} for {min_blocks} blocks{longest}", total(min_blocks)));
    }
    if !unknown.is_empty() {
        lines.push(format!("no estimate, because not measured here before: {}", unknown.join(", ")));
    }
    match plan.extent.budget_ns {
        Some(ns) => lines.push(describe_budget(ns as f64, min_blocks, block_ns, min_block_ns)),
        None if plan.extent.blocks.is_none() => lines
            .push("without --budget, blocks after the fifth start only within the first two minutes".into()),
        None => {}
    }
    lines
}

/// The line about the budget, from the time of a block, and that of a block with one round. Unknown parts count as 0,
/// so a plan is called too long only if this is certain.
fn describe_budget(budget_ns: f64, blocks: usize, block_ns: f64, min_block_ns: f64) -> String {
    let (budget, count) = (format!("the time budget is {}", rounded_time(budget_ns)), blocks as f64);
    if block_ns * count <= budget_ns {
        return format!("{budget}; rounds or blocks that do not fit are left out");
    }
    // A block cannot be shorter than its launches and one round.
    if min_block_ns * count <= budget_ns {
        let blocks = plural(blocks, "block");
        return format!(
            "{budget}, less than {blocks} take: each block gets fewer rounds, or there are fewer blocks; a verdict needs {MIN_VERDICT_BLOCKS}"
        );
    }
    let fitting = (budget_ns / min_block_ns) as usize;
    let what_fits = match fitting {
        0 => "no block fits, not even one round".to_string(),
        1 => "about 1 block of one round fits".to_string(),
        _ => format!("about {fitting} blocks of one round fit"),
    };
    let verdicts = match fitting < MIN_VERDICT_BLOCKS {
        true => format!("; a verdict needs {MIN_VERDICT_BLOCKS}"),
        false => String::new(),
    };
    // Rounded up to 10 s.
    let sufficient = rounded_time((block_ns * count / 1e10).ceil() * 1e10).replace(' ', "");
    format!("{budget}: {what_fits}{verdicts}\nhint: --budget {sufficient}")
}

struct EarlierTimes {
    /// Nanoseconds of a launch, by `key`.
    launches: BTreeMap<String, f64>,
    /// Nanoseconds of a request, by `key` and `shape`.
    requests: BTreeMap<(String, String), f64>,
}

impl EarlierTimes {
    /// The times of later records replace those of earlier ones.
    fn of(history: &[RunRecord]) -> Self {
        let mut times = Self { launches: BTreeMap::new(), requests: BTreeMap::new() };
        for record in history {
            let (plan, values) = (&record.header.plan, Values::of(record));
            for (index, configuration) in plan.configurations.iter().enumerate() {
                let (key, cases) = (key(configuration), plan.cases_of(index));
                let launches = cases.iter().flat_map(|&case| values.launches(case));
                let launch_ns: Vec<f64> =
                    launches.filter_map(|it| Some(it.launch.loaded_ns? as f64)).collect();
                times.launches.extend(median(&launch_ns).map(|ns| (key.clone(), ns)));
                for case in cases {
                    let requests: Vec<f64> = values.samples(case).map(|it| it.elapsed_ns() as f64).collect();
                    let key = (key.clone(), shape(&plan.cases[case].workload));
                    times.requests.extend(median(&requests).map(|ns| (key, ns)));
                }
            }
        }
        times
    }

    /// The time of a configuration's launch, warm-up and rounds in one block; `None` where a part is not known.
    fn block_ns(&self, plan: &Plan, configuration: &Configuration, max_rounds: u32) -> Option<f64> {
        let key = key(configuration);
        let mut ns = *self.launches.get(&key)?;
        let index = plan.configurations.iter().position(|it| it.label == configuration.label)?;
        // With several engines, an unmeasured request precedes each measured one, and takes at most as long.
        let requests_a_round = if plan.measured().len() > 1 && plan.mode == Mode::Warm { 2.0 } else { 1.0 };
        for case in plan.cases_of(index) {
            let workload = &plan.cases[case].workload;
            let request_ns = self.requests.get(&(key.clone(), shape(workload)))?;
            let warm_up = workload.warmup.map_or(WARM_UP_REQUESTS, f64::from);
            ns += request_ns * (warm_up + requests_a_round * f64::from(workload.rounds.min(max_rounds)));
        }
        Some(ns)
    }
}

/// The key of configurations with equal times: all settings, without the label and the role.
fn key(it: &Configuration) -> String {
    let options = serde_json::Value::Object(it.options.clone());
    let model = &it.model.path;
    format!("{}:{:?} {model} {} {:?} {} {options}", it.engine, it.preset, it.device, it.dtype, it.threads)
}

/// The key of workloads whose requests take equal times.
fn shape(workload: &Workload) -> String {
    format!("{} {:?} {}", workload.label, workload.prompt, workload.max_new_tokens)
}

fn rounded_time(ns: f64) -> String {
    let seconds = ns / 1e9;
    if seconds < 1.0 {
        return "a second".into();
    }
    let step = if seconds < 100.0 { 1.0 } else { 10.0 };
    let rounded = Duration::from_secs_f64((seconds / step).round() * step);
    humantime::format_duration(rounded).to_string()
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
        assert!(!shown.contains("not measured here before"), "{shown}");
        assert!(shown.contains("decode: 3 requests in each block after warm-up"), "{shown}");

        let plan = planned(&selection(&["patient-original", "reed"])).header.plan;
        let shown = describe(&plan, &history);
        assert!(shown.contains("no estimate, because not measured here before: reed"), "{shown}");
        assert!(shown.contains("without configurations of unknown time"), "{shown}");
        assert!(describe(&plan, &[]).contains("not measured here before: patient-original, reed"));
    }

    #[test]
    fn a_dry_run_lists_output_checks_with_their_time_unless_they_are_off() {
        let mut engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        let history = [measured(&engines, &[ORIGINAL, BEACON])];
        let shown = unbroken(&describe(&planned(&engines).header.plan, &history));
        assert!(shown.contains("continues a prompt; their launches take about "), "{shown}");
        let shown = unbroken(&describe(&planned(&engines).header.plan, &[]));
        assert!(shown.contains("continues a prompt") && !shown.contains("launches take"), "{shown}");
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
    fn the_estimate_counts_launch_warm_up_and_both_requests_of_a_round() {
        let engines = selection(&["patient-original", "beacon"]);
        let record = measured(&engines, &[ORIGINAL, BEACON]);
        let times = EarlierTimes::of(std::slice::from_ref(&record));
        let plan = &record.header.plan;
        let decode = plan.cases.iter().find(|case| case.workload.label == "decode").unwrap();
        let request = times.requests[&(key(&plan.configurations[0]), shape(&decode.workload))];
        let one_case = Plan { cases: vec![decode.clone()], ..plan.clone() };
        let launch = times.launches[&key(&plan.configurations[0])];
        let block_ns = times.block_ns(&one_case, &plan.configurations[0], u32::MAX).unwrap();
        assert!((block_ns - (launch + request * (WARM_UP_REQUESTS + 2.0 * 3.0))).abs() < 1.0, "{block_ns}");
        let block_ns = times.block_ns(&one_case, &plan.configurations[0], 1).unwrap();
        assert!((block_ns - (launch + request * (WARM_UP_REQUESTS + 2.0))).abs() < 1.0, "{block_ns}");
    }

    #[test]
    fn a_short_budget_is_reported_with_the_blocks_that_fit() {
        let (blocks, block_ns, min_block_ns) = (5, 8.6e9, 3e9);
        let message = |seconds: f64| describe_budget(seconds * 1e9, blocks, block_ns, min_block_ns);
        assert_eq!(message(60.0), "the time budget is 1m; rounds or blocks that do not fit are left out");
        assert_eq!(
            message(20.0),
            "the time budget is 20s, less than 5 blocks take: each block gets fewer rounds, or there are fewer blocks; \
             a verdict needs 5"
        );
        assert_eq!(
            message(10.0),
            "the time budget is 10s: about 3 blocks of one round fit; a verdict needs 5\n\
             hint: --budget 50s"
        );
        assert!(message(2.0).contains("no block fits, not even one round; a verdict needs 5"));
        // Without known times, no budget is too short.
        assert!(describe_budget(1e9, blocks, 0.0, 0.0).contains("that do not fit are left out"));
    }

    #[test]
    fn times_are_rounded_for_people() {
        assert_eq!([0.2e9, 42.4e9, 147e9].map(rounded_time), ["a second", "42s", "2m 30s"]);
    }
}
