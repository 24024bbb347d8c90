//! The text of a judgement for every format that people read.

use crate::analysis::compare::judgement::{
    Change, Judgement, Mean, Outcome, REFUSES_IN_BOTH, Side, severity_name,
};
use crate::analysis::metric::Scale;
use crate::report::document::{Column, Line, Overflow, Table};
use crate::report::headings;
use crate::report::marks::Mark;
use crate::report::rows::group_by_key;
use crate::report::verdict_lines::with_mark;
use crate::text::{line, plural};
use stats::{Severity, Verdict, quality};

pub const MEAN_CAUTION: &str =
    "each workload has the same weight in a geometric mean; no single workload has this ratio";

/// The lines before the table: forced comparison, notices about the records, base and new.
pub fn lines_before_table(judgement: &Judgement) -> Vec<String> {
    let differences = judgement.forced_differences.iter();
    let forced = differences.map(|it| format!("not comparable, but compared because of `--force`: {it}"));
    let notices = judgement.notices.iter().map(|notice| format!("note: {}", line(notice)));
    forced.chain(notices).chain(sides(judgement)).collect()
}

fn sides(judgement: &Judgement) -> Vec<String> {
    let side = |it: &Side| match it.name == it.record {
        true => format!("record {}", it.record),
        false => format!("{} (record {})", line(&it.name), it.record),
    };
    if judgement.side_by_side {
        return vec![format!("base and new, measured in turn: {}", side(&judgement.new))];
    }
    let age =
        age(&judgement.base.started, &judgement.new.started).map_or(String::new(), |age| format!(", {age}"));
    vec![format!("base: {}{age}", side(&judgement.base)), format!("new:  {}", side(&judgement.new))]
}

/// The age of the base: `measured 3 days before the new run`. The older the base, the more the machine may have changed.
fn age(base: &str, new: &str) -> Option<String> {
    let [base, new] = [base, new].map(|it| humantime::parse_rfc3339(it).ok());
    let seconds = new?.duration_since(base?).ok()?.as_secs();
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    let (count, unit) =
        units.into_iter().map(|(length, unit)| (seconds / length, unit)).find(|(count, _)| *count > 0)?;
    Some(format!("measured {} before the new run", plural(count, unit)))
}

/// A sentence for each headline metric, the highest severity first.
pub fn sentences(judgement: &Judgement) -> Vec<String> {
    gating(judgement).into_iter().map(marked).collect()
}

/// The changes of headline metrics, the highest severity first.
fn gating(judgement: &Judgement) -> Vec<&Change> {
    let mut gating: Vec<&Change> = judgement.changes.iter().filter(|it| it.gating).collect();
    gating.sort_by_key(|it| (std::cmp::Reverse(it.severity), urgency(it)));
    gating
}

fn marked(change: &Change) -> String {
    match change.severity {
        Severity::Informative => change.sentence.clone(),
        severity => format!("{}: {}", severity_name(severity), change.sentence),
    }
}

/// The most sentences on one screen.
const MAX_SENTENCES: usize = 10;
/// The most notes on one screen.
const MAX_NOTES: usize = 2;

/// The first sentences, and the number of the others. If not all fit, those about unchanged headline metrics are left out.
pub fn first_sentences(judgement: &Judgement) -> Vec<String> {
    let all = sentences_with_failures_once(judgement);
    let same = judgement.changes.iter().filter(|it| it.gating && is(it, Verdict::Same)).count();
    let changed = if all.len() > MAX_SENTENCES { all.len() - same } else { all.len() };
    let more = match changed.saturating_sub(MAX_SENTENCES) {
        0 => None,
        more => Some(format!("and {}", plural(more, "more change"))),
    };
    let unchanged = (changed < all.len()).then(|| format!("{} the same", plural(same, "headline metric")));
    let rest: Vec<String> = more.into_iter().chain(unchanged).collect();
    let shown = all.into_iter().take(changed.min(MAX_SENTENCES));
    shown.chain((!rest.is_empty()).then(|| format!("{}: `--full` has them", rest.join(", ")))).collect()
}

/// The sentences, with one for all cases that fail as before for one reason: an engine that cannot run fails in every case.
fn sentences_with_failures_once(judgement: &Judgement) -> Vec<String> {
    let mut groups: Vec<(&Change, usize)> = Vec::new();
    for change in gating(judgement) {
        let reason = |it: &Change| match &it.outcome {
            Outcome::FailedInBoth(how) | Outcome::RefusedInBoth(how) => {
                Some((it.configuration.clone(), how.clone()))
            }
            _ => None,
        };
        let known =
            groups.iter_mut().find(|(it, _)| reason(change).is_some() && reason(it) == reason(change));
        match known {
            Some((_, cases)) => *cases += 1,
            None => groups.push((change, 1)),
        }
    }
    let sentence = |(change, cases): (&Change, usize)| match &change.outcome {
        Outcome::FailedInBoth(how) if cases > 1 => {
            format!("`{}` fails as before in {cases} cases ({how})", change.configuration)
        }
        Outcome::RefusedInBoth(how) if cases > 1 => {
            format!("`{}` {REFUSES_IN_BOTH} in {cases} cases ({how})", change.configuration)
        }
        _ => marked(change),
    };
    groups.into_iter().map(sentence).collect()
}

