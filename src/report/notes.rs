//! Notes about results, with a remedy where there is one: for example about drift, about prompts of another length than planned,
//! and about settings that an engine does not report.

mod stability;
mod unusual;

use std::collections::BTreeMap;

use super::limits;
use super::outputs::{self, Output};
use super::rows::{Requested, Row};
use super::run_data::RunData;
use super::verdicts::Verdicts;
use crate::analysis::metric;
use crate::plan::{Prompt, Role};
use crate::record::{Launch, RunRecord, Sample};
use crate::text::{line, plural, shorten, three_digits};

/// All notes. `rows` has each row with the index of its case.
pub fn of(data: &RunData, rows: &[(usize, Row)], verdicts: &Verdicts, outputs: &[Output]) -> Vec<String> {
    let record = data.record;
    let drifting = stability::drifting(data, rows);
    let kinds = [
        without_row(data),
        outputs::notes(outputs),
        without_ratio(verdicts),
        outputs::without_perplexity(rows.iter().map(|(_, row)| row), outputs),
        stability::drifts(data, rows, &drifting),
        spreads(data, rows, &drifting),
        stability::slow_firsts(data, rows),
        stability::unsteady(rows),
        stability::outliers(data, rows),
        unusual::slow(data, rows),
        limits::notes(&metric::limits::limits(record), rows.iter().map(|(_, row)| row)),
        prompts(data),
        metric::unknown_metrics(record).into_iter().collect(),
        unreported(data),
        converted(record),
    ];
    kinds.concat()
}

/// The notes about the measurement of one row, without the name of the row.
pub fn of_row(data: &RunData, case: usize, row: &Row) -> Vec<String> {
    let rows = [(case, row.clone())];
    let drifting = stability::drifting(data, &rows);
    let notes = [
        stability::drifts(data, &rows, &drifting),
        spreads(data, &rows, &drifting),
        stability::slow_firsts(data, &rows),
        stability::unsteady(&rows),
        stability::outliers(data, &rows),
    ];
    let name = format!("`{}` `{}`: ", row.engine.label, row.case.label);
    notes
        .concat()
        .into_iter()
        .map(|note| note.strip_prefix(&name).map_or(note.clone(), String::from))
        .collect()
}

/// Notes about launches that differ widely. A drifting row is left out: it has its own note.
fn spreads(data: &RunData, rows: &[(usize, Row)], drifting: &[(usize, f64)]) -> Vec<String> {
    let steady = rows.iter().filter(|(case, _)| drifting.iter().all(|(other, _)| other != case));
    let more = data.more_blocks();
    let notes = steady.filter_map(|(_, row)| {
        let (label, case, spread) = (&row.engine.label, &row.case.label, three_digits(row.wide_spread()?));
        let remedy = format!("close other programs, or take more blocks; hint: `--blocks {more}`");
        Some(format!("`{label}` `{case}`: its launches differ by a factor of {spread}; {remedy}"))
    });
    notes.collect()
}

/// Notes about twins and null engines that failed. They have no row that could show their failure.
fn without_row(data: &RunData) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, configuration) in data.plan.configurations.iter().enumerate() {
        let failed = data.record.failures.iter().find(|failure| failure.configuration == index);
        let Some(failure) = failed else { continue };
        let consequence = match configuration.role {
            Some(Role::Twin { .. }) => "the noise of this run is unknown",
            Some(Role::NullEngine) => "its time is missing in some blocks, or in all",
            _ => continue,
        };
        let (label, why) = (line(&configuration.label), line(&failure.message));
        notes.push(format!("`{label}` failed ({why}): {consequence}"));
    }
    notes
}

/// Notes about comparisons with the reference, by the headline, that have no ratio.
fn without_ratio(verdicts: &Verdicts) -> Vec<String> {
    let headlines = verdicts.against_reference.iter().filter(|pair| pair.is_headline);
    let refused = headlines.filter_map(|pair| {
        let why = pair.result.as_ref().err()?;
        Some(format!("`{}` `{}`: no ratio to `{}`: {why}", pair.engine, pair.case, pair.against))
    });
    refused.collect()
}

