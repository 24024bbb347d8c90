//! The plan of a run in words, with the estimate of its time. Measures nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::earlier_times::EarlierTimes;
use super::estimate::{Budget, Expected, history, is_prepared_first, planned_blocks, rounded_time};
use super::output::{self, WIDTH};
use crate::cli::exit_code::{DONE, FAILED_CASES};
use crate::plan::arrivals::Rate;
use crate::plan::budget::TokenCheck;
use crate::plan::context::Unfit;
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Order, Plan, Prompt, Role, Verification, Workload, context, models};
use crate::record::RunRecord;
use crate::text::{self, plural, with_commas};
use anyhow::Result;
use stats::{INTERIM_ANALYSES, MIN_VERDICT_BLOCKS};

/// `warnings`: those that the run would have because of its arguments. `prepared_first`: the engines that the run builds or sets up
/// first.
pub fn show(plan: &Plan, results: &Path, warnings: &[String], prepared_first: &[String]) -> Result<u8> {
    let warnings: String =
        warnings.iter().map(|it| text::break_lines(&format!("warning: {it}"), WIDTH)).collect();
    let text = describe(plan, &history(results), prepared_first);
    output::print_text(&format!("{text}{warnings}"))?;
    // The run would measure nothing, even if it sets engines up.
    let is_refused = plan.row_indices().all(|row| plan.configurations[row].unsupported);
    Ok(if is_refused { FAILED_CASES } else { DONE })
}

