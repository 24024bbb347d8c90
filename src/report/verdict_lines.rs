//! Verdicts for people: a few as sentences, many in a compact form with a line for each engine. Without verdicts, the reason
//! stands in their place. `legend` explains the marks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::document::{Item, List};
use super::labels::Labels;
use super::marks::{MEAN_CAUTION, Mark};
use super::ranking::Compared;
use super::rows::{Row, group_by_key};
use super::run_report::Report;
use super::verdicts::{Calibration, Certainty, Mean, PairVerdict, PresetEffect, Uncalibrated};
use crate::analysis::metric::Unit;
use crate::analysis::noise_floors::CALIBRATION_BLOCKS;
use crate::plan::{Order, budget};
use crate::text::{estimated_time, plural};
use stats::{Comparison, MIN_VERDICT_BLOCKS, MetricKind, Phrase, StoppedBy, bounds_in_cell};

/// The most verdicts that are printed as sentences.
const MAX_SENTENCES: usize = 8;

/// A space at which lines are not wrapped. After wrapping it becomes a plain space.
const NO_BREAK_SPACE: char = '\u{a0}';

/// The verdicts and remarks below the table.
pub fn verdicts(report: &Report, labels: &Labels, pairs: bool) -> Option<List> {
    let (heading, lines) = match why_no_verdicts(report) {
        Some(why) => (Some(why), Vec::new()),
        None => headline_verdicts(report, labels, pairs),
    };
    let correction = pairs.then(|| correction_of_pairs(report)).flatten();
    let remarks = correction.into_iter().chain(remarks(report, labels)).map(Item::Plain);
    let items: Vec<Item> = lines.into_iter().map(Item::Listed).chain(remarks).collect();
    (heading.is_some() || !items.is_empty()).then_some(List { heading, items, ..List::default() })
}

/// The beginning of the reason.
pub const NO_VERDICTS: &str = "no verdicts";

/// The reason why no comparison with the reference has a verdict, with the remedy.
pub fn why_no_verdicts(report: &Report) -> Option<String> {
    let all = || report.verdicts.for_view(false).chain(&report.verdicts.against_baseline);
    let compared = || all().filter(|pair| pair.result.is_ok());
    let begun = report.workloads.iter().map(|it| it.blocks as usize).max().unwrap_or(0);
    let out_of_time = report.workloads.iter().any(|it| it.stopped_by == Some(StoppedBy::Time));
    if compared().count() == 0 {
        // The outputs may be unverified only because the budget was too short for their check.
        let is_short =
            out_of_time && report.engines().count() > 1 && (1..MIN_VERDICT_BLOCKS).contains(&begun);
        return report.budget_ns.filter(|_| is_short).map(|ns| too_short_budget(report, ns, begun, begun));
    }
    if compared().any(|pair| pair.certainty() != Some(Certainty::NoVerdict)) {
        return None;
    }
    if report.order == Order::Sequential {
        let why = "engines were measured sequentially, so drift looks like a difference";
        return Some(format!("{NO_VERDICTS}: {why}; hint: leave out `--order sequential`"));
    }
    // More blocks do not help an engine that fails.
    let without_failure = || compared().filter(|pair| !pair.has_failed(&report.rows));
    let Some(blocks) = without_failure().filter_map(|pair| Some(pair.comparison()?.blocks)).max() else {
        let failed = failures(&report.rows, compared());
        return Some(format!(
            "{NO_VERDICTS}: {failed}; verdicts need {MIN_VERDICT_BLOCKS} blocks without a failure"
        ));
    };
    if report.is_running {
        return Some(format!("{NO_VERDICTS} yet: {blocks} of {MIN_VERDICT_BLOCKS} blocks"));
    }
    let is_cut_off =
        report.workloads.iter().any(|it| it.stopped_by.is_none() && it.blocks as usize >= MIN_VERDICT_BLOCKS);
    let count = plural(blocks, "block");
    let why = match report.budget_ns {
        _ if is_cut_off => {
            let complete = plural(blocks, "complete block");
            format!("the run ended after {complete}; verdicts need {MIN_VERDICT_BLOCKS}")
        }
        Some(budget_ns) if out_of_time => return Some(too_short_budget(report, budget_ns, blocks, begun)),
        _ => {
            let count = match begun > blocks {
                true => format!("only {blocks} of {begun} blocks have both engines of a comparison"),
                false => count,
            };
            format!("{count}, verdicts need {MIN_VERDICT_BLOCKS}; hint: `--blocks {MIN_VERDICT_BLOCKS}`")
        }
    };
    Some(format!("{NO_VERDICTS}: {why}"))
}

