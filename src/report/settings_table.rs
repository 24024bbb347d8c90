//! The table of settings: each case of an engine beside the case that differs from it in one setting.

use std::collections::BTreeMap;

use super::document::{Column, Keep, Layout, Line, Overflow, Section, Table};
use super::headings::{self, Heading};
use super::labels::Labels;
use super::marks::Mark;
use super::overview::comparison;
use super::ranking::Compared;
use super::rows::{Row, group_by_key};
use super::run_report::Report;
use super::settings::{SettingImpact, sequences};
use super::verdict_lines::unbroken;
use crate::analysis::metric::{Metric, MetricId, Scale, Unit};
use crate::plan::selection::distinct;
use crate::text::{significant_digits, width};

/// Stands in place of a ratio, if the setting has no effect on the engine.
const SAME_WORK: &str = "same work";

/// The row of the case, and the row of the other case.
pub fn sides<'a>(report: &'a Report, impact: &SettingImpact) -> Option<(&'a Row, &'a Row)> {
    let of_case = |case: &String| {
        report.rows.iter().find(|row| row.engine.label == impact.pair.engine && row.case.label == *case)
    };
    Some((of_case(&impact.pair.case)?, of_case(&impact.pair.against)?))
}

/// A table for each scenario, because a column has one unit. Empty if no setting varies.
pub fn sections(report: &Report, layout: Layout) -> Vec<Section> {
    let mut tables = tables(report, layout);
    // The notes stand once, below the last table.
    let all: Vec<String> = tables.iter_mut().flat_map(|it| std::mem::take(&mut it.2.notes)).collect();
    if let Some((_, _, last)) = tables.last_mut() {
        last.notes = distinct(&all);
    }
    let sections = tables.into_iter().flat_map(|(scenario, metric, table)| {
        let heading = format!("what each setting of `{scenario}` changes, by {}:", metric.title);
        [Section::Heading(heading), Section::Table(table)]
    });
    sections.collect()
}

/// The table with the longest cell, by which a layout is chosen.
pub fn widest(report: &Report, layout: Layout) -> Option<Table> {
    let longest = |table: &Table| table.lines.iter().flat_map(|line| &line.cells).map(|it| width(it)).max();
    tables(report, layout).into_iter().map(|(_, _, table)| table).max_by_key(longest)
}

fn tables(report: &Report, layout: Layout) -> Vec<(&str, &'static Metric, Table)> {
    let scenario = |it: &SettingImpact| Some(sides(report, it)?.0.case.scenario.as_str());
    let shown = report.settings.iter().filter(|it| it.pair.is_verified);
    let by_scenario = group_by_key(shown.filter_map(|it| Some((scenario(it)?, it))));
    let table = |(scenario, impacts): (_, Vec<&SettingImpact>)| {
        let metric = impacts.first()?.pair.metric;
        Some((scenario, metric, table_of(report, metric, &impacts, layout)))
    };
    by_scenario.into_iter().filter_map(table).collect()
}

/// A comparison that may be broken between the ends of its interval too.
fn in_two_parts(comparison: &str) -> String {
    comparison.replace(&unbroken(", "), ", ")
}

/// `batch 1`, `cache on`, `left`.
fn value_in_words(setting: &str, value: &str) -> String {
    let needs_name = value.parse::<f64>().is_ok() || ["on", "off"].contains(&value);
    if needs_name { format!("{setting} {value}") } else { value.to_string() }
}

/// The case without the name of its scenario, which stands above the table: `cache off left`. A number keeps the name.
fn short_case<'a>(label: &'a str, scenario: &str) -> &'a str {
    let rest = label.strip_prefix(scenario).and_then(|rest| rest.strip_prefix(' '));
    rest.filter(|rest| rest.parse::<f64>().is_err()).unwrap_or(label)
}