fn describe(plan: &Plan, history: &[RunRecord], prepared_first: &[String]) -> String {
    let expected = Expected::of(plan, &EarlierTimes::of(history), prepared_first);
    let mut lines = vec!["the plan of the run; nothing is measured yet:".to_string()];
    lines.push(match plan.has_blocks() {
        true => describe_order(plan),
        false => "each configuration scores the text once".into(),
    });
    if plan.has_blocks() && plan.extent.blocks.is_none() && plan.order == Order::Interleaved {
        let target = plan.extent.target * 100.0;
        lines.push(format!(
            "the run ends when each interval is at most {target} % wide on either side, or when the time budget is used up"
        ));
    }
    lines.extend([String::new(), "configurations:".into()]);
    for (index, configuration) in plan.configurations.iter().enumerate() {
        let note = match (&configuration.unavailable, configuration.role) {
            (Some(unavailable), _) if configuration.unsupported => {
                format!("  (unsupported: {})", unavailable.reason)
            }
            (Some(unavailable), _) if is_prepared_first(configuration, prepared_first) => {
                format!("  ({}: the run sets it up first)", unavailable.reason)
            }
            (Some(unavailable), _) => format!("  ({})", unavailable.reason),
            (None, Some(Role::Twin { .. })) => {
                "  (the twin: a second copy; the difference between the two is noise)".into()
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
    lines.extend(hints(plan, prepared_first));
    lines.extend([String::new(), "requests to each of them:".into()]);
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
    let (needs_hello, measured): (Vec<&Workload>, Vec<&Workload>) =
        distinct.filter(is_measured).partition(|it| is_without_needed_hello(plan, it));
    lines.extend(measured.into_iter().map(|workload| format!("  {}", describe_requests(plan, workload))));
    lines.extend(needs_hello.into_iter().map(|workload| {
        let feature = workload.needs_in_hello().unwrap_or_default();
        format!("  not measured in one-shot mode: {} (it needs `{feature}` in `hello`)", workload.label)
    }));
    lines.extend(left_out(&unfit));
    lines.push(String::new());
    lines.extend(output_checks(plan));
    lines.extend(describe_time(plan, &expected));
    text::break_lines(&lines.join("\n"), WIDTH)
}

/// The commands that help configurations that cannot start, each once.
fn hints(plan: &Plan, prepared_first: &[String]) -> Vec<String> {
    let mut hints: Vec<String> = Vec::new();
    let cannot_start = plan.configurations.iter().filter(|it| !is_prepared_first(it, prepared_first));
    for command in cannot_start.filter_map(|it| it.unavailable.as_ref()?.hints().next()) {
        let hint = format!("hint: {command}");
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    hints
}

/// Whether a workload is not measured because a one-shot process gets no `hello`. A text is scored in launches of its own, which
/// get one.
fn is_without_needed_hello(plan: &Plan, workload: &Workload) -> bool {
    plan.mode == Mode::OneShot && workload.kind != Kind::Score && workload.needs_in_hello().is_some()
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

/// The line about the output checks before the first block.
fn output_checks(plan: &Plan) -> Option<String> {
    let before = if plan.has_blocks() { " before the first block" } else { "" };
    (plan.verification != Verification::Off)
        .then(|| format!("output checks{before}: each engine scores held-out text and continues a prompt"))
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
        (Mode::OneShot, _) => format!("{blocks}; each request has a process of its own"),
        (Mode::Warm, Order::Interleaved) => {
            format!("{blocks}; each block launches every configuration once and measures them in turn")
        }
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
            "{}: at most {windows} of {}, scored once by each configuration{before}",
            workload.label,
            plural(tokens, "token")
        );
    }
    let requests = match workload.time_in_use() {
        Some(time) => format!("requests for {} to each configuration", text::time(time)),
        None => format!("{} in each block", measured_in_block(workload)),
    };
    let warm_up = match workload.warmup {
        Some(0) => String::new(),
        Some(requests) => format!(" after {}", plural(requests, "warm-up request")),
        None => " after warm-up".into(),
    };
    let caches = if workload.shape.prefix_cache { "; prefix caches are allowed" } else { "" };
    let lengths = workload.shape.lengths.file().map_or_else(String::new, |file| {
        format!("; lengths of {}: {}", file.name(), plural(with_commas(file.requests()), "request"))
    });
    format!("{}: {requests}{warm_up}{caches}{lengths}", workload.label)
}

/// A round of overlapping requests has several of them. A search of the highest rate has as many as it needs.
fn measured_in_block(workload: &Workload) -> String {
    let (shape, rounds) = (&workload.shape, plural(workload.rounds, "round"));
    match shape.request_rate {
        _ if !shape.overlaps() => plural(workload.rounds, "request"),
        Some(Rate::Highest) => rounds,
        _ => format!("{rounds} of {}", plural(shape.sequences(), "request")),
    }
}

fn describe_time(plan: &Plan, expected: &Expected) -> Vec<String> {
    let mut lines = Vec::new();
    let parts = expected_parts(plan, expected);
    if !parts.is_empty() {
        lines.push("expected times, from earlier runs on this machine:".into());
        lines.extend(parts.into_iter().map(|part| format!("  {part}")));
    }
    if !expected.unknown.is_empty() {
        lines.push(format!(
            "no estimate for {}: no earlier run in the folder of records",
            text::quoted(&expected.unknown)
        ));
    }
    let (_, max_blocks) = planned_blocks(plan);
    lines.extend(match Budget::of(plan) {
        Some(budget) => Some(budget.describe(expected)),
        None if plan.has_blocks() => Some(format!(
            "no time budget, because the number of blocks is set: {} with all rounds, however long",
            plural(max_blocks, "block")
        )),
        None => None,
    });
    lines
}

/// The expected time of each part of the run, in order, and their sum.
fn expected_parts(plan: &Plan, expected: &Expected) -> Vec<String> {
    let (min_blocks, max_blocks) = planned_blocks(plan);
    let all = expected.known + expected.unknown.len();
    let of_known = match expected.unknown.is_empty() {
        true => String::new(),
        false => format!(" for {} of {all} configurations", expected.known),
    };
    let part = |name: &str, ns: f64| (ns > 0.0).then(|| format!("{name}: {}", about(ns)));
    let mut parts: Vec<String> = part("output checks", expected.checks_ns).into_iter().collect();
    parts.extend(part("scores of the text", expected.scoring_ns).map(|part| part + &of_known));
    if expected.block_ns <= 0.0 {
        return parts;
    }
    let total = |blocks: usize| rounded_time(expected.block_ns * blocks as f64);
    let mut blocks = format!("blocks: {} each{of_known}", about(expected.block_ns));
    // Without the times of all configurations, nothing is known about the whole run.
    let is_known = expected.unknown.is_empty();
    if is_known && max_blocks > 1 {
        blocks += &format!(", {} for {}", total(min_blocks), plural(min_blocks, "block"));
    }
    if is_known && max_blocks > min_blocks {
        blocks += &format!(", {} for {max_blocks}", total(max_blocks));
    }
    parts.push(blocks);
    let check = "check of the measured tokens after the last block";
    parts.extend(match expected.token_check {
        TokenCheck::Off => None,
        TokenCheck::Unknown => Some(format!("{check}: unknown, because no earlier run has this check")),
        TokenCheck::Takes(time) => part(check, time.as_nanos() as f64),
    });
    if is_known {
        let before_ns = expected.checks_ns + expected.scoring_ns;
        let first = format!("first results after {}", about(before_ns + expected.block_ns));
        let check_ns = expected.token_check.known().map(|time| time.as_nanos() as f64);
        parts.push(match check_ns {
            Some(check_ns) => {
                let all_ns = before_ns + expected.block_ns * min_blocks as f64 + check_ns;
                format!("together, with {}: {}; {first}", plural(min_blocks, "block"), about(all_ns))
            }
            // A sum would count the unknown check as some time.
            None => first,
        });
    }
    parts
}

/// `about 12 s`, or `less than 1 s`.
fn about(ns: f64) -> String {
    let time = rounded_time(ns);
    if time.starts_with("less") { time } else { format!("about {time}") }
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
        let shown = describe(&plan, &history, &[]);
        assert!(shown.contains("from earlier runs on this machine:") && shown.contains(" each, "), "{shown}");
        assert!(!shown.contains("no estimate for"), "{shown}");
        assert!(shown.contains("decode: 3 requests in each block after warm-up"), "{shown}");

        let plan = planned(&selection(&["patient-original", "reed"])).header.plan;
        let shown = unbroken(&describe(&plan, &history, &[]));
        assert!(shown.contains("no estimate for `reed`: no earlier run in the folder of records"), "{shown}");
        assert!(shown.contains(" each for 1 of 2 configurations"), "{shown}");
        assert!(!shown.contains("first results") && !shown.contains("for 5 blocks"), "{shown}");
        let shown = unbroken(&describe(&plan, &[], &[]));
        assert!(shown.contains("no estimate for `patient-original`, `reed`: "), "{shown}");
    }

    #[test]
    fn a_dry_run_lists_output_checks_with_their_time_unless_they_are_off() {
        let mut engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        let history = [measured(&engines, &[ORIGINAL, BEACON])];
        let shown = unbroken(&describe(&planned(&engines).header.plan, &history, &[]));
        let times = "output checks: about 2 s blocks: about 38 s each, 3 min 10 s for 5 blocks together, with 5 blocks: \
                     about 3 min 10 s; first results after about 40 s";
        assert!(shown.contains("continues a prompt") && shown.contains(times), "{shown}");
        let shown = unbroken(&describe(&planned(&engines).header.plan, &[], &[]));
        assert!(shown.contains("continues a prompt") && !shown.contains("expected times"), "{shown}");
        engines.verification = Verification::Off;
        assert!(!describe(&planned(&engines).header.plan, &history, &[]).contains("output checks"));
    }

    #[test]
    fn without_the_time_of_the_token_check_no_sum_is_shown() {
        let engines =
            Selection { verification: Verification::Usual, ..selection(&["patient-original", "beacon"]) };
        let record = measured(&engines, &[ORIGINAL, BEACON]);
        let plan = &record.header.plan;
        let mut expected = Expected::of(plan, &EarlierTimes::of(std::slice::from_ref(&record)), &[]);
        for (token_check, has_sum) in [(TokenCheck::Off, true), (TokenCheck::Unknown, false)] {
            expected.token_check = token_check;
            let parts = expected_parts(plan, &expected).join("\n");
            assert_eq!(parts.contains("together"), has_sum, "{parts}");
            assert!(parts.contains("first results after about 40 s"), "{parts}");
        }
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
        let shown = describe(&record.header.plan, &history, &[]);
        assert!(
            shown.lines().all(|line| line.starts_with("hint: ") || text::width(line) <= WIDTH),
            "{shown}"
        );
        assert!(unbroken(&shown).contains(&format!("beacon on embedded ({reason})")), "{shown}");
        assert_eq!(shown.matches("\nhint: orchestrate setup beacon\n").count(), 1, "{shown}");
        let prepared = describe(&record.header.plan, &history, &["beacon".into()]);
        assert!(!prepared.contains("hint: orchestrate setup"), "{prepared}");
    }
}
