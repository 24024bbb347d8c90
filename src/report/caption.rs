//! What is said once for all rows: what ran, how often, where.

use std::collections::BTreeMap;

use super::{Engine, Report, Row};
use crate::machine::Machine;
use crate::plan::Mode;

/// First what ran, then how often, then where.
pub fn caption(report: &Report, versions: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(first) = report.rows.first() {
        let rows = &report.rows;
        let mut parts: Vec<String> = Vec::new();
        if !several_engines(report) {
            let version = first.engine.version.iter().map(|version| format!(" {version}"));
            parts.push(format!("{}{}", first.engine.label, version.collect::<String>()));
        }
        if !varies(rows, |row| row.engine.model.clone()) {
            parts.push(format!("model {}", first.engine.model));
        }
        for (title, of) in facts() {
            let (Some(value), false) = (of(&first.engine), varies(rows, |row| of(&row.engine))) else {
                continue;
            };
            match title {
                "version" if !several_engines(report) => {}
                "version" => parts.push(format!("version {value}")),
                "threads" => parts.push(counted(value.parse().unwrap_or(0), "thread")),
                _ => parts.push(value),
            }
        }
        lines.push(parts.join(", "));
        if !versions && varies(rows, |row| row.engine.version.clone()) {
            let all: BTreeMap<&str, &str> = rows
                .iter()
                .filter_map(|row| Some((row.engine.engine.as_str(), row.engine.version.as_deref()?)))
                .collect();
            let all = all.iter().map(|(engine, version)| format!("{engine} {version}"));
            lines.push(format!("versions: {}", all.collect::<Vec<_>>().join(", ")));
        }
        lines.push(how_often(report));
    }
    lines.push(format!(
        "{}orchestrate {}, record {}",
        machine(&report.machine),
        report.orchestrate_version,
        report.record
    ));
    lines
}

fn how_often(report: &Report) -> String {
    let samples = by_scenario(report, |row| row.case.samples.to_string());
    let warmups: Vec<u32> = report.rows.iter().map(|row| row.case.warmup).collect();
    let warmup = match warmups.iter().max() {
        Some(0) | None => String::new(),
        Some(1) => ", after 1 warm-up".into(),
        Some(most) => format!(", after {most} warm-ups"),
    };
    match report.mode {
        Mode::Warm => {
            format!("{}, samples in each: {samples}{warmup}", counted(u64::from(report.launches), "launch"))
        }
        Mode::OneShot => {
            let rounds = counted(u64::from(report.launches), "round");
            format!("one-shot, a process for each request: {rounds}, samples in each: {samples}")
        }
    }
}

/// What headlines the ratios are taken by.
pub fn headlines(report: &Report) -> String {
    by_scenario(report, |row| row.case.headline.map_or("n/a", |metric| metric.title).to_string())
}

/// `10 (ttft, decode), 1 (load)`: a value that all rows share stands alone.
fn by_scenario(report: &Report, of: impl Fn(&Row) -> String) -> String {
    let mut values: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &report.rows {
        let value = of(row);
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

fn machine(machine: &Machine) -> String {
    let cores = machine.cpu.allowed_cores.or(machine.cpu.logical_cores);
    let parts = machine.cpu.model.iter().cloned().chain(cores.map(|cores| counted(u64::from(cores), "core")));
    let text = parts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { text } else { format!("{text}; ") }
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "launch") => format!("{count} launches"),
        _ => format!("{count} {what}s"),
    }
}

/// What may vary between engines, and how a row says it.
pub type Fact = (&'static str, fn(&Engine) -> Option<String>);

pub fn facts() -> [Fact; 4] {
    [
        ("version", |engine| engine.version.clone()),
        ("device", |engine| engine.device.clone()),
        ("dtype", |engine| engine.dtype.clone()),
        ("threads", |engine| engine.threads.map(|threads| threads.to_string())),
    ]
}

pub fn varies<T: PartialEq>(rows: &[Row], of: impl Fn(&Row) -> T) -> bool {
    rows.iter().skip(1).any(|row| of(row) != of(&rows[0]))
}

pub fn several_engines(report: &Report) -> bool {
    varies(&report.rows, |row| row.engine.label.clone()) || !report.failed.is_empty()
}