/// The order of changes of one severity; those that are the same come last.
fn urgency(change: &Change) -> u8 {
    match &change.outcome {
        Outcome::FailsNow(_) => 0,
        Outcome::Compared(..) | Outcome::Exact(_) if is(change, Verdict::Slower) => 1,
        Outcome::NotCompared(_) | Outcome::FailedInBoth(_) => 2,
        Outcome::FailedBefore(_) => 4,
        Outcome::Compared(..) | Outcome::Exact(_) if is(change, Verdict::Faster) => 4,
        Outcome::RefusedInBoth(_) => 5,
        Outcome::Compared(..) | Outcome::Exact(_) if is(change, Verdict::Same) => 5,
        Outcome::Compared(..) | Outcome::Exact(_) => 3,
    }
}

/// Whether the change has a range and no verdict, for example because of too few blocks.
fn is_without_verdict(change: &Change) -> bool {
    matches!(change.outcome, Outcome::Compared(..)) && change.verdict().is_none()
}

fn is(change: &Change, verdict: Verdict) -> bool {
    change.verdict() == Some(verdict)
}

/// A table for each configuration, with its name where there are several.
pub fn tables(judgement: &Judgement) -> Vec<Table> {
    let lines = judgement.changes.iter().map(|it| (it.configuration.as_str(), Line::of(cells(it))));
    let tables = group_by_key(lines);
    let several = tables.len() > 1;
    let table = |(configuration, lines): (&str, Vec<Line>)| Table {
        title: several.then(|| configuration.to_string()),
        columns: columns(),
        lines,
        gap: 2,
        ..Table::default()
    };
    tables.into_iter().map(table).collect()
}

fn columns() -> Vec<Column> {
    vec![
        Column { overflow: Overflow::Shortened, ..Column::named(headings::CASE) },
        Column::named(headings::METRIC),
        Column::value(headings::BASE_AND_NEW, ""),
        Column { overflow: Overflow::Wrapped, ..Column::fact(headings::CHANGE) },
    ]
}

fn cells(change: &Change) -> Vec<String> {
    let headline = if change.gating { format!("{} ", Mark::Headline) } else { String::new() };
    // One scale for both values.
    let scale = Scale::of(change.metric.unit, [change.base, change.new].into_iter().flatten());
    let write = |value: Option<f64>| value.map_or_else(|| "n/a".into(), |value| scale.write(value));
    vec![
        change.workload.clone(),
        format!("{headline}{}", change.metric.title),
        format!("{} → {} {}", write(change.base), write(change.new), scale.symbol),
        outcome_text(change),
    ]
}

/// The change alone, without the names of configuration and metric.
fn outcome_text(change: &Change) -> String {
    let text = match &change.outcome {
        Outcome::Compared(_, words) => words.to_string(),
        Outcome::Exact(change) => change.to_string(),
        Outcome::FailsNow(_) => "fails now".into(),
        Outcome::FailedBefore(_) => "failed before".into(),
        Outcome::FailedInBoth(_) => "fails as before".into(),
        Outcome::RefusedInBoth(_) => REFUSES_IN_BOTH.into(),
        Outcome::NotCompared(why) => format!("not compared: {why}"),
    };
    let mark = SEVERITY_MARKS.iter().find(|(severity, _)| *severity == change.severity);
    mark.map_or_else(|| text.clone(), |(_, mark)| format!("{text} {mark}"))
}

/// The marks of changes that need attention. The cell has no room for a word.
const SEVERITY_MARKS: [(Severity, Mark); 2] =
    [(Severity::Critical, Mark::CriticalChange), (Severity::Warning, Mark::WarningChange)];

fn legend(judgement: &Judgement) -> Vec<String> {
    let occurs = |wanted: Severity| judgement.changes.iter().any(|it| it.severity == wanted);
    let marks =
        SEVERITY_MARKS.iter().filter(|(severity, _)| occurs(*severity)).map(|(_, mark)| mark.legend());
    std::iter::once(Mark::Headline.legend()).chain(marks).collect()
}

/// The lines after the table: means with their caution, notes, the legend.
pub fn lines_after_table(judgement: &Judgement) -> Vec<String> {
    means(judgement).chain(notes(judgement)).chain(legend(judgement)).collect()
}