/// The reason of a budget that is too short for verdicts. `blocks`: those with the reference; `begun`: all.
fn too_short_budget(report: &Report, budget_ns: u64, blocks: usize, begun: usize) -> String {
    let known = report.sufficient_budget.clone();
    let larger = known.unwrap_or_else(|| budget::for_blocks(budget_ns, blocks, MIN_VERDICT_BLOCKS));
    // The title of a report has the number of all blocks.
    let fitting = match blocks {
        _ if begun > blocks => format!("{blocks} with the reference"),
        1 => "1 fits".to_string(),
        _ => format!("{blocks} fit"),
    };
    let subject = budget::blocks_that_do_not_fit(MIN_VERDICT_BLOCKS, &fitting);
    format!("{NO_VERDICTS}: {}; hint: `--budget {larger}`", report.budget_is_too_short_for(&subject))
}

/// `` `a`, `b` failed``, `` `a` had no time``: the sides of these comparisons without results.
fn failures<'a>(rows: &'a [Row], pairs: impl Iterator<Item = &'a PairVerdict>) -> String {
    let failed = pairs.flat_map(|pair| pair.sides(rows));
    let failed = failed.filter_map(|row| Some((row.failure.as_ref()?.verb(), row.engine.label.as_str())));
    let groups = group_by_key(failed.collect::<BTreeSet<_>>().into_iter());
    let write = |(verb, names): (&str, Vec<&str>)| {
        let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
        format!("{} {verb}", names.join(", "))
    };
    groups.into_iter().map(write).collect::<Vec<_>>().join(", ")
}

/// A change in words with a mark after its number: `2.0x* as fast`, `4 %* slower`. A change without a number stays as it is.
pub fn with_mark(change: &str, mark: &str) -> String {
    let is_number = change.starts_with(|it: char| it.is_ascii_digit());
    match change.find(['x', '%']).filter(|_| is_number) {
        Some(at) => format!("{}{mark}{}", &change[..=at], &change[at + 1..]),
        None => change.into(),
    }
}

pub fn unbroken(text: &str) -> String {
    text.replace(' ', &NO_BREAK_SPACE.to_string())
}

pub fn with_plain_spaces(text: &str) -> String {
    text.replace(NO_BREAK_SPACE, " ")
}

/// The number of comparisons for which the verdicts on all pairs are corrected, where it is not that of the usual verdicts.
fn correction_of_pairs(report: &Report) -> Option<String> {
    // The correction counts the comparisons that have a p value.
    let corrected = |pairs: &[PairVerdict]| {
        let has_p = |pair: &&PairVerdict| pair.comparison().is_some_and(|it| it.decision.p.is_some());
        pairs.iter().filter(|pair| pair.is_headline).filter(has_p).count()
    };
    let [all, usual] =
        [&report.verdicts.all_pairs, &report.verdicts.against_reference].map(|it| corrected(it));
    (all > usual).then(|| {
        format!(
            "with --pairs, verdicts are corrected for {all} comparisons, without it for {usual}: a small difference may be \
             inconclusive only here"
        )
    })
}

