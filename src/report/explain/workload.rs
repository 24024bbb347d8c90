//! A workload in sentences: the ranking of its rows, and for one row the verdicts, the measurement, the limit and the memory.

use super::comparison::{self, Detail};
use super::context::{Context, Part, launches};
use super::next_step::NextStep;
use super::{next_step, output, subject};
use crate::analysis::metric::{Better, MetricId, Unit, share};
use crate::record::{FailureKind, WarmUp, WarmUpEnd};
use crate::report::limits;
use crate::report::notes;
use crate::report::ranking::{Ranking, Unranked, why_no_value};
use crate::report::rows::{FailureSummary, Row};
use crate::report::verdicts::PairVerdict;
use crate::text::{plural, three_digits, with_commas};
use stats::StoppedBy;

/// All rows of a workload: how it was measured, the ranking, and a verdict for each row.
pub fn case_parts(context: &Context, workload: &str) -> Vec<Part> {
    let mut parts = vec![extent(context, workload)];
    for ranking in context.rankings.iter().filter(|it| it.case == workload) {
        parts.extend(ranking.ranked.iter().map(|row| verdicts(context, row, Detail::Brief)));
        parts.extend(ranking.unranked.iter().map(|(row, _)| verdicts(context, row, Detail::Brief)));
    }
    for failed in &context.report.failed {
        if !context.report.rows.iter().any(|row| row.engine.label == failed.engine.label) {
            parts.push(failure(context, &failed.engine.label, None, &failed.failure));
        }
    }
    parts
}

/// One row with all its evidence.
pub fn row_parts(context: &Context, configuration: usize, workload: &str) -> Vec<Part> {
    let label = &context.data.engines[configuration].label;
    let Some(row) = context.row(configuration, workload) else {
        return vec![without_row(context, configuration, workload)];
    };
    let mut parts = vec![verdicts(context, row, Detail::Full)];
    if row.failure.is_none() {
        parts.push(measurement(context, row));
        parts.extend(limit(context, row));
        parts.extend(data_sheet(row));
        parts.extend(memory(row));
    }
    if context.configuration(label).is_some() {
        parts.extend(output::part(context, configuration, Detail::Full));
    }
    parts.retain(|part| !part.sentences.is_empty());
    parts
}

fn without_row(context: &Context, configuration: usize, workload: &str) -> Part {
    let label = &context.data.engines[configuration].label;
    let failed = context.report.failed.iter().find(|it| it.engine.label == *label);
    if let Some(failed) = failed {
        return failure(context, label, None, &failed.failure);
    }
    let mut part = Part::titled(format!("`{label}` {workload}"));
    match subject::purpose(&context.data, configuration) {
        Some(purpose) => part.say(purpose),
        None => part
            .say("It has no samples in this case: the run ended before, or the plan does not have the case."),
    }
    part
}

/// How the workload was measured, and why it ended.
fn extent(context: &Context, workload: &str) -> Part {
    let mut part = Part::titled(format!("`{workload}`: how it was measured"));
    let Some(row) = context.report.rows.iter().find(|row| row.case.label == workload) else {
        part.say("Nothing was measured in this case.");
        return part;
    };
    if let Some(metric) = row.case.headline {
        let better = if metric.better == Better::Higher { "more" } else { "less" };
        part.say(format!("Engines are ranked by {}; {better} is better.", metric.title));
    }
    part.say(match row.case.scores_text {
        true => "Each configuration scored the text once, so its value has no noise and no interval.".into(),
        false => blocks(context, workload),
    });
    let floors = context.report.verdicts.noise.iter();
    for noise in floors {
        for (_, floor) in noise.floors.iter().filter(|(case, _)| case == workload) {
            part.say(format!(
                "`{}` and its twin, the same program, differed by up to {} in {}: this is noise.",
                noise.engine,
                stats::size(floor.log_ratio()),
                plural(floor.blocks(), "block")
            ));
            part.say(format!(
                "Only comparisons with `{}` use this noise floor. Comparisons of two other engines have one only after `orchestrate calibrate`.",
                noise.engine
            ));
        }
    }
    part
}

