//! The best engine of each scenario, against the reference and against the next best.

use super::cells::{comparison, interval, number_with_unit, speed_up, toned};
use super::configurations::{Configuration, MAX_LABEL_WIDTH, Overview};
use crate::report::document::{Column, Keep, Line, Overflow, Table};
use crate::report::headings;
use crate::report::marks::Mark;
use crate::report::ranking::{self, Compared, Ranking};
use crate::report::rows::Row;
use crate::report::run_report::Report;
use crate::report::tone::Tone;
use crate::text::shorten_start;
use stats::Verdict;

/// A line for each scenario and model. Of several workloads of a scenario, the last one counts, for example the longest prompt. A
/// line without a verdict is left out.
pub fn table(overview: &Overview) -> Option<Table> {
    let lines: Vec<Line> = shown_rankings(overview).filter_map(|it| line(overview, it)).collect();
    if lines.is_empty() {
        return None;
    }
    let columns = vec![
        Column::named(headings::BEST),
        Column::named(headings::ENGINE),
        Column { is_text: false, ..Column::named(headings::RESULT) },
        Column { keep: Keep::Standard(1), ..Column::named(headings::VS_REFERENCE) },
        Column { keep: Keep::Spare, ..Column::named(headings::INTERVAL) },
        Column { overflow: Overflow::Wrapped, ..Column::named(headings::AGAINST_NEXT_BEST) },
    ];
    let mut table = Table { columns, lines, gap: 2, ..Table::default() };
    // A column says nothing if there is no next best, or if the reference is always the best or the next best.
    for index in [5, 4, 3] {
        let says_nothing = |cell: &str| cell.is_empty() || cell == Mark::Reference.sign();
        if table.lines.iter().all(|line| says_nothing(&line.cells[index])) {
            table.columns.remove(index);
            table.lines.iter_mut().for_each(|line| drop(line.cells.remove(index)));
        }
    }
    Some(table)
}

/// The rankings of the last workload of each scenario, the most important scenario first.
fn shown_rankings<'a, 'b>(overview: &'b Overview<'a>) -> impl Iterator<Item = &'b Ranking<'a>> {
    let scenario = |label: &str| {
        let mut workloads = overview.report.workloads.iter();
        workloads.find(|it| it.workload == label).map(|it| it.scenario.as_str())
    };
    let is_last = move |at: &usize| {
        let workloads = &overview.workloads;
        let this = scenario(workloads[*at]);
        workloads[*at + 1..].iter().all(|later| scenario(later) != this)
    };
    let last = (0..overview.workloads.len()).rev().filter(is_last);
    let workloads = last.map(|at| overview.workloads[at]).collect::<Vec<_>>();
    workloads.into_iter().flat_map(|label| overview.rankings.iter().filter(move |it| it.case == label))
}

/// The best row of a ranking, and the next best. Rows are ranked by medians, and a verdict is computed from paired rounds. If
/// they contradict each other, the verdict counts.
fn best_and_next<'a>(report: &Report, ranking: &Ranking<'a>) -> Option<(&'a Row, Option<&'a Row>)> {
    let (best, next) = (ranking.best()?, ranking.next_best());
    let is_slower = |second: &&Row| {
        ranking::compared(report, best, second).and_then(|it| it.verdict()) == Some(Verdict::Slower)
    };
    Some(match next.filter(is_slower) {
        Some(second) => (second, Some(best)),
        None => (best, next),
    })
}