/// The lines at the end of the one screen: means with their caution, the first notes, and what `--full` adds.
pub fn last_lines(judgement: &Judgement) -> Vec<String> {
    let more = judgement.notes.len().saturating_sub(MAX_NOTES);
    let it = if more == 1 { "it" } else { "them" };
    let more = (more > 0).then(|| format!("{}: `--full` has {it}", plural(more, "more note")));
    let notes = notes(judgement).take(MAX_NOTES).chain(more);
    means(judgement).chain(notes).chain(other_metrics(judgement)).collect()
}

fn means(judgement: &Judgement) -> impl Iterator<Item = String> {
    let caution = (!judgement.means.is_empty()).then(|| MEAN_CAUTION.to_string());
    judgement.means.iter().map(mean).chain(caution)
}

fn notes(judgement: &Judgement) -> impl Iterator<Item = String> {
    judgement.notes.iter().map(|note| format!("note: {}", line(note)))
}

/// `40 other metrics without effect on the exit status: 2 worse, 1 better; `--full` has a table of all metrics`.
fn other_metrics(judgement: &Judgement) -> Option<String> {
    let others: Vec<&Change> = judgement.changes.iter().filter(|it| !it.gating).collect();
    let count = |wanted: Verdict| others.iter().filter(|it| is(it, wanted)).count();
    let counts = [(count(Verdict::Slower), "worse"), (count(Verdict::Faster), "better")];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let counts = if counts.is_empty() { "none certainly worse or better".into() } else { counts };
    let metrics = plural(others.len(), "other metric");
    (!others.is_empty()).then(|| {
        format!("{metrics} without effect on the exit status: {counts}; `--full` has a table of all metrics")
    })
}

fn mean(mean: &Mean) -> String {
    let Mean { configuration, workloads, ratio, inconclusive } = mean;
    match ratio {
        Some(ratio) => {
            let change = quality(*ratio, "before");
            let (change, uncertain) = match *inconclusive {
                0 => (change, String::new()),
                count => (
                    with_mark(&change, Mark::Inconclusive.sign()),
                    format!(" ({count} of them inconclusive)"),
                ),
            };
            format!(
                "`{configuration}`: {change}, by the geometric mean of {workloads} headline ratios{uncertain}"
            )
        }
        None => format!("`{configuration}`: no mean over {workloads} workloads, because one has no ratio"),
    }
}

/// The summary: `6 headline metrics: 1 worse, 3 the same, 2 inconclusive (1 critical)`.
pub fn summary(judgement: &Judgement) -> String {
    let gating: Vec<&Change> = judgement.changes.iter().filter(|it| it.gating).collect();
    let verdict = |wanted: Verdict| gating.iter().filter(|it| is(it, wanted)).count();
    let outcome = |is: fn(&Outcome) -> bool| gating.iter().filter(|it| is(&it.outcome)).count();
    let counts = [
        (verdict(Verdict::Slower), "worse"),
        (outcome(|it| matches!(it, Outcome::FailsNow(_))), "failing now"),
        (outcome(|it| matches!(it, Outcome::FailedInBoth(_))), "failing as before"),
        (verdict(Verdict::Faster), "better"),
        (outcome(|it| matches!(it, Outcome::FailedBefore(_))), "measured after an earlier failure"),
        (outcome(|it| matches!(it, Outcome::RefusedInBoth(_))), "refused as before, as they must be"),
        (verdict(Verdict::Same), "the same"),
        (verdict(Verdict::Inconclusive), "inconclusive"),
        (gating.iter().filter(|it| is_without_verdict(it)).count(), "without a verdict"),
        (outcome(|it| matches!(it, Outcome::NotCompared(_))), "not compared"),
    ];
    let severities = [Severity::Critical, Severity::Warning].map(|severity| {
        let word = if severity == Severity::Warning { "a warning" } else { "critical" };
        (gating.iter().filter(|it| it.severity == severity).count(), word)
    });
    let counted = |counts: &[(usize, &str)]| {
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        counts.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    let (parts, severities) = (counted(&counts), counted(&severities));
    let severity = if severities.is_empty() { String::new() } else { format!(" ({severities})") };
    let parts = if parts.is_empty() { "nothing to compare".into() } else { parts };
    format!("{}: {parts}{severity}", plural(gating.len(), "headline metric"))
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn the_age_of_a_base_is_in_its_largest_unit() {
        let age_of = |base| age(base, "2026-01-04T03:04:05Z").unwrap_or_default();
        assert_eq!(age_of("2026-01-01T03:04:05Z"), "measured 3 days before the new run");
        assert_eq!(age_of("2026-01-04T02:00:05Z"), "measured 1 hour before the new run");
        assert_eq!(age_of("2026-01-04T03:00:05Z"), "measured 4 minutes before the new run");
        // An equal time, a later time, and a text that is no time.
        assert_eq!(["2026-01-04T03:04:05Z", "2027-01-01T00:00:00Z", "yesterday"].map(age_of), [""; 3]);
    }
}