/// `It ended after 5 blocks of 3 rounds, because all intervals were narrow enough.` The rounds are those that ran.
fn blocks(context: &Context, workload: &str) -> String {
    let Some(measured) = context.report.workloads.iter().find(|it| it.workload == workload) else {
        return "The number of blocks is unknown.".into();
    };
    let blocks = plural(measured.blocks, "block");
    let rounds = match measured.rounds {
        Some((least, most)) if least == most => format!(" of {}", plural(most, "round")),
        Some((least, most)) => format!(" of {least} to {most} rounds"),
        None => String::new(),
    };
    match measured.stopped_by {
        Some(StoppedBy::Width) => {
            format!("It ended after {blocks}{rounds}, because all intervals were narrow enough.")
        }
        Some(StoppedBy::LastAnalysis) => {
            format!(
                "It ended after {blocks}{rounds}, the maximum unless `--blocks` sets a number; some intervals were \
                 still wide."
            )
        }
        Some(StoppedBy::Time) => {
            let planned = context.report.rounds_beyond_budget(measured);
            let fewer = planned.map_or_else(String::new, |planned| {
                format!(" It was too short for the planned {} in every block.", plural(planned, "round"))
            });
            format!("It ended after {blocks}{rounds}, because the time budget was used up.{fewer}")
        }
        // A sequential run has a fixed number of blocks, even if no option sets one.
        Some(StoppedBy::Fixed) if context.report.planned_blocks.is_none() => {
            format!("It has {blocks}{rounds}: with `--order sequential` this number is fixed.")
        }
        Some(StoppedBy::Fixed) => {
            format!("It has {blocks}{rounds}, because {} set this number.", setting_of_blocks(context))
        }
        None => format!("The run ended before this case was complete; it has up to {blocks}{rounds}."),
    }
}

/// The option of the recorded command that set the number of blocks, or the run file.
fn setting_of_blocks(context: &Context) -> &'static str {
    let is_given = |option: &&str| {
        let is_option = |word: &String| word == option || word.starts_with(&format!("{option}="));
        context.report.command.iter().any(is_option)
    };
    match ["--blocks", "--quick"].into_iter().find(is_given) {
        Some("--blocks") => "`--blocks`",
        Some(_) => "`--quick`",
        None => "the run file or the command",
    }
}

/// The value of a row, its rank, and its verdicts against the reference and against the best or next best row.
pub fn verdicts(context: &Context, row: &Row, detail: Detail) -> Part {
    let (label, case) = (&row.engine.label, &row.case.label);
    if let Some(why) = &row.failure {
        return failure(context, label, Some(case), why);
    }
    let value = value_with_title(row).map_or_else(String::new, |value| format!(": {value}"));
    let mut part = Part::titled(format!("`{label}` `{case}`{value}"));
    let ranking = context.ranking(row);
    match ranking.and_then(|it| unranked(it, row)) {
        Some(why) => part.say(format!("It has no rank: {}.", why_unranked(context, row, why))),
        None => part.sentences.extend(ranking.and_then(|it| rank(it, row))),
    }
    if context.report.is_wrong(row) {
        return part;
    }
    let is_unverified = context.report.is_unverified(row);
    let reference = row.reference.as_ref().filter(|_| !row.is_reference());
    if is_reference_of_others(context, row) {
        part.say("It is the reference: the other engines are compared with it.");
    }
    let find = |label: &String| {
        context.report.rows.iter().find(|it| it.engine.label == *label && it.case.label == *case)
    };
    let verdicts = &context.report.verdicts;
    if let Some(reference) = reference {
        match find(reference) {
            None => part.say(format!(
                "There is no ratio: the reference `{reference}` was not measured in this case."
            )),
            Some(Row { failure: Some(failure), .. }) => {
                let verb = failure.verb();
                part.say(format!("There is no ratio: the reference `{reference}` {verb} in this case."));
            }
            Some(it) if context.report.is_wrong(it) => {
                part.say(format!("There is no ratio: the output of the reference `{reference}` is wrong."));
            }
            // The sentence about its rank says that its output is unverified.
            Some(_) if is_unverified => {}
            Some(it) if context.report.is_unverified(it) => {
                part.say(format!(
                    "There is no ratio: the output of the reference `{reference}` is unverified."
                ));
            }
            Some(it) => {
                let pairs = ("Reference", verdicts.against_reference.as_slice());
                comparison::explain(context, &mut part, (row, it), pairs, detail);
            }
        }
    }
    let other = ranking.filter(|_| !is_unverified).and_then(|it| match it.best() {
        Some(best) if std::ptr::eq(best, row) => Some(("Next best", it.next_best()?)),
        best => Some(("Best", best?)),
    });
    if let Some((intro, other)) = other.filter(|(_, other)| Some(&other.engine.label) != reference) {
        comparison::explain(context, &mut part, (row, other), (intro, &verdicts.all_pairs), detail);
    }
    if let Some(baseline) =
        verdicts.against_baseline.iter().find(|it| it.is_headline && it.engine == *label && it.case == *case)
    {
        part.say(format!("Against its baseline: {}.", baseline.sentence));
    }
    let settings = context.report.settings.iter().map(|it| &it.pair).filter(|it| it.is_verified);
    for pair in settings.filter(|it| it.engine == *label && it.case == *case) {
        part.say(format!("Against the same engine with another setting: {}.", pair.sentence));
    }
    part
}

