//! The caption: facts that are the same for all rows.

use std::collections::{BTreeMap, BTreeSet};

use super::document::Layout;
use super::factors::{FACTORS, FactorId, varies};
use super::labels::name_of;
use super::outputs;
use super::rows::{MeasuredWorkload, Row};
use super::run_report::Report;
use crate::analysis::metric::Unit;
use crate::plan::{Mode, Order};
use crate::record::{Overhead, WarmUpEnd};
use crate::text::{plural, shorten};
use stats::StoppedBy;

/// The largest width of a model or a list of GPUs, in columns. JSON has the full text.
const MAX_MODEL_WIDTH: usize = 40;
/// The largest width of a version, device or dtype, in columns.
const MAX_WORD_WIDTH: usize = 24;

/// The lines of the caption: what ran, how often, where.
pub fn caption(report: &Report, layout: Layout) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(first) = report.rows.first() {
        let mut parts: Vec<String> = Vec::new();
        let several = several_engines(report, layout);
        let version = |version: &String| shorten(version, MAX_WORD_WIDTH);
        if !several {
            let version = first.engine.version.iter().map(|text| format!(" {}", version(text)));
            parts.push(format!("{}{}", name_of(&first.engine, layout), version.collect::<String>()));
        }
        for factor in FACTORS {
            let varies = factor.requests_differ(report.engines()) || factor.reports_differ(&report.rows);
            let Some(value) = (factor.reported)(&first.engine).filter(|_| !varies) else { continue };
            match factor.id {
                FactorId::Model => parts.push(format!("model {}", shorten(&value, MAX_MODEL_WIDTH))),
                FactorId::Version if !several => {}
                FactorId::Version => parts.push(format!("version {}", version(&value))),
                FactorId::Threads => parts.push(plural(value.parse::<u32>().unwrap_or(0), "thread")),
                FactorId::Device | FactorId::Dtype => parts.push(shorten(&value, MAX_WORD_WIDTH)),
            }
        }
        parts.extend(outputs::common_status(&report.outputs));
        lines.extend(Some(parts.join(", ")).filter(|line| !line.is_empty()));
        if !layout.version_column && varies(&report.rows, |row| row.engine.version.clone()) {
            let engines = report.rows.iter().map(|row| &row.engine);
            let versions: BTreeMap<&str, String> = engines
                .map(|it| (it.engine.as_str(), it.version.as_ref().map_or_else(|| "?".into(), version)))
                .collect();
            let versions = versions.iter().map(|(engine, version)| format!("{engine} {version}"));
            lines.push(format!("versions: {}", versions.collect::<Vec<_>>().join(", ")));
        }
        lines.push(how_often(report));
    }
    lines.push(format!(
        "{}orchestrate {}, record {}",
        machine(report),
        report.orchestrate_version,
        report.record
    ));
    lines.extend(report.overhead.map(|overhead| overhead_line(&overhead)));
    lines
}

/// The orchestrator's own cost. A result as small as this cost does not describe the engine alone.
fn overhead_line(overhead: &Overhead) -> String {
    let time = |ns: u64| Unit::Nanoseconds.show(ns as f64);
    let (request, token) = (time(overhead.request_ns), time(overhead.streamed_token_ns));
    format!("overhead of orchestrate: {request} per request, {token} per streamed token")
}

fn how_often(report: &Report) -> String {
    let rounds = by_scenario(report, |row| row.case.rounds.to_string());
    let is_fewer = report.workloads.iter().any(|it| report.rounds_beyond_budget(it).is_some());
    let fewer = if is_fewer { ", fewer because of the budget" } else { "" };
    // Where some rows have fewer samples, a column says how many. The number of blocks is a plan only until the workloads end.
    let has_ended = report.workloads.iter().all(|it| it.stopped_by.is_some());
    let (planned, of_rounds) = match (has_missing_samples(report), has_ended) {
        (false, _) => ("", "rounds"),
        (true, true) => ("", "planned rounds"),
        (true, false) => ("planned: ", "rounds"),
    };
    let mode = if report.mode == Mode::OneShot { "one-shot, a process for each request: " } else { "" };
    let order = match report.order {
        Order::Interleaved => "interleaved",
        Order::Sequential => "one engine after the other",
    };
    let warm = warm_ups(report).map_or_else(String::new, |warm| format!("; {warm}"));
    format!("{mode}{planned}{}, {order}; {of_rounds}: {rounds}{fewer}{warm}", blocks(report))
}

