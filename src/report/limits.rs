//! The machine's limits in a report: the legend of shares, and notes about limits that changed.

use std::collections::{BTreeMap, BTreeSet};

use machine_limits::names;

use super::rows::Row;
use crate::analysis::metric::limits::{Key, Limit, Work};
use crate::analysis::metric::share::{Absent, Class, StatedPeak};
use crate::analysis::metric::{Scale, Unit};
use crate::text::{line, plural, three_digits};

/// One line for each device and number of threads: the best value of each limit that some row's share refers to, and the
/// range of the first limit over its probes.
pub fn legend(limits: &[Limit], rows: &[Row]) -> Vec<String> {
    let same = |a: &&Limit, b: &&Limit| (&a.key.device, a.key.threads) == (&b.key.device, b.key.threads);
    used_limits(limits, rows.iter()).chunk_by(same).map(group_line).collect()
}

/// The line of the limits of one device and number of threads. Memory comes first where a row has a share of it.
fn group_line(group: &[&Limit]) -> String {
    let mut parts: Vec<String> = group.iter().map(|it| best_text(it)).collect();
    parts[0].push_str(&on_device(&group[0].key));
    format!("limits: {}{}", parts.join(", "), probes_text(group[0]))
}

fn on_device(key: &Key) -> String {
    match key.threads {
        Some(threads) => format!(" on {}", plural(threads, "thread")),
        None => format!(" on {}", line(key.device.as_str())),
    }
}

fn best_text(limit: &Limit) -> String {
    let rate = rate(limit.best(), &limit.key.work);
    match &limit.key.work {
        Work::Memory if limit.key.threads.is_some() => format!("{rate} from memory"),
        Work::Memory => format!("{rate} copied in memory"),
        Work::Unit { .. } => rate,
    }
}

/// `37.5 GB/s`, `236 × 10⁹ f32 operations/s`.
fn rate(per_second: f64, work: &Work) -> String {
    match work {
        Work::Memory => format!("{}/s", Unit::Bytes.show(per_second)),
        Work::Unit { name: unit, .. } => {
            let unit = if unit == names::F32_FMA { "f32" } else { unit };
            format!("{} × 10⁹ {} operations/s", three_digits(per_second / 1e9), line(unit))
        }
    }
}

fn probes_text(limit: &Limit) -> String {
    match limit.probes.len() {
        0 | 1 => format!(" ({})", probe_count(limit)),
        _ => format!(" ({}, {})", probe_count(limit), range(limit)),
    }
}

fn probe_count(limit: &Limit) -> String {
    plural(limit.probes.len(), "probe")
}

/// `36.0 to 37.5 GB/s`: the unit is printed once.
fn range(limit: &Limit) -> String {
    match limit.key.work {
        Work::Memory => {
            let scale = Scale::of(Unit::Bytes, [limit.best()]);
            format!("{} to {} {}/s", scale.write(limit.least()), scale.write(limit.best()), scale.symbol)
        }
        Work::Unit { .. } => {
            format!("{} to {}", three_digits(limit.least() / 1e9), rate(limit.best(), &limit.key.work))
        }
    }
}

/// `50.9 GB/s from memory on 2 threads (2 probes, 45.2 to 50.9 GB/s)`.
pub fn described(limit: &Limit) -> String {
    format!("{}{}{}", best_text(limit), on_device(&limit.key), probes_text(limit))
}

/// The names of rows by the class of their share, the highest first: `speed as a share of this machine's limit: 90 % or more: a;
/// below 50 %: b, c`. `None` without a share.
pub fn classes(shares: impl Iterator<Item = (String, f64)>) -> Option<String> {
    let mut by_class: BTreeMap<Class, Vec<String>> = BTreeMap::new();
    for (name, share) in shares {
        if let Some(class) = Class::of(share) {
            by_class.entry(class).or_default().push(name);
        }
    }
    let parts =
        by_class.iter().rev().map(|(class, names)| format!("{}: {}", class.range(), names.join(", ")));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| format!("speed as a share of this machine's limit: {}", parts.join("; ")))
}

/// One line for each peak of a data sheet that some row has a share of.
pub fn data_sheets(rows: &[Row]) -> Vec<String> {
    let peaks = rows.iter().filter(|row| row.data_sheet_share().is_some()).filter_map(|row| row.stated_peak);
    let lines: BTreeSet<String> =
        peaks.map(|it| format!("of data sheet: that of `{}` states {}", it.gpu, stated(&it))).collect();
    lines.into_iter().collect()
}

/// `756,000 × 10⁹ bf16 operations/s`.
pub fn stated(peak: &StatedPeak) -> String {
    match peak.dtype {
        None => format!("{}/s of memory", Unit::Bytes.show(peak.per_second)),
        Some(dtype) => format!("{} × 10⁹ {dtype} operations/s", three_digits(peak.per_second / 1e9)),
    }
}

/// A sentence on a limit that changed during the run.
pub fn changed(limit: &Limit) -> Option<String> {
    limit.is_unsteady().then(|| {
        "The limit changed during the run. The share uses the best probe, so do not compare it with other runs.".into()
    })
}

/// A sentence on a row without a share.
pub fn why_absent(absent: &Absent) -> String {
    let below = match absent {
        Absent::InCaches { cache_bytes: Some(bytes) } => {
            format!("{}, four times the last-level cache", Unit::Bytes.show(4.0 * *bytes as f64))
        }
        Absent::InCaches { cache_bytes: None } => "1 GiB, and the size of the caches is unknown".into(),
    };
    format!("The weights are under {below}. Caches may hold them, so memory may not limit the speed.")
}

/// Notes about limits that changed during the run.
pub fn notes<'a>(limits: &[Limit], rows: impl Iterator<Item = &'a Row>) -> Vec<String> {
    let changed = used_limits(limits, rows).into_iter().filter(|it| it.is_unsteady());
    let note = changed.map(|it| {
        let source = if it.key.work == Work::Memory { " from memory" } else { "" };
        format!(
            "a limit of the machine changed during the run, {}{source}{} over {}; `of limit` uses the best probe, so do not \
             compare it with other runs",
            range(it),
            on_device(&it.key),
            probe_count(it)
        )
    });
    note.collect()
}

/// The limits that some row's share refers to.
fn used_limits<'a, 'b>(limits: &'a [Limit], rows: impl Iterator<Item = &'b Row>) -> Vec<&'a Limit> {
    let keys: Vec<&Key> = rows.filter_map(|row| row.limit.as_ref().ok()?.as_ref()).collect();
    limits.iter().filter(|limit| keys.contains(&&limit.key)).collect()
}

/// The reasons why rows have no share, one line for each reason.
pub fn reasons(rows: &[Row]) -> Vec<String> {
    let rows = rows.iter().filter(|row| row.failure.is_none());
    let reasons: BTreeSet<String> = rows.filter_map(|row| row.limit.as_ref().err()).map(reason).collect();
    reasons.into_iter().collect()
}

fn reason(absent: &Absent) -> String {
    match absent {
        Absent::InCaches { cache_bytes: Some(bytes) } => {
            let bytes = Unit::Bytes.show(4.0 * *bytes as f64);
            format!(
                "no share of the machine's limit: weights under {bytes} (4 times the last-level cache) may be cached"
            )
        }
        Absent::InCaches { cache_bytes: None } => {
            "no share of the machine's limit: caches of unknown size may hold weights under 1 GiB".into()
        }
    }
}