/// The value of a row by its headline, with the title of the metric, unless the case has this name: `TTFT 23.0 ms`.
fn value_with_title(row: &Row) -> Option<String> {
    let (metric, value) = (row.case.headline?, comparison::value(row)?);
    Some(if metric.title == row.case.label { value } else { format!("{} {value}", metric.title) })
}

/// Whether a row is the reference of other engines in its workload.
fn is_reference_of_others(context: &Context, row: &Row) -> bool {
    let is_other = |it: &Row| it.case.label == row.case.label && it.engine.label != row.engine.label;
    let is_sound = !context.report.is_wrong(row) && !context.report.is_unverified(row);
    row.is_reference() && is_sound && context.report.rows.iter().any(is_other)
}

/// The verdict of a row in one paragraph: its value, its rank, and the ratios to the reference and to the best or next best row.
pub fn verdict_in_short(context: &Context, part: &mut Part, row: &Row) {
    let case = &row.case.label;
    if let Some(why) = &row.failure {
        let what = match why.kind {
            // A budget that was too short is no fault of the engine, and a setting that it does not support is no failure.
            FailureKind::NoTime | FailureKind::Unsupported | FailureKind::Unavailable => "not measured: ",
            FailureKind::Refused => "",
            _ => "it failed: ",
        };
        part.say(format!("`{case}`: {what}{}.", why.line().trim_end_matches('.')));
        let step = after_failure(context, &row.engine.label, why);
        step.into_iter().flat_map(|it| it.hints).for_each(|hint| part.hint(hint));
        return;
    }
    let value = value_with_title(row).map(|value| format!("`{case}`: {value}"));
    let ranking = context.ranking(row);
    let rank = match ranking.and_then(|it| unranked(it, row)) {
        Some(why) => Some(format!("no rank: {}", why_unranked(context, row, why))),
        None => ranking.and_then(|it| {
            let index = it.ranked.iter().position(|ranked| std::ptr::eq(*ranked, row))?;
            Some(match it.ranked.len() {
                1 => "the only engine with a rank".into(),
                all => format!("rank {} of {all}", index + 1),
            })
        }),
    };
    let first: Vec<String> = value.or_else(|| Some(format!("`{case}`"))).into_iter().chain(rank).collect();
    let mut sentences = vec![first.join(", ")];
    if !context.report.is_wrong(row) && !context.report.is_unverified(row) {
        let opponents = opponents(context, row);
        let all = opponents.iter().filter_map(|it| {
            let other = format!("the {} `{}`", it.role, it.row.engine.label);
            comparison::in_short(context, part, (row, it.row), (&other, it.pairs))
        });
        sentences.extend(all);
    }
    if is_reference_of_others(context, row) {
        sentences.push(format!("`{}` is the reference of the others", row.engine.label));
    }
    part.say(format!("{}.", sentences.join("; ")));
}

