//! What is said once for all rows: what ran, how often, where.

use std::collections::BTreeMap;

use super::factors::{FACTORS, varies};
use super::grid::Room;
use super::safe::shorten;
use super::{Report, Row};
use crate::machine::Machine;
use crate::plan::Mode;

/// A longer model, version or device is shortened here; CSV and JSON have it whole.
const LONGEST_MODEL: usize = 40;
const LONGEST_WORD: usize = 24;

/// First what ran, then how often, then where.
pub fn caption(report: &Report, room: Room) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(first) = report.rows.first() {
        let mut parts: Vec<String> = Vec::new();
        let several = several_engines(report, room);
        let version = |version: &String| shorten(version, LONGEST_WORD);
        if !several {
            let version = first.engine.version.iter().map(|own| format!(" {}", version(own)));
            parts.push(format!("{}{}", room.name_of(&first.engine), version.collect::<String>()));
        }
        for factor in FACTORS {
            let Some(value) = factor.common(report) else { continue };
            match factor.title {
                "model" => parts.push(format!("model {}", shorten(&value, LONGEST_MODEL))),
                "version" if !several => {}
                "version" => parts.push(format!("version {}", version(&value))),
                "threads" => parts.push(counted(value.parse().unwrap_or(0), "thread")),
                _ => parts.push(shorten(&value, LONGEST_WORD)),
            }
        }
        lines.extend(Some(parts.join(", ")).filter(|line| !line.is_empty()));
        if !room.versions && varies(&report.rows, |row| row.engine.version.clone()) {
            let of_row = |row: &'_ Row| {
                let unknown = || "?".to_string();
                (row.engine.engine.clone(), row.engine.version.as_ref().map_or_else(unknown, version))
            };
            let all: BTreeMap<String, String> = report.rows.iter().map(of_row).collect();
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
    // Where less came, a column says how much.
    let planned = if falls_short(report) { "planned: " } else { "" };
    match report.mode {
        Mode::Warm => {
            let launches = counted(u64::from(report.launches), "launch");
            format!("{planned}{launches}, samples in each: {samples}{warmup}")
        }
        Mode::OneShot => {
            let rounds = counted(u64::from(report.launches), "round");
            format!("one-shot, a process for each request: {planned}{rounds}, samples in each: {samples}")
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

/// Some row without a failure of its own has fewer samples than were planned.
pub fn falls_short(report: &Report) -> bool {
    report.rows.iter().any(|row| row.fault.is_none() && !row.is_complete(report.launches))
}

pub fn several_engines(report: &Report, room: Room) -> bool {
    varies(&report.rows, |row| room.name_of(&row.engine)) || !report.failed.is_empty()
}
