//! The default report: one screen. Above are the best engines with their verdicts, then warnings, then a table with one row for
//! each configuration. `columns` fills the table, `best` compares the best engines, `remarks` are the warnings and footnotes.
//! The full report has all values and notes.

mod best;
mod cells;
mod columns;
mod configurations;
mod remarks;

pub use cells::comparison;
pub use columns::BY_ENGINE;

use std::collections::BTreeSet;
use std::time::Duration;

use super::document::{List, Section, TableId};
use super::outputs::without_perplexity;
use super::run_report::{Report, View};
use super::verdict_lines::unbroken;
use crate::machine::Device;
use crate::text::{plural, shorten, three_digits, time};
use configurations::Overview;

/// The largest width of a text in the title line, in columns.
const MAX_TITLE_WORD: usize = 40;

/// The parts of the default report. The second value names the next commands. It is separate, because the parts that the user
/// requests, such as `--resources`, come before it. `saved` is the path of the record, if there is one.
pub fn sections(report: &Report, view: &View, saved: Option<&str>) -> (Vec<Section>, Option<Section>) {
    let mut overview = Overview::of(report);
    let missing_sort = view.sort.clone().filter(|name| !columns::sort(&mut overview, name));
    let mut parts: Vec<Section> = report.notices.iter().cloned().map(Section::Notice).collect();
    parts.push(Section::Caption(vec![title(report)]));
    let best = best::table(&overview);
    let has_verdicts = best.is_some();
    let list = |lines: Vec<String>| Section::List(List { is_close: true, ..List::plain(lines) });
    let warnings = remarks::warnings(&overview, has_verdicts, missing_sort.as_deref(), saved);
    let mut table = (!overview.configurations.is_empty()).then(|| columns::table(&overview));
    if let Some(table) = &mut table {
        table.notes = remarks::footnotes(&overview, best.as_ref(), table, saved);
        // The tables of quality and precision have these reasons too.
        let has_reasons = view.has(TableId::Quality) || view.has(TableId::Precision);
        if !has_reasons && report.rows.iter().any(|row| row.scored_text.is_some()) {
            table.notes.extend(without_perplexity(&report.rows, &report.outputs));
        }
    }
    parts.extend(best.map(Section::Table));
    parts.extend((!warnings.is_empty()).then(|| list(warnings)));
    parts.push(table.map_or(Section::NoTable("nothing was measured"), Section::Table));
    let next_steps = remarks::next_steps(&overview, saved);
    (parts, (!next_steps.is_empty()).then(|| list(next_steps)))
}

/// `embedded (llama, 2.89 M parameters) · CPU, 2 threads · AMD EPYC · 5 blocks · 3 min 24 s`
fn title(report: &Report) -> String {
    let models = report.models.iter().map(|model| {
        let millions =
            model.parameters.map(|count| format!("{} M parameters", three_digits(count as f64 / 1e6)));
        let billions =
            model.parameters.map(|count| format!("{} B parameters", three_digits(count as f64 / 1e9)));
        let is_large = model.parameters.is_some_and(|count| count >= 1_000_000_000);
        let size = if is_large { billions } else { millions };
        let details: Vec<String> = model.architecture.iter().cloned().chain(size).collect();
        let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
        format!("{}{details}", shorten(&model.name, MAX_TITLE_WORD))
    });
    let models: Vec<String> = models.collect();
    // An interrupted run has fewer blocks than planned.
    let blocks = match report.planned_blocks {
        Some(planned) if planned > report.begun_blocks => {
            format!("{} of {}", report.begun_blocks, plural(planned, "block"))
        }
        _ => plural(report.workloads.iter().map(|it| it.blocks).max().unwrap_or(0), "block"),
    };
    let on_gpu = report.rows.iter().any(|row| row.engine.device.as_ref().is_some_and(|it| !it.is_cpu()));
    let gpus = (on_gpu && !report.machine.gpus.is_empty()).then(|| report.machine.gpus_by_kind());
    let processor = report.machine.cpu.model.as_ref().filter(|_| gpus.is_none());
    let parts = [
        Some(models.join(", ")),
        devices(report),
        gpus.as_ref().or(processor).map(|name| shorten(&without_marks(name), MAX_TITLE_WORD)),
        // A text is scored before the blocks.
        Some(blocks).filter(|_| report.rows.iter().any(|row| !row.case.scores_text)),
        report.elapsed_ns.map(|ns| time(Duration::from_nanos(ns))),
    ];
    let parts = parts.into_iter().flatten().filter(|part| !part.is_empty()).enumerate();
    // Only the names of models are long enough to be broken.
    let parts = parts.map(|(index, part)| if index == 0 { part } else { unbroken(&part) });
    parts.collect::<Vec<_>>().join(" · ")
}

/// `Intel Xeon Processor` for `Intel(R) Xeon(R) Processor`.
fn without_marks(name: &str) -> String {
    name.replace("(R)", "").replace("(TM)", "")
}

/// `CPU, 2 threads`: the devices and the numbers of threads of all rows.
fn devices(report: &Report) -> Option<String> {
    let name = |device: &Device| if device.is_cpu() { "CPU".to_string() } else { device.to_string() };
    let devices: BTreeSet<String> =
        report.rows.iter().filter_map(|row| row.engine.device.as_ref()).map(name).collect();
    let threads: BTreeSet<u32> = report.rows.iter().filter_map(|row| row.engine.threads).collect();
    let threads = match threads.into_iter().collect::<Vec<_>>().as_slice() {
        [] => None,
        [one] => Some(plural(one, "thread")),
        several => Some(format!("{} threads", joined(several))),
    };
    let devices = devices.into_iter().map(|device| shorten(&device, MAX_TITLE_WORD));
    let parts: Vec<String> = devices.chain(threads).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `1, 2 and 4`.
fn joined(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    match words.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        words => words.concat(),
    }
}

#[cfg(test)]
mod tests;