/// The lines of an engine are one below the other. A case without the setting is above those with it.
fn table_of(report: &Report, metric: &'static Metric, impacts: &[&SettingImpact], layout: Layout) -> Table {
    let layout = Layout { columns_of_varying_options: false, ..layout };
    let labels = Labels::of(report, layout);
    let is_part = |row: &&Row| {
        let of_engine = impacts.iter().filter(|it| it.pair.engine == row.engine.label);
        of_engine.clone().any(|it| [&it.pair.case, &it.pair.against].contains(&&row.case.label))
    };
    let rows: Vec<&Row> = report.rows.iter().filter(is_part).collect();
    let estimate = |row: &Row, metric: MetricId| row.summary(metric).map(|it| it.estimate);
    let scale = metric
        .fixed_scale()
        .unwrap_or_else(|| Scale::of(metric.unit, rows.iter().filter_map(|it| estimate(it, metric.id))));
    let times = Scale::of(Unit::Nanoseconds, rows.iter().filter_map(|it| estimate(it, MetricId::TOTAL)));
    let token_ns = |row: &Row| estimate(row, MetricId::THROUGHPUT).map(|rate| 1e9 / rate);
    let token_times = Scale::of(Unit::Nanoseconds, rows.iter().filter_map(|row| token_ns(row)));
    let batches = |row: &Row| {
        let mut of_row = impacts.iter().filter(|it| it.pair.engine == row.engine.label);
        of_row.find_map(|it| match () {
            () if it.pair.case == row.case.label => sequences(it.setting, &it.value),
            () if it.pair.against == row.case.label => sequences(it.setting, &it.other),
            () => None,
        })
    };
    let has_batches = rows.iter().any(|row| batches(row).is_some());
    let mut columns = vec![
        Column::engines(),
        Column::cases(),
        Column::value(metric, scale.symbol),
        Column { keep: Keep::Standard(2), ..Column::value(headings::REQUEST, times.symbol) },
    ];
    if has_batches {
        columns
            .push(Column { keep: Keep::Standard(1), ..Column::value(headings::PER_SEQUENCE, times.symbol) });
    }
    let has_token_times = metric.id == MetricId::THROUGHPUT;
    if has_token_times {
        columns.push(Column {
            keep: Keep::Standard(3),
            ..Column::value(headings::PER_TOKEN, token_times.symbol)
        });
    }
    let has_scaling = impacts.iter().any(|it| it.scaling_efficiency().is_some());
    if has_scaling {
        columns.push(Column { keep: Keep::Standard(0), ..Column::value(headings::OF_LINEAR_SCALING, "%") });
    }
    columns.push(Column::fact(headings::AGAINST));
    columns.push(Column { overflow: Overflow::Wrapped, ..Column::fact(headings::SPEED_UP) });
    let write = |value: Option<f64>, scale: Scale| value.map_or_else(|| "n/a".into(), |it| scale.write(it));
    let values = |row: &Row| {
        let total = estimate(row, MetricId::TOTAL);
        let mut cells = vec![write(estimate(row, metric.id), scale), write(total, times)];
        if has_batches {
            let of_sequence = total.zip(batches(row)).map(|(total, sequences)| total / sequences);
            cells.push(of_sequence.map_or_else(String::new, |it| times.write(it)));
        }
        if has_token_times {
            cells.push(write(token_ns(row), token_times));
        }
        cells
    };
    let mut lines = Vec::new();
    let by_engine = group_by_key(rows.iter().map(|row| (&row.engine.label, *row)));
    for row in by_engine.into_iter().flat_map(|(_, rows)| rows) {
        let start = [row.engine.label.clone(), short_case(&row.case.label, &row.case.scenario).to_string()];
        let is_own =
            |it: &&&SettingImpact| it.pair.engine == row.engine.label && it.pair.case == row.case.label;
        let own: Vec<&&SettingImpact> = impacts.iter().filter(is_own).collect();
        let mut results: Vec<Vec<String>> = own
            .iter()
            .map(|it| {
                let compared = Compared::as_stored(&it.pair);
                let is_quotient =
                    sides(report, it).is_none_or(|(row, other)| compared.is_quotient(row, other));
                let share = it.scaling_efficiency().map(|it| significant_digits(100.0 * it, 2));
                let mut cells = Vec::new();
                cells.extend(has_scaling.then(|| share.unwrap_or_default()));
                cells.push(value_in_words(it.setting, &it.other));
                cells.push(match it.is_same_work {
                    true => SAME_WORK.into(),
                    false => in_two_parts(&comparison(&compared, None, is_quotient)),
                });
                cells
            })
            .collect();
        if results.is_empty() {
            results.push(vec![String::new(); if has_scaling { 3 } else { 2 }]);
        }
        let before = [start.to_vec(), values(row)].concat();
        let mut below = vec![String::new(); before.len()];
        below[0].clone_from(&start[0]);
        let starts = std::iter::once(before).chain(std::iter::repeat(below));
        lines.extend(starts.zip(results).map(|(start, result)| Line::of([start, result].concat())));
    }
    let results = lines.iter().filter_map(|line: &Line| line.cells.last());
    let has = |mark: &str| results.clone().any(|it| it.contains(mark));
    let explained =
        |it: Heading| format!("{}: {}", it.title.replace('\n', " "), it.about.trim_end_matches('.'));
    let notes = [
        Some(explained(headings::SPEED_UP)),
        has(SAME_WORK).then(|| {
            format!("{SAME_WORK}: the engine reports that it keeps no cache, so the setting has no effect")
        }),
        has(Mark::NoVerdict.sign()).then(|| Mark::NoVerdict.legend()),
        has_batches.then(|| explained(headings::PER_SEQUENCE)),
        has_scaling.then(|| explained(headings::OF_LINEAR_SCALING)),
        has(Mark::NotAQuotient.sign()).then(|| Mark::NotAQuotient.legend()),
        left_out(report, &labels),
    ];
    let notes = notes.into_iter().flatten().collect();
    Table { columns, lines, notes, gap: layout.gap, ..Table::default() }
}