/// Notes about engines whose number of prompt tokens differs from the plan. If the prompt is a text, the plan has no number, and
/// the first engine of the workload is compared with the others.
fn prompts(data: &RunData) -> Vec<String> {
    let RunData { record, plan, .. } = data;
    let mut first_of: BTreeMap<&str, (String, Range)> = BTreeMap::new();
    let mut notes = Vec::new();
    for (index, case) in plan.cases.iter().enumerate() {
        let configuration = &plan.configurations[case.configuration];
        if configuration.role.is_some() {
            continue;
        }
        let Some(range) = Range::of(data.values.samples(index)) else { continue };
        let planned = match &case.workload.prompt {
            // The prompts of a conversation have the engine's own answers.
            Prompt::Tokens(_) if case.workload.shape.turns > 1 => continue,
            Prompt::Tokens(longest) => {
                let planned = Range::over(case.workload.shape.prompt_lengths(*longest).into_iter());
                match planned.filter(|planned| *planned != range) {
                    Some(planned) => format!("{} were planned", planned.write()),
                    None => continue,
                }
            }
            Prompt::Text(_) => {
                let this = || (line(&configuration.label), range);
                let (label, first_range) = first_of.entry(&case.workload.label).or_insert_with(this);
                if *first_range == range {
                    continue;
                }
                format!("those of `{label}` have {}", first_range.write())
            }
        };
        let takes_ids = |launch: &Launch| launch.hello.as_ref().is_some_and(|it| it.capabilities.prompt_ids);
        let mut launches = record.launches_of(case.configuration);
        let why = if launches.any(takes_ids) { "" } else { " (the engine takes text, not ids)" };
        let (label, case) = (line(&configuration.label), line(&case.workload.label));
        notes.push(format!(
            "`{label}` `{case}`: its prompts have {}, {planned}{why}: its rates use its own token counts",
            range.tokens()
        ));
    }
    notes
}

/// The lowest and the highest number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range(u32, u32);

impl Range {
    fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Self> {
        let sequences = samples.flat_map(|sample| &sample.iteration.sequences);
        Self::over(sequences.map(|sequence| sequence.prompt_tokens))
    }

    fn over(lengths: impl Iterator<Item = u32>) -> Option<Self> {
        lengths.map(|it| Self(it, it)).reduce(|a, b| Self(a.0.min(b.0), a.1.max(b.1)))
    }

    fn write(self) -> String {
        if self.0 == self.1 { self.0.to_string() } else { format!("{}..{}", self.0, self.1) }
    }

    fn tokens(self) -> String {
        plural(self.write(), "token")
    }
}

/// Notes about a requested device or dtype that a measured engine does not report. The device `cpu` needs no report.
fn unreported(data: &RunData) -> Vec<String> {
    let mut notes = Vec::new();
    for (_, engine) in data.engines.iter().enumerate().filter(|(index, _)| data.is_measured_row(*index)) {
        let Requested { device, dtype, .. } = &engine.requested;
        let device = device.as_ref().filter(|it| !it.is_cpu() && engine.device.is_none());
        let device = device.map(|device| (device.to_string(), "device"));
        let dtype = dtype.clone().filter(|_| engine.dtype.is_none()).map(|dtype| (dtype, "dtype"));
        notes.extend(device.into_iter().chain(dtype).map(|(requested, setting)| {
            let requested = shorten(&requested, 24);
            format!(
                "`{}`: {setting} {requested} was requested, but it does not report its {setting}",
                engine.label
            )
        }));
    }
    notes
}

/// Notes about engines that ran a converted model, because they do not read the model's format.
fn converted(record: &RunRecord) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, configuration) in record.header.plan.configurations.iter().enumerate() {
        let mut launches = record.launches_of(index).filter(|_| configuration.role.is_none());
        let Some(converted) = launches.find_map(|launch| launch.converted.as_ref()) else { continue };
        let (label, format, dtype) =
            (line(&configuration.label), line(&converted.format), line(&converted.dtype));
        let model_format = configuration.model.format.as_deref().unwrap_or("the model's format");
        notes.push(format!(
            "`{label}` does not read {}: it ran the same weights converted to {format} in {dtype}",
            line(model_format)
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