/// The number of blocks: `5 blocks`, `12 blocks (5 for load, decode; stopped by narrow intervals)`.
fn blocks(report: &Report) -> String {
    let measured = &report.workloads;
    let numbers: BTreeSet<u32> = measured.iter().map(|workload| workload.blocks).collect();
    let most = numbers.last().copied().unwrap_or(0);
    let fewer = numbers.into_iter().filter(|blocks| *blocks < most);
    let fewer = fewer.map(|blocks| format!("{blocks} for {}", workloads(report, |it| it.blocks == blocks)));
    let stops = [
        (StoppedBy::Width, "narrow intervals"),
        (StoppedBy::LastAnalysis, "the last interim analysis"),
        (StoppedBy::Time, "the time budget"),
    ];
    let stops = stops.into_iter().filter_map(|(stop, by)| {
        let stopped = |workload: &MeasuredWorkload| workload.stopped_by == Some(stop);
        match measured.iter().filter(|workload| stopped(workload)).count() {
            0 => None,
            count if count == measured.len() => Some(format!("by {by}")),
            _ => Some(format!("by {by} ({})", workloads(report, stopped))),
        }
    });
    let (fewer, stops): (Vec<String>, Vec<String>) = (fewer.collect(), stops.collect());
    let stopped = if stops.is_empty() { String::new() } else { format!("stopped {}", stops.join(", ")) };
    let details = [fewer.join(", "), stopped].into_iter().filter(|text| !text.is_empty());
    let details = details.collect::<Vec<_>>().join("; ");
    let details = if details.is_empty() { details } else { format!(" ({details})") };
    format!("{}{details}", plural(most, "block"))
}

/// `load, ttft 16, decode`: the selected workloads. A scenario has a workload for each prompt length. If all of
/// them are selected, the scenario is named once.
fn workloads(report: &Report, is_selected: impl Fn(&MeasuredWorkload) -> bool) -> String {
    let mut names: Vec<&str> = Vec::new();
    for workload in report.workloads.iter().filter(|workload| is_selected(workload)) {
        let mut of_scenario = report.workloads.iter().filter(|other| other.scenario == workload.scenario);
        let name = if of_scenario.all(&is_selected) { &workload.scenario } else { &workload.workload };
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The number of warm-up requests of the record, or the planned number where the record has none.
fn warm_ups(report: &Report) -> Option<String> {
    let done = || report.rows.iter().flat_map(|row| &row.warm_ups);
    let set_by_user = done().all(|warm_up| warm_up.ended_by == WarmUpEnd::SetByUser);
    let after = |count: u32| (count > 0).then(|| format!("after {}", plural(count, "warm-up")));
    match done().map(|it| it.requests).min().zip(done().map(|it| it.requests).max()) {
        Some((low, high)) if low < high => Some(format!("warm after {low} to {high} requests")),
        Some((_, high)) if high > 0 && !set_by_user => {
            Some(format!("warm after {}", plural(high, "request")))
        }
        Some((_, high)) => after(high),
        None => report.rows.iter().filter_map(|row| row.case.warmup).max().and_then(after),
    }
}

/// The headline metrics, from which the ratios are computed.
pub fn headlines(report: &Report) -> String {
    by_scenario(report, |row| row.case.headline.map_or("n/a", |metric| metric.title).to_string())
}

/// `10 (ttft, decode), 1 (load)`: the value of each scenario. A value that all rows share stands alone.
fn by_scenario(report: &Report, value_of: impl Fn(&Row) -> String) -> String {
    let mut values: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &report.rows {
        let value = value_of(row);
        let scenario = row.case.scenario.as_str();
        match values.iter_mut().find(|(other, _)| *other == value) {
            Some((_, scenarios)) if scenarios.contains(&scenario) => {}
            Some((_, scenarios)) => scenarios.push(scenario),
            None => values.push((value, vec![scenario])),
        }
    }
    if let [(value, _)] = values.as_slice() {
        return value.clone();
    }
    let written = values.iter().map(|(value, scenarios)| match scenarios.as_slice() {
        [scenario] if scenario == value => value.clone(),
        scenarios => format!("{value} ({})", scenarios.join(", ")),
    });
    written.collect::<Vec<_>>().join(", ")
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let cores = machine.cpu.allowed_cores.or(machine.cpu.logical_cores);
    let parts = machine.cpu.model.iter().cloned().chain(cores.map(|cores| plural(cores, "core")));
    // GPUs explain nothing where no row ran on one.
    let on_gpu = report.rows.iter().any(|row| row.engine.device.as_ref().is_some_and(|it| !it.is_cpu()));
    let gpus =
        (on_gpu && !machine.gpus.is_empty()).then(|| shorten(&machine.gpus_by_kind(), MAX_MODEL_WIDTH));
    let parts = parts.chain(gpus);
    let text = parts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { text } else { format!("{text}; ") }
}

/// Whether some row without a failure has fewer samples than planned.
pub fn has_missing_samples(report: &Report) -> bool {
    report.rows.iter().any(|row| row.failure.is_none() && !is_complete(report, row))
}

/// Whether the row has all planned samples of every block.
fn is_complete(report: &Report, row: &Row) -> bool {
    let workload = report.workloads.iter().find(|other| other.workload == row.case.label);
    let blocks = workload.map_or(0, |workload| workload.blocks);
    row.samples >= blocks as usize * row.case.rounds as usize
}

pub fn several_engines(report: &Report, layout: Layout) -> bool {
    varies(&report.rows, |row| name_of(&row.engine, layout)) || !report.failed.is_empty()
}