/// The engines whose results may not be compared.
fn left_out(report: &Report, labels: &Labels) -> Option<String> {
    let without_ratio = |row| match untrusted(report, row) {
        None if report.is_unverified(row) => Some("its output is unverified, so it has no ratio"),
        why => why,
    };
    let engines: BTreeMap<&str, &str> = report
        .rows
        .iter()
        .filter(|row| row.failure.is_none())
        .filter_map(|row| Some((row.engine.label.as_str(), without_ratio(row)?)))
        .collect();
    let engines = engines.into_iter().map(|(engine, why)| format!("{} ({why})", labels.short(engine)));
    let engines: Vec<String> = engines.collect();
    (!engines.is_empty()).then(|| format!("not in this table: {}", engines.join(", ")))
}

/// The reason why the results of a row are compared with none of the same engine.
pub fn untrusted(report: &Report, row: &Row) -> Option<&'static str> {
    match () {
        () if report.is_wrong(row) => Some("its output is wrong"),
        () if row.contradicted => Some("a claim is contradicted"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::axes::AxisValues;
    use crate::plan::{Model, Selection};
    use crate::record::specimen::{BEACON, ORIGINAL, measured};
    use crate::report::document::TableId;
    use crate::report::run_report::View;
    use crate::report::table::render;
    use crate::report::tests::{assert_fits, decoding, verified_report, words};
    use crate::report::viewed::ReportContent;
    use crate::shell::PROGRAM;
    use stats::Verdict;

    /// The table of settings of two engines at two depths, with two models, on several numbers of threads. No comparison is decided.
    fn inconclusive(threads: &[u32], width: usize) -> String {
        let axes = AxisValues { depth: vec![0, 512], ..AxisValues::default() };
        let mut selection = Selection { axes, ..decoding(&["patient-original", "beacon"]) };
        selection.threads = threads.to_vec();
        let name = "a-model-with-a-long-name-q4";
        selection.models.push(Model { name: name.into(), path: "/l".into(), ..Model::default() });
        let mut report = verified_report(&measured(&selection, &[ORIGINAL, BEACON]));
        for impact in &mut report.settings {
            let result = impact.pair.result.as_mut().unwrap();
            result.decision.verdict = Some(Verdict::Inconclusive);
        }
        let view = View { tables: vec![TableId::Settings], ..View::default() };
        let content = ReportContent { report: &report, view, judgement: None, saved: None };
        let text = render(&content, width, PROGRAM);
        let (_, table) = text.split_once("what each setting of `decode` changes").unwrap();
        let (table, _) = table.split_once("not in this table").unwrap_or((table, ""));
        table.to_string()
    }

    #[test]
    fn an_engine_without_verified_output_has_no_ratio_of_its_own_settings() {
        let axes = AxisValues { depth: vec![0, 512], ..AxisValues::default() };
        let selection = Selection { axes, ..decoding(&["patient-original", "beacon"]) };
        let mut report = verified_report(&measured(&selection, &[ORIGINAL, BEACON]));
        let shown = |report: &Report| {
            let view = View { tables: vec![TableId::Settings], ..View::default() };
            words(&render(&ReportContent { report, view, judgement: None, saved: None }, 100, PROGRAM))
        };
        assert!(shown(&report).contains("what each setting of `decode` changes"), "{}", shown(&report));
        report.settings.iter_mut().for_each(|impact| impact.pair.is_verified = false);
        let text = shown(&report);
        let why = "no table of settings: no engine has verified output, and only such an engine has a ratio";
        assert!(text.contains(why) && !text.contains("speed-up: against the case"), "{text}");
    }

    #[test]
    fn a_table_with_many_factors_and_inconclusive_comparisons_is_one_table_without_shortened_names() {
        let text = inconclusive(&[1, 2], 80);
        assert_fits(&text, 80);
        assert_eq!(text.matches("against").count(), 2, "a title and a note: {text}");
        assert!(!text.contains('…'), "{text}");
        assert_eq!(text.matches("inconclusive").count(), 8, "{text}");
    }
}