/// The verdicts on each workload's headline, engine by engine.
fn headline_verdicts(report: &Report, labels: &Labels, pairs: bool) -> (Option<String>, Vec<String>) {
    let is_shown = |pair: &&PairVerdict| pair.is_headline && !pair.has_failed(&report.rows);
    // A program against that of its baseline is one engine, so these verdicts need no verified output.
    let all = report.verdicts.for_view(pairs).chain(&report.verdicts.against_baseline);
    let shown_pairs: Vec<&PairVerdict> = all.filter(is_shown).collect();
    let groups = group_by_key(shown_pairs.iter().map(|it| ((it.engine.as_str(), it.against.as_str()), *it)));
    let Some(((_, first_reference), _)) = groups.first() else { return (None, Vec::new()) };
    let intervals = format!("95 % intervals over {} blocks", block_range(&shown_pairs));
    if shown_pairs.len() <= MAX_SENTENCES {
        let verdicts = groups.iter().flat_map(|(_, verdicts)| verdicts.iter());
        let sentences = verdicts
            .map(|it| format!("{}{}", labels.shorten_quoted(&it.sentence), caution(report, &it.engine)));
        return (Some(format!("verdicts, {intervals}:")), sentences.collect());
    }
    // A reference that all rows share is named once.
    let has_one_reference = groups.iter().all(|((_, against), _)| against == first_reference);
    let against = |label: &str| format!(" against `{}`", labels.label(label));
    let group_line = |((engine, reference), verdicts): &((&str, &str), Vec<&PairVerdict>)| {
        let against = if has_one_reference { String::new() } else { against(reference) };
        let texts: Vec<String> = verdicts.iter().map(|it| compact(it)).collect();
        format!("`{}`{against}: {}{}", labels.label(engine), texts.join(", "), caution(report, engine))
    };
    let reference = if has_one_reference { against(first_reference) } else { String::new() };
    let heading = format!("verdicts{reference}, speed-ups with {intervals}:");
    (Some(heading), groups.iter().map(group_line).collect())
}

/// `5`, `5 to 8`: the number of blocks of these comparisons.
fn block_range(pairs: &[&PairVerdict]) -> String {
    let blocks = || pairs.iter().filter_map(|pair| Some(pair.comparison()?.blocks));
    match (blocks().min(), blocks().max()) {
        (Some(fewest), Some(most)) if fewest < most => format!("{fewest} to {most}"),
        (_, most) => most.unwrap_or(0).to_string(),
    }
}

fn remarks(report: &Report, labels: &Labels) -> Vec<String> {
    let wrong = report.outputs.iter().filter(|it| it.agreement.is_wrong());
    let mut remarks: Vec<String> = wrong.map(|it| labels.shorten_quoted(&it.why_not_compared())).collect();
    let verdicts = &report.verdicts;
    let means: Vec<&Mean> = verdicts.means.iter().filter(|mean| mean.is_verified).collect();
    if let Some(first) = means.first() {
        let has_one_reference = means.iter().all(|mean| mean.against == first.against);
        let means = means.iter().map(|mean| {
            let against =
                if has_one_reference { String::new() } else { format!(" `{}`", labels.label(&mean.against)) };
            let (engine, mark) =
                (labels.label(&mean.engine), if mean.is_conclusive { "" } else { Mark::Inconclusive.sign() });
            let rank_mark = mark_of(report, &mean.engine);
            let ratio = unbroken(&Phrase::in_cell(mean.ratio, None, MetricKind::Speed).change);
            format!("`{engine}`{NO_BREAK_SPACE}{ratio}{mark}{rank_mark}{against}")
        });
        let means = means.collect::<Vec<_>>().join(", ");
        let (mean, workloads) = (Mark::GeometricMean, first.workloads);
        remarks.push(format!("{mean} over {workloads} workloads ({MEAN_CAUTION}): {means}"));
    }
    remarks.extend(report.verdicts.preset_effects.iter().filter_map(|it| preset_effect(report, labels, it)));
    remarks.extend(noise(report, labels));
    remarks
}

/// ``precision impact, `toy:half` against `toy`: decode 1.61x [1.60, 1.63] (3.10 ms a token less)``.
fn preset_effect(report: &Report, labels: &Labels, preset: &PresetEffect) -> Option<String> {
    let shown = |pair: &&PairVerdict| {
        pair.is_headline && pair.is_verified && pair.result.is_ok() && !pair.has_failed(&report.rows)
    };
    let pairs: Vec<&PairVerdict> = preset.pairs.iter().filter(shown).collect();
    let first = pairs.first()?;
    let (engine, against) = (labels.label(&first.engine), labels.label(&first.against));
    let texts = pairs.iter().map(|it| format!("{}{}", compact(it), time_difference(report, it)));
    let texts = texts.collect::<Vec<_>>().join(", ");
    Some(format!("{}, `{engine}` against `{against}`: {texts}", preset.effect))
}