/// A row that another row is compared with.
struct Opponent<'a> {
    role: &'static str,
    row: &'a Row,
    /// All comparisons that are corrected together with this one.
    pairs: &'a [PairVerdict],
}

/// The reference of a row, and the best row of its workload or the next best. Rows without a valid value are left out.
fn opponents<'a>(context: &'a Context, row: &Row) -> Vec<Opponent<'a>> {
    let report = context.report;
    let is_reference =
        |it: &&Row| Some(&it.engine.label) == row.reference.as_ref() && it.case.label == row.case.label;
    let reference = report
        .rows
        .iter()
        .find(is_reference)
        .filter(|it| !row.is_reference() && it.failure.is_none())
        .filter(|it| !report.is_wrong(it) && !report.is_unverified(it));
    let pairs = report.verdicts.against_reference.as_slice();
    let reference = reference.map(|it| Opponent { role: "reference", row: it, pairs });
    let best = context.ranking(row).and_then(|ranking| match ranking.best() {
        Some(best) if std::ptr::eq(best, row) => Some(("next best,", ranking.next_best()?)),
        best => Some(("best,", best?)),
    });
    let best = best.filter(|(_, best)| Some(&best.engine.label) != row.reference.as_ref());
    // A pair with the reference has one verdict everywhere: the one among the comparisons with the reference.
    let of_best = if row.is_reference() { pairs } else { &report.verdicts.all_pairs };
    let best = best.map(|(role, row)| Opponent { role, row, pairs: of_best });
    reference.into_iter().chain(best).collect()
}

fn unranked(ranking: &Ranking, row: &Row) -> Option<Unranked> {
    ranking.unranked.iter().find(|(it, _)| std::ptr::eq(*it, row)).map(|(_, why)| *why)
}

fn rank(ranking: &Ranking, row: &Row) -> Option<String> {
    let all = ranking.ranked.len();
    let index = ranking.ranked.iter().position(|it| std::ptr::eq(*it, row))?;
    Some(match all {
        1 => "It is the only engine with a rank.".into(),
        _ => format!("Its rank is {} of {all}, by {}.", index + 1, ranking.metric.title),
    })
}

fn why_unranked(context: &Context, row: &Row, why: Unranked) -> String {
    match why {
        Unranked::Failed => "it failed".into(),
        Unranked::NoValue => row.case.headline.map_or_else(|| "it has no metric".into(), why_no_value),
        Unranked::Wrong => "its output is wrong, so its speed is not compared".into(),
        Unranked::Unverified if context.report.no_checks.is_some() => "its output was not checked".into(),
        Unranked::Unverified => {
            "its output is unverified, so its speed may be that of another computation".into()
        }
        Unranked::Contradicted => {
            let of_row = context.report.contradictions.iter();
            let mut of_row = of_row.filter(|it| it.label == row.engine.label);
            of_row.next().map_or_else(
                || "an observation contradicts one of its claims".into(),
                |it| {
                    let (about, reported, observed) = (it.about.name(), &it.reported, &it.observed);
                    format!(
                        "its claim about {about} is contradicted (reported {reported}, observed {observed})"
                    )
                },
            )
        }
    }
}

/// A failure of an engine, or of one of its cases, with the last lines of stderr and the next step.
pub fn failure(context: &Context, label: &str, case: Option<&str>, failure: &FailureSummary) -> Part {
    let case = case.map_or_else(String::new, |case| format!(" `{case}`"));
    let mut part = Part::titled(format!("`{label}`{case}: not measured"));
    let line = failure.line();
    let what = line.trim_end_matches('.');
    part.say(match failure.kind {
        // The message begins with `no time`.
        FailureKind::NoTime => format!("It had {what}."),
        _ if failure.is_expected() => format!("Its answer: {what}."),
        FailureKind::Unsupported | FailureKind::Unavailable => format!("It was not measured: {what}."),
        _ => format!("It failed: {what}."),
    });
    let meaning = failure.kind.about();
    part.sentences.extend((!meaning.is_empty()).then(|| meaning.into()));
    part.sentences.extend(failure.stderr.iter().map(|line| format!("stderr: {line}")));
    if let Some(step) = after_failure(context, label, failure) {
        part.sentences.extend(step.sentence);
        part.hints.extend(step.hints);
    }
    part
}