fn line(overview: &Overview, ranking: &Ranking) -> Option<Line> {
    let report = overview.report;
    let (best, next) = best_and_next(report, ranking)?;
    let against_next = next.and_then(|next| Some((next, ranking::compared(report, best, next)?)));
    let against_reference = against_reference(overview, best);
    let has_verdict = |it: &Compared| it.verdict().is_some();
    let all = [against_next.as_ref().map(|(_, it)| it), against_reference.as_ref()];
    if !all.into_iter().flatten().any(has_verdict) {
        return None;
    }
    let several_models = report.models.len() > 1;
    let model = if several_models { format!(", {}", ranking.model) } else { String::new() };
    let value = best.summary(ranking.metric.id)?.estimate;
    let next_is_reference = next.is_some_and(Row::is_reference);
    let next_cell = against_next.map(|(next, compared)| {
        let name = shorten_start(&next.engine.label, MAX_LABEL_WIDTH);
        toned(&compared, &comparison(&compared, Some(&name), compared.is_quotient(best, next)))
    });
    let reference_interval = against_reference.as_ref().filter(|_| !next_is_reference).and_then(interval);
    let reference_cell = match against_reference {
        Some(_) if next_is_reference => String::new(),
        Some(compared) => {
            let mut rows = report.rows.iter();
            let reference = rows.find(|it| it.is_reference() && it.case.label == best.case.label);
            let is_quotient = reference.is_none_or(|reference| compared.is_quotient(best, reference));
            toned(&compared, &speed_up(&compared, is_quotient, ""))
        }
        None if best.is_reference() => Mark::Reference.to_string(),
        None => String::new(),
    };
    let title = overview.title(ranking.case).replace('\n', " ");
    Some(Line::of(vec![
        Tone::Heading.of(&format!("{title}{model}")),
        Tone::Heading.of(&engine(best)),
        Tone::Heading.of(&number_with_unit(value, ranking.metric)),
        reference_cell,
        reference_interval.unwrap_or_default(),
        next_cell.unwrap_or_default(),
    ]))
}

/// The comparison of a row with its reference. If one of the two is wrong or unverified, there is no comparison.
fn against_reference<'a>(overview: &Overview<'a>, row: &Row) -> Option<Compared<'a>> {
    if row.is_reference() {
        return None;
    }
    let report = overview.report;
    let pair = report.verdicts.headline(row).filter(|pair| !pair.has_failed(&report.rows))?;
    Some(Compared::as_stored(pair))
}

/// `beacon (bf16)`
fn engine(row: &Row) -> String {
    let label = shorten_start(&row.engine.label, MAX_LABEL_WIDTH);
    match &row.engine.dtype {
        Some(dtype) => format!("{label} ({dtype})"),
        None => label,
    }
}

/// Compares, in the primary workload, each ranked configuration with the first one of the same engine, which has for example
/// other threads, another dtype or another preset. A comparison that one of the tables has is left out: with the reference, and
/// of the best row with the next best.
pub fn variants(overview: &Overview) -> Vec<String> {
    let (report, Some(primary)) = (overview.report, overview.primary) else { return Vec::new() };
    let mut lines = Vec::new();
    let in_plan_order: Vec<&Row> = report.rows.iter().filter(|row| row.case.label == primary).collect();
    let is_shown = |row: &Row| {
        let of_row = |it: &&Configuration| it.engine.label == row.engine.label;
        let unranked = overview.configurations.iter().find(of_row).and_then(|it| it.unranked);
        unranked.is_none()
    };
    let of_primary = shown_rankings(overview).filter(|it| it.case == primary);
    let in_best: Vec<[&str; 2]> = of_primary
        .filter_map(|ranking| {
            let (best, next) = best_and_next(report, ranking)?;
            Some([best.engine.label.as_str(), next?.engine.label.as_str()])
        })
        .collect();
    let is_in_best = |row: &Row, other: &Row| {
        let labels = [row.engine.label.as_str(), other.engine.label.as_str()];
        in_best.iter().any(|it| labels.iter().all(|label| it.contains(label)))
    };
    for (index, row) in in_plan_order.iter().enumerate() {
        let alike = |other: &&&Row| {
            (&other.engine.engine, &other.engine.model) == (&row.engine.engine, &row.engine.model)
        };
        let Some(first) = in_plan_order[..index].iter().find(alike) else { continue };
        let is_in_table = row.reference.as_ref() == Some(&first.engine.label) || is_in_best(row, first);
        if is_in_table || !is_shown(row) || !is_shown(first) {
            continue;
        }
        let Some(compared) = ranking::compared(report, row, first).filter(|it| it.verdict().is_some()) else {
            continue;
        };
        let text = toned(&compared, &comparison(&compared, None, compared.is_quotient(row, first)));
        lines.push(format!("{primary}: `{}` against `{}`: {text}", row.engine.label, first.engine.label));
    }
    lines
}