/// The difference in time, where it is certain.
fn time_difference(report: &Report, pair: &PairVerdict) -> String {
    let is_certain = pair.certainty() == Some(Certainty::Differs);
    let Some(difference) = pair.difference_ns(&report.rows).filter(|_| is_certain) else {
        return String::new();
    };
    let per_token = if pair.metric.unit == Unit::TokensPerSecond { " a token" } else { "" };
    let more = if difference > 0.0 { "more" } else { "less" };
    unbroken(&format!(" ({}{per_token} {more})", Unit::Nanoseconds.show(difference.abs())))
}

/// The noise of this run, and the calibration of the machine. Of several references the largest noise counts.
fn noise(report: &Report, labels: &Labels) -> Option<String> {
    let noise = &report.verdicts.noise;
    let floors = noise.iter().flat_map(|noise| &noise.floors);
    let floors = group_by_key(floors.map(|(case, floor)| (case, floor.log_ratio()))).into_iter();
    let of_case = floors.map(|(case, floors)| {
        let largest = floors.into_iter().fold(0.0, f64::max);
        unbroken(&format!("{case} {}", stats::size(largest)))
    });
    let floors = of_case.collect::<Vec<_>>().join(", ");
    let source = match noise.as_slice() {
        [] => return None,
        [one] => format!("`{}` against its twin (a second copy of it)", labels.label(&one.engine)),
        _ => "each reference against its twin (a second copy of it), at most".into(),
    };
    let calibration = calibration(report, labels);
    Some(format!("noise floor, {source}: {floors}{calibration}"))
}

/// The time of the calibration, the engines that lack one, and the command that calibrates them.
fn calibration(report: &Report, labels: &Labels) -> String {
    let Calibration { since, uncalibrated, remedy } = &report.verdicts.calibration;
    // A calibration measures each engine and its twin.
    let of_blocks = |ns: u64| Duration::from_nanos(ns) / report.begun_blocks.max(1) * 2 * CALIBRATION_BLOCKS;
    let time = report.elapsed_ns.map(|ns| format!(" in up to {}", estimated_time(of_blocks(ns))));
    let hint = remedy.as_ref().map_or_else(String::new, |remedy| {
        format!("; {CALIBRATION_BLOCKS} blocks measure it{}; hint: `{remedy}`", time.unwrap_or_default())
    });
    let name = |it: &Uncalibrated| {
        let workloads =
            if it.workloads.is_empty() { String::new() } else { format!(" ({})", it.workloads.join(", ")) };
        format!("`{}`{workloads}", labels.label(&it.engine))
    };
    let names = uncalibrated.iter().map(name).collect::<Vec<_>>().join(", ");
    match (since, uncalibrated.is_empty()) {
        (None, true) => String::new(),
        (Some(since), true) => format!("; calibrated at {since}"),
        // The command names the engines.
        (None, false) => format!("; not calibrated{hint}"),
        (Some(since), false) => format!("; calibrated at {since}, but not for {names}{hint}"),
    }
}

/// The cell of the `vs ref` column. A number without a mark is certain.
pub fn cell(report: &Report, row: &Row, pairs: bool) -> String {
    if row.failure.is_some() {
        return String::new();
    }
    if report.is_wrong(row) {
        return "wrong".into();
    }
    let mark = mark_of(report, &row.engine.label);
    if row.is_reference() {
        return format!("{}{mark}", Mark::Reference);
    }
    if report.is_unverified(row) {
        return "unverified".into();
    }
    let pair = report.verdicts.headline_for_view(row, pairs).filter(|pair| !pair.has_failed(&report.rows));
    let Some(pair) = pair else { return Mark::NotAvailable.to_string() };
    let Some(ratio) = pair.ratio() else { return Mark::NotAvailable.to_string() };
    let is_quotient = Compared::as_stored(pair).is_quotient_of_reference(&report.rows, row);
    let quotient_mark = if is_quotient { "" } else { Mark::NotAQuotient.sign() };
    let ratio = Phrase::in_cell(ratio, pair.bounds(), pair.metric.kind()).change;
    match pair.certainty() {
        Some(Certainty::Differs) => format!("{ratio}{quotient_mark}{mark}"),
        Some(Certainty::Same) => format!("same{mark}"),
        Some(Certainty::Inconclusive) => format!("{ratio}{}{quotient_mark}{mark}", Mark::Inconclusive),
        _ => format!("{ratio}{}{quotient_mark}{mark}", Mark::NoVerdict),
    }
}