/// The step after a failure of an engine.
pub fn after_failure(context: &Context, label: &str, failure: &FailureSummary) -> Option<NextStep> {
    let configuration = context.configuration(label)?;
    next_step::after(failure, &context.data.plan.configurations[configuration])
}

/// How a row was measured: its launches and requests, the spread of its values, and its warm-up.
fn measurement(context: &Context, row: &Row) -> Part {
    let mut part = Part::titled("measurement");
    part.say(format!(
        "It made {} in {}.",
        plural(with_commas(row.samples), "measured request"),
        launches(row.launches)
    ));
    if let Some((metric, summary)) = row.case.headline.and_then(|it| Some((it, row.summary(it.id)?))) {
        let show = |value| metric.unit.show(value);
        if summary.launches > 1 {
            let least = summary.launch_medians.iter().copied().fold(f64::INFINITY, f64::min);
            let most = summary.launch_medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            part.say(format!(
                "The value {} is the median of the launches' medians, which lie between {} and {}.",
                show(summary.estimate),
                show(least),
                show(most)
            ));
        }
        match summary.n {
            1 => part.say(format!("Its only value is {}.", show(summary.min))),
            // With one value in each launch, the sentence above has both ends.
            n if n == summary.launches => {}
            n => part.say(format!(
                "Its {} values lie between {} and {}.",
                with_commas(n),
                show(summary.min),
                show(summary.max)
            )),
        }
    }
    if let Some(arguments) = context.case(row).and_then(|case| context.data.plan.request_arguments(case)) {
        part.say(format!("This command prints its first request: `orchestrate request {arguments}`."));
    }
    part.sentences.extend(warm_ups(&row.warm_ups));
    if let Some(cores) = row.resources.as_ref().and_then(|it| it.cores_busy) {
        part.say(format!("During requests it kept {} cores busy on average.", three_digits(cores)));
    }
    part.sentences.extend(remarks(context, row));
    part
}

/// The notes about a row: drift, differing launches, slow first requests, outliers and unsteady warm-ups.
pub fn remarks(context: &Context, row: &Row) -> Vec<String> {
    let case = context.case(row);
    let notes = case.map_or_else(Vec::new, |case| notes::of_row(&context.data, case, row));
    notes.into_iter().map(|note| format!("Note: {}.", note.trim_end_matches('.'))).collect()
}

fn warm_ups(warm_ups: &[WarmUp]) -> Option<String> {
    let least = warm_ups.iter().map(|it| it.requests).min()?;
    let most = warm_ups.iter().map(|it| it.requests).max()?;
    let requests =
        if least == most { plural(most, "request") } else { format!("{least} to {most} requests") };
    let timed_out = warm_ups.iter().filter(|it| it.ended_by == WarmUpEnd::Time).count();
    Some(if timed_out > 0 {
        format!(
            "The warm-up had {requests}; in {timed_out} of {} its time ended before times were steady.",
            launches(warm_ups.len())
        )
    } else if warm_ups.iter().all(|it| it.ended_by == WarmUpEnd::SetByUser) {
        format!("The warm-up had {requests} in each launch, as the command line set it.")
    } else {
        format!(
            "The warm-up had {requests} in each launch, enough for request times that are steady within 10 %."
        )
    })
}