/// The text after a verdict on an engine with a contradicted claim.
fn caution(report: &Report, engine: &str) -> &'static str {
    if is_contradicted(report, engine) { "; a claim is contradicted, see the warnings" } else { "" }
}

/// The mark of the ratios of an engine with a contradicted claim. Such an engine has no rank.
fn mark_of(report: &Report, engine: &str) -> &'static str {
    if is_contradicted(report, engine) { Mark::Contradicted.sign() } else { "" }
}

fn is_contradicted(report: &Report, engine: &str) -> bool {
    report.rows.iter().any(|row| row.engine.label == engine && row.contradicted)
}

/// The explanations of the marks that occur.
pub fn legend(report: &Report, pairs: bool) -> Vec<String> {
    let rows = || report.rows.iter().filter(|row| row.failure.is_none() && !row.is_reference());
    let shown = || {
        let of_row = |row| Some((row, report.verdicts.headline_for_view(row, pairs)?));
        rows().filter_map(of_row).filter(|(_, pair)| !pair.has_failed(&report.rows))
    };
    let certainties: Vec<Certainty> = shown().filter_map(|(_, pair)| pair.certainty()).collect();
    let shown_ratios = || {
        let with_ratio = shown().filter(|(_, pair)| pair.certainty() != Some(Certainty::Same));
        with_ratio.filter(|(_, pair)| pair.ratio().is_some())
    };
    let mut means = report.verdicts.means.iter();
    let inconclusive_mean = means.any(|mean| mean.is_verified && !mean.is_conclusive);
    let of_mean = if inconclusive_mean { "; in a mean: one of its ratios is inconclusive" } else { "" };
    let marks = [
        (
            shown_ratios()
                .any(|(row, pair)| !Compared::as_stored(pair).is_quotient_of_reference(&report.rows, row)),
            Mark::NotAQuotient.legend(),
        ),
        (certainties.contains(&Certainty::Same), Certainty::Same.legend()),
        (
            inconclusive_mean || certainties.contains(&Certainty::Inconclusive),
            format!("{}{of_mean}", Mark::Inconclusive.legend()),
        ),
        (certainties.contains(&Certainty::NoVerdict), Mark::NoVerdict.legend()),
        (
            report.rows.iter().any(|row| row.contradicted && row.failure.is_none()),
            Mark::Contradicted.legend(),
        ),
    ];
    marks.into_iter().filter(|(occurs, _)| *occurs).map(|(_, meaning)| meaning).collect()
}

/// The short form of a verdict, which stays on one line except for the reason of an inconclusive one: `decode 11.0x [10.9, 11.1]`, `prefill same`,
/// `ttft 16 inconclusive [1.2x slower, 8.0 % faster]`, or `decode 1.61x?` without a verdict.
fn compact(pair: &PairVerdict) -> String {
    let case = &pair.case;
    let kind = pair.metric.kind();
    let text = match (pair.certainty(), pair.ratio()) {
        (Some(Certainty::Differs), Some(ratio)) => {
            format!("{case} {}", Phrase::in_cell(ratio, pair.bounds(), kind))
        }
        (Some(Certainty::Same), _) => format!("{case} same"),
        (Some(Certainty::Inconclusive), _) => {
            let bounds =
                pair.bounds().map_or_else(String::new, |it| format!(" {}", bounds_in_cell(it, kind)));
            let verdict = unbroken(&format!("{case} {}{bounds}", Certainty::Inconclusive.words()));
            let why = pair.comparison().and_then(Comparison::why_inconclusive);
            return why.map_or(verdict.clone(), |why| format!("{verdict}: {why}"));
        }
        (Some(Certainty::NoVerdict), Some(ratio)) => {
            format!("{case} {}{}", Phrase::in_cell(ratio, pair.bounds(), kind).change, Mark::NoVerdict)
        }
        _ => format!("{case} {}", Mark::NotAvailable),
    };
    unbroken(&text)
}