/// The share of the machine's limit, and how it was computed.
fn limit(context: &Context, row: &Row) -> Option<Part> {
    let mut part = Part::titled("share of the machine's limit");
    let key = match &row.limit {
        Ok(key) => key.as_ref()?,
        Err(absent) => {
            part.say("There is no share of the machine's limit.");
            part.say(limits::why_absent(absent));
            return Some(part);
        }
    };
    let limit = context.report.limits.iter().find(|limit| limit.key == *key)?;
    let share_of = |id: MetricId| row.summary(id).map(|summary| summary.estimate);
    let observations =
        || context.case(row).into_iter().flat_map(|case| context.data.values.observations(case));
    if row.case.headline.map(|it| it.id) == Some(MetricId::DECODE_RATE) {
        let share = share_of(MetricId::BANDWIDTH_SHARE)?;
        let bytes = observations().find_map(|it| share::decode_bytes(&it))?;
        part.title = share_title(share);
        part.say(format!(
            "Each decode step must read {}: {} of weights, and {} of keys and values on average.",
            Unit::Bytes.show(bytes.per_step()),
            Unit::Bytes.show(bytes.weights_per_step),
            Unit::Bytes.show(bytes.cached_per_step())
        ));
        part.say(format!(
            "At this speed that is {}/s, {} % of the limit: {}.",
            Unit::Bytes.show(share * limit.best()),
            three_digits(100.0 * share),
            limits::described(limit)
        ));
    } else {
        let share = share_of(MetricId::COMPUTE_SHARE)?;
        let operations = observations().find_map(|it| share::operations(&it))?;
        part.title = share_title(share);
        part.say(format!(
            "A prefill of this prompt needs {} × 10⁹ operations.",
            three_digits(operations / 1e9)
        ));
        part.say(format!(
            "At this speed that is {} × 10⁹ a second, {} % of the limit: {}.",
            three_digits(share * limit.best() / 1e9),
            three_digits(100.0 * share),
            limits::described(limit)
        ));
    }
    if share_is_above_one(row) {
        part.say(
            "A share above 100 % means: the machine was slower during the probes, the engine used more threads than \
             requested, or a reported fact is wrong.",
        );
    }
    part.sentences.extend(limits::changed(limit));
    Some(part)
}

/// The share of the peak that the data sheet of the GPU states.
fn data_sheet(row: &Row) -> Option<Part> {
    let (share, peak) = (row.data_sheet_share()?, row.stated_peak?);
    let mut part = Part::titled(format!("share of the data sheet's peak: {} %", three_digits(100.0 * share)));
    part.say(format!(
        "The data sheet of `{}` states {}, at the highest clock and without sparsity.",
        peak.gpu,
        limits::stated(&peak)
    ));
    Some(part)
}

fn share_title(share: f64) -> String {
    let class = share::Class::of(share).map(|it| format!(", {}", it.words())).unwrap_or_default();
    format!("share of the machine's limit: {} %{class}", three_digits(100.0 * share))
}

fn share_is_above_one(row: &Row) -> bool {
    let shares = [MetricId::BANDWIDTH_SHARE, MetricId::COMPUTE_SHARE];
    shares.iter().any(|id| row.summary(*id).is_some_and(|it| it.estimate > 1.0))
}

/// The memory of a row, by its parts.
pub fn memory(row: &Row) -> Option<Part> {
    let resources = row.resources.as_ref()?;
    let mut part = Part::titled("memory");
    let show = |bytes| Unit::Bytes.show(bytes);
    if let Some(peak) = resources.peak_bytes {
        part.title = format!("memory: peak {}", show(peak));
        part.say(format!(
            "Its processes held at most {} of memory, from their start to the end of this case.",
            show(peak)
        ));
    }
    if let (Some(anonymous), Some(file)) = (resources.anonymous_bytes, resources.file_bytes) {
        part.say(format!(
            "During requests, {} of its memory is its own. Files that it maps take {}, which the kernel can free.",
            show(anonymous),
            show(file)
        ));
    }
    if let Some(weights) = resources.weights_bytes {
        part.say(format!("It reports {} of weights.", show(weights)));
    }
    if let Some(device) = resources.device_bytes {
        part.say(format!("On the device it held at most {}.", show(device)));
    }
    (!part.sentences.is_empty()).then_some(part)
}
