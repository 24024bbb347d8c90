//! The warnings above the table of the default report, the explanations of its marks below, and the next commands. The full
//! report has every warning and note; `orchestrate explain` has the reasons.

use super::best;
use super::columns::limit_share;
use super::configurations::{Configuration, Overview};
use crate::analysis::agreement::{GREEDY_OPTION, NoChecks};
use crate::analysis::metric::share::Absent;
use crate::plan::context::common_reason;
use crate::record::{FEWER_BLOCKS, FailureKind};
use crate::report::document::Table;
use crate::report::grid::{reference_of_each_row, rounds_for_p99, why_no_ratios};
use crate::report::headings;
use crate::report::limits;
use crate::report::marks::Mark;
use crate::report::next_measurement::{self, More, option_for};
use crate::report::outputs::{greedy_command, is_sampled};
use crate::report::ranking::{Unranked, why_no_values};
use crate::report::rows::{FailureSummary, Row, group_by_key, with_prefix_caches};
use crate::report::run_report::Report;
use crate::report::tone::{self, Tone};
use crate::report::verdict_lines::{self, NO_VERDICTS, why_no_verdicts};
use crate::report::verdicts::{Certainty, PairVerdict};
use crate::shell::{HINT, command_with, pasteable, quoted_command};
use crate::text::{plural, shorten_at_clause, width};
use stats::{Comparison, MIN_VERDICT_BLOCKS};

/// The most warnings above the table; the full report has all. Each row beyond `ROWS_BESIDE_ALL` leaves room for one less, but two
/// are always shown: so seven rows fit into 40 lines of 80 columns.
const MAX_WARNINGS: usize = 4;
const MIN_WARNINGS: usize = 2;
const ROWS_BESIDE_ALL: usize = 5;
/// In columns: two lines of a narrow terminal.
const MAX_WARNING_WIDTH: usize = 156;
/// The most failures above the table, the most engines of one failure, and the most hints below the table.
const MAX_FAILURES: usize = 3;

/// The lines above the table: the first warnings, which the reader must know before using the results, and the comparisons
/// between variants of one engine. `saved` is the path of the record, if there is one.
/// `has_verdicts`: the table above has verdicts between engines other than the reference.
pub fn warnings(
    overview: &Overview,
    has_verdicts: bool,
    missing_sort: Option<&str>,
    saved: Option<&str>,
) -> Vec<String> {
    let report = overview.report;
    let missing_sort = missing_sort.map(|name| format!("--sort {name}: the table has no such column"));
    let mut warnings: Vec<String> = missing_sort.into_iter().collect();
    let wrong = report.outputs.iter().filter(|it| it.agreement.is_wrong());
    warnings.extend(wrong.map(|it| it.why_not_compared()));
    warnings.extend(failures(overview, saved));
    warnings.extend(beyond_context(overview));
    let no_rank = why_no_rank(overview);
    // While a run goes on, the table says that some outputs are checked later.
    let is_explained = no_rank.is_some() || report.is_running;
    warnings.extend(no_rank);
    let against = if has_verdicts { "no verdicts against the reference" } else { NO_VERDICTS };
    let no_verdicts = why_no_verdicts(report);
    let names_budget = no_verdicts.as_ref().is_some_and(|why| why.contains("`--budget "));
    warnings.extend(no_verdicts.map(|why| why.replacen(NO_VERDICTS, against, 1)));
    let labels = report.engines().map(|engine| &engine.label);
    let has_ratio = report.rows.iter().any(|row| report.verdicts.headline(row).is_some());
    // Without any result, the failures above say why. A scored text has no ratio.
    let has_result = report.rows.iter().any(|row| row.failure.is_none() && !row.case.scores_text);
    if !is_explained && !has_ratio && has_result && group_by_key(labels.map(|label| (label, ()))).len() > 1 {
        warnings.push(why_no_ratios(report));
    }
    // A budget that is too short for verdicts is too short for the blocks of slow engines.
    let is_new = |it: &String| !(names_budget && it.contains(FEWER_BLOCKS));
    // The failure of an engine without results says more than its warnings.
    let has_failed = |label: &str| {
        let rows = report.rows.iter().filter(|row| row.engine.label == label);
        report.failed.iter().any(|it| it.engine.label == label)
            || rows.clone().count() > 0 && rows.clone().all(|row| row.failure.is_some())
    };
    let of_engine = |label: &str| (!has_failed(label)).then(|| label.to_string());
    warnings.extend(report.warning_lines(of_engine).into_iter().filter(is_new));
    warnings.extend(inconclusive(overview));
    let in_caches = |row: &&Row| matches!(row.limit, Err(Absent::InCaches { .. }));
    if report.rows.iter().any(|row| in_caches(&row)) {
        let hint = "orchestrate model synth llama-3.2-1b --out llama-1b";
        warnings
            .push(format!("caches may hold the weights, so memory may not limit the speed; hint: `{hint}`"));
    }
    let mark = Tone::Warning.of(Mark::Warning.sign());
    let more_rows = overview.configurations.len().saturating_sub(ROWS_BESIDE_ALL);
    let most = MAX_WARNINGS.saturating_sub(more_rows).max(MIN_WARNINGS);
    let marked = limited(&warnings, most, saved).into_iter().map(|it| format!("{mark} {it}"));
    marked.chain(best::variants(overview)).collect()
}

/// The first warnings, at most `most`, and the number of the others.
fn limited(warnings: &[String], most: usize, saved: Option<&str>) -> Vec<String> {
    let more = warnings.len().saturating_sub(most);
    let all = || format!("{}: `{}`", plural(more, "more warning"), full_report(saved));
    let shown = warnings.iter().take(most).map(|it| shortened(it, saved));
    shown.chain((more > 0).then(all)).collect()
}

/// The command that prints the full report of this record.
fn full_report(saved: Option<&str>) -> String {
    let record = saved.map_or_else(String::new, |path| format!(" {}", pasteable(&[path.to_string()])));
    format!("orchestrate report{record} --full")
}

/// The command that explains an engine of this record.
fn explanation(label: &str, saved: Option<&str>) -> String {
    let words: Vec<String> = [Some(label), saved].into_iter().flatten().map(String::from).collect();
    format!("orchestrate explain {}", pasteable(&words))
}

/// A long warning without its last clauses, but with its hint.
fn shortened(warning: &str, saved: Option<&str>) -> String {
    let rest = full_report(saved);
    match warning.rsplit_once(HINT) {
        Some((text, hint)) => {
            let room = MAX_WARNING_WIDTH.saturating_sub(width(HINT) + width(hint)).max(MAX_WARNING_WIDTH / 2);
            format!("{}{HINT}{hint}", shorten_at_clause(text, room, &rest))
        }
        None => shorten_at_clause(warning, MAX_WARNING_WIDTH, &rest),
    }
}

/// The cases whose requests exceed a context, in one line for each context.
fn beyond_context(overview: &Overview) -> Vec<String> {
    let rows = overview.report.rows.iter().filter_map(|row| {
        let failure = row.failure.as_ref().filter(|it| !it.is_expected())?;
        Some((common_reason(&failure.message)?, row.case.label.as_str()))
    });
    let line = |(reason, cases): (&str, Vec<&str>)| {
        let cases = group_by_key(cases.into_iter().map(|case| (case, ())));
        let names = cases.into_iter().map(|(case, _)| case).collect::<Vec<_>>().join(", ");
        format!("not measured: {names}: the requests {reason}")
    };
    group_by_key(rows).into_iter().map(line).collect()
}

/// The failures of cases. A configuration that failed as a whole has its failure in the table. A refusal that must be is a
/// footnote.
fn failures(overview: &Overview, saved: Option<&str>) -> Vec<String> {
    let is_beyond_context =
        |row: &&Row| row.failure.as_ref().is_some_and(|it| common_reason(&it.message).is_some());
    let rows = overview.report.rows.iter().filter(|row| !is_beyond_context(row)).filter_map(|row| {
        let names = (row.engine.label.as_str(), row.case.label.as_str());
        Some((row.failure.as_ref().filter(|it| !it.is_expected())?, names))
    });
    let groups = group_by_key(rows);
    let more = groups.len().saturating_sub(MAX_FAILURES);
    let line = |(failure, names): &(&FailureSummary, Vec<(&str, &str)>)| {
        let rest = names.first().map_or_else(String::new, |(engine, _)| explanation(engine, saved));
        let short = |text: &str| shorten_at_clause(text, MAX_WARNING_WIDTH, &rest);
        let stderr = failure.stderr.last().map(|line| format!("; stderr: {}", short(line)));
        let (names, message) = (names_of_rows(names, saved), short(&failure.line()));
        format!("{names}: {message}{}{}", stderr.unwrap_or_default(), hint(failure))
    };
    let lines = groups.iter().take(MAX_FAILURES).map(line);
    lines
        .chain((more > 0).then(|| format!("{}: `{}`", plural(more, "more failure"), full_report(saved))))
        .collect()
}

/// `` `a` (decode, prefill), `b` (decode)``: the rows with one failure, by engine. Of many engines, the last ones are counted.
fn names_of_rows(rows: &[(&str, &str)], saved: Option<&str>) -> String {
    let engines = group_by_key(rows.iter().copied());
    let more = engines.len().saturating_sub(MAX_FAILURES);
    let name = |(engine, cases): &(&str, Vec<&str>)| format!("`{engine}` ({})", cases.join(", "));
    let names: Vec<String> = engines.iter().take(MAX_FAILURES).map(name).collect();
    let more = (more > 0).then(|| format!(" and {} (`{}`)", plural(more, "more engine"), full_report(saved)));
    format!("{}{}", names.join(", "), more.unwrap_or_default())
}

/// `; hint: ...`, with the first line of the hint, which can be pasted.
fn hint(failure: &FailureSummary) -> String {
    let first = failure.hint.as_ref().and_then(|hint| hint.lines().next());
    first.map_or_else(String::new, |hint| format!("; hint: {}", quoted_command(hint)))
}

/// The reason why no engine has a rank: outputs were not checked, or none is verified. A single configuration needs no rank, so
/// the text then says only that outputs were not checked.
fn why_no_rank(overview: &Overview) -> Option<String> {
    let several = overview.configurations.len() > 1;
    let result = if several { ", so no engine has a rank or a ratio" } else { "" };
    match overview.report.no_checks {
        Some(NoChecks::ByRequest) => {
            Some(format!("outputs are not checked{result}; hint: leave out `--verifier none`"))
        }
        Some(NoChecks::ByAge) => Some(format!("the record is older than output checks{result}")),
        None => {
            let some = |is: fn(&Configuration) -> bool| overview.configurations.iter().any(is);
            let some_are_unverified = some(|it| it.unranked == Some(Unranked::Unverified));
            let is_noted = several
                && !overview.report.is_running
                && some_are_unverified
                && !some(|it| it.unranked.is_none());
            let is_greedy_needed = overview.report.outputs.iter().any(is_sampled);
            is_noted.then(|| match is_greedy_needed {
                true => format!("sampled tokens cannot be checked{result}; hint: `{GREEDY_OPTION}`"),
                false => format!("no output is verified{result}"),
            })
        }
    }
}

/// The number of inconclusive comparisons with the reference, and the step that may decide them.
fn inconclusive(overview: &Overview) -> Option<String> {
    let report = overview.report;
    let is_shown = |pair: &&PairVerdict| pair.is_headline && !pair.has_failed(&report.rows);
    let shown: Vec<&PairVerdict> = report.verdicts.for_view(false).filter(is_shown).collect();
    let is_inconclusive = |pair: &&&PairVerdict| pair.certainty() == Some(Certainty::Inconclusive);
    let inconclusive = shown.iter().filter(is_inconclusive).filter_map(|pair| pair.comparison());
    let inconclusive: Vec<&Comparison> = inconclusive.collect();
    let compared = shown.iter().filter(|pair| pair.certainty().is_some()).count();
    let of_all = match (inconclusive.len(), compared) {
        (0, _) => return None,
        (1, 1) => "the comparison with the reference".to_string(),
        (some, all) => format!("{some} of {all} comparisons with the reference"),
    };
    let next_step = next_measurement::after_inconclusive(report, &inconclusive);
    Some(format!("{}: {of_all}{next_step}", Certainty::Inconclusive.words()))
}

/// The explanations of the words and marks that the table and the table of the best engines have, and the hints of configurations
/// without results.
pub fn footnotes(
    overview: &Overview,
    best: Option<&Table>,
    table: &Table,
    saved: Option<&str>,
) -> Vec<String> {
    let report = overview.report;
    let plain_cells = |table: &Table| -> Vec<String> {
        table.lines.iter().flat_map(|line| line.cells.iter().map(|cell| tone::plain(cell))).collect()
    };
    let cells = plain_cells(table);
    let last_cells: Vec<String> =
        table.lines.iter().filter_map(|line| line.cells.last()).map(|cell| tone::plain(cell)).collect();
    // The name of an engine may contain the sign of a mark, but no ratio begins with a name.
    let mut best_ratios = best.map(plain_cells).unwrap_or_default();
    best_ratios.retain(|cell| cell.starts_with(|it: char| it.is_ascii_digit()));
    // An inconclusive ratio has its reason beside it.
    let is_inconclusive = |cell: &str| cell.contains(&format!("; {}", Certainty::Inconclusive.words()));
    let has_no_verdict = |cell: &String| cell.contains(Mark::NoVerdict.sign()) && !is_inconclusive(cell);
    let has_mark = |mark: Mark| last_cells.iter().chain(&best_ratios).any(|cell| cell.contains(mark.sign()));
    let mut notes: Vec<String> = with_prefix_caches(&report.rows).into_iter().collect();
    let is_ratio = |cell: &String| cell.starts_with(Mark::Reference.sign()) || cell.contains('x');
    // One note has both, because it takes less room.
    let reference = last_cells.iter().any(is_ratio).then(|| {
        let title = headings::VS_REFERENCE.title;
        format!("{title}: speed-up over {}", reference_of_each_row(report))
    });
    let quotient = has_mark(Mark::NotAQuotient).then(|| Mark::NotAQuotient.legend());
    let of_ratios: Vec<String> = reference.into_iter().chain(quotient).collect();
    if !of_ratios.is_empty() {
        notes.push(of_ratios.join("; "));
    }
    if last_cells.iter().chain(&best_ratios).any(has_no_verdict) {
        notes.push(no_verdict(report));
    }
    if cells.iter().any(|cell| cell == Mark::NotAvailable.sign()) {
        notes.extend(why_no_values(&report.rows));
    }
    if cells.iter().any(|cell| cell.starts_with(Certainty::Inconclusive.words())) {
        notes.push(Certainty::Inconclusive.legend());
    }
    if cells.iter().any(|cell| cell.starts_with(Mark::FewValues.sign())) {
        let remedy =
            rounds_for_p99(report).map_or_else(String::new, |more| format!("; hint: `--iterations {more}`"));
        notes.push(format!("{}{remedy}", Mark::FewValues.legend()));
    }
    let shares = overview
        .configurations
        .iter()
        .filter_map(|it| Some((format!("`{}`", it.engine.label), limit_share(overview, it)?)));
    notes.extend(limits::classes(shares));
    if cells.iter().any(|cell| cell == Mark::NotYetChecked.sign()) {
        // A word needs the colon that a sign does not need.
        let mark = Mark::NotYetChecked;
        notes.push(format!("{mark}: {}", mark.about()));
        if overview.configurations.len() > 1 {
            notes.push("ratios follow when the output check has ended".into());
        }
    }
    let unverified = report.outputs.iter().filter(|it| it.is_unverified() && !report.is_running);
    let unverified = unverified.map(|it| {
        let reasons = &it.agreement.reasons;
        let with_hint = reasons.iter().skip(1).find(|reason| reason.contains(HINT));
        let recorded = reasons.first().into_iter().chain(with_hint).map(|reason| crate::text::line(reason));
        let next_step = it.agreement.next_step().filter(|_| it.agreement.recorded_hint().is_none());
        let hint = next_step.map(|step| format!("hint: {}", quoted_command(&step)));
        let why = recorded.chain(hint).collect::<Vec<_>>().join("; ");
        (why, format!("`{}`", it.engine))
    });
    for (why, names) in group_by_key(unverified) {
        notes.push(format!("{} UNVERIFIED: {why}", names.join(", ")));
    }
    let refusals = overview.configurations.iter().filter_map(|it| {
        let refused =
            it.rows.iter().filter(|row| row.failure.as_ref().is_some_and(FailureSummary::is_expected));
        let cases: Vec<&str> = refused.map(|row| row.case.label.as_str()).collect();
        (!cases.is_empty()).then(|| (cases, format!("`{}`", it.engine.label)))
    });
    notes.extend(group_by_key(refusals).into_iter().map(|(cases, names)| {
        format!("refused, as it must be: {} ({})", cases.join(", "), names.join(", "))
    }));
    let contradicted =
        overview.configurations.iter().filter(|it| it.unranked == Some(Unranked::Contradicted));
    notes.extend(contradicted.map(|it| {
        let name = &it.engine.label;
        let mark = Mark::Contradicted;
        format!("{mark} `{name}` has no rank, because a claim is contradicted (see the warning)")
    }));
    let failed = overview.configurations.iter().filter_map(|it| Some((it, it.failure?)));
    let printed = failed.clone().filter_map(|(it, failure)| {
        let rest = explanation(&it.engine.label, saved);
        let line = shorten_at_clause(failure.stderr.last()?, MAX_WARNING_WIDTH, &rest);
        // A text on stdout is kept among the lines of stderr, with this mark.
        Some(match line.strip_prefix("(stdout) ") {
            Some(line) => format!("stdout of `{}`: {line}", it.engine.label),
            None => format!("stderr of `{}`: {line}", it.engine.label),
        })
    });
    notes.extend(printed.take(MAX_FAILURES));
    let hinted = failed.filter_map(|(it, failure)| {
        let first = failure.hint.as_ref()?.lines().next()?;
        Some((first.to_string(), format!("`{}`", it.engine.label)))
    });
    let (set_ups, others): (Vec<_>, Vec<_>) =
        hinted.partition(|(hint, name)| set_up_prefix(hint, name).is_some());
    let hints =
        joined_set_ups(set_ups).into_iter().chain(group_by_key(others.into_iter())).take(MAX_FAILURES);
    notes.extend(
        hints.map(|(hint, names)| format!("hint for {}: {}", names.join(", "), quoted_command(&hint))),
    );
    notes.into_iter().map(|note| Tone::Dim.of(&verdict_lines::with_plain_spaces(&note))).collect()
}

/// The explanation of a ratio without a verdict, with the command that gives it one. If no ratio has a verdict, a warning says why.
fn no_verdict(report: &Report) -> String {
    let mark = Mark::NoVerdict;
    if why_no_verdicts(report).is_some() {
        return format!("{mark} no verdict: a line above the table says why");
    }
    let is_shown = |pair: &&PairVerdict| pair.is_headline && !pair.has_failed(&report.rows);
    let pairs = report.verdicts.for_view(false).filter(is_shown);
    let without = pairs.filter(|pair| pair.certainty() == Some(Certainty::NoVerdict));
    let without: Vec<&Comparison> = without.filter_map(PairVerdict::comparison).collect();
    let more = More::largest(without.iter().map(|it| option_for(report, it, MIN_VERDICT_BLOCKS)));
    match (without.iter().map(|it| it.blocks).min(), more) {
        (Some(blocks), Some(more)) if blocks < MIN_VERDICT_BLOCKS && !report.is_running => {
            let command = command_with(&report.command, &more.text());
            format!(
                "{mark} no verdict: both engines are in only {}, and a verdict needs {MIN_VERDICT_BLOCKS}{HINT}`{command}`",
                plural(blocks, "block")
            )
        }
        _ => mark.legend(),
    }
}

/// The part before the name in a command that sets up one engine. `None` for another hint.
fn set_up_prefix<'a>(hint: &'a str, quoted_name: &str) -> Option<&'a str> {
    hint.strip_suffix(quoted_name.trim_matches('`')).filter(|prefix| prefix.ends_with(" setup "))
}

/// One command for all engines that need a set-up, because `setup` takes several names.
fn joined_set_ups(set_ups: Vec<(String, String)>) -> Vec<(String, Vec<String>)> {
    let prefixes = set_ups.into_iter().filter_map(|(hint, name)| {
        let prefix = set_up_prefix(&hint, &name)?.to_string();
        Some((prefix, name))
    });
    let joined = group_by_key(prefixes).into_iter().map(|(prefix, names)| {
        let engines: Vec<&str> = names.iter().map(|name| name.trim_matches('`')).collect();
        (format!("{prefix}{}", engines.join(" ")), names)
    });
    joined.collect()
}

/// The commands that show the record in full and say more. Empty if there is no record, or if the run goes on.
pub fn next_steps(overview: &Overview, saved: Option<&str>) -> Vec<String> {
    if saved.is_none() {
        return Vec::new();
    }
    let notes = match overview.report.notes.len() {
        0 => String::new(),
        count => format!(" ({})", plural(count, "note")),
    };
    // The command has the path of the record. `text::wrap` breaks a long command between backticks after a backslash, so it can
    // still be pasted.
    let mut steps = vec![format!("in full: `{}`{notes}", full_report(saved))];
    let report = overview.report;
    let gave_sampled = |label: &str| report.outputs.iter().any(|it| it.engine == label && is_sampled(it));
    steps.extend(most_severe(overview).map(|it| match gave_sampled(&it.engine.label) {
        // An explanation would only name this command.
        true => format!("to verify the output: `{}`", greedy_command(&report.command)),
        false => format!("why: `{}`", explanation(&it.engine.label, saved)),
    }));
    steps.into_iter().map(|step| Tone::Dim.of(&step)).collect()
}

/// The configuration that needs an explanation most: the one with the most severe status, or else the first one.
fn most_severe<'a>(overview: &'a Overview) -> Option<&'a Configuration<'a>> {
    let has_failed = |row: &&Row| row.failure.as_ref().is_some_and(|it| !it.is_expected());
    let severity = |it: &&Configuration| {
        let is_wrong = overview
            .report
            .outputs
            .iter()
            .any(|output| output.engine == it.engine.label && output.agreement.is_wrong());
        // An engine that cannot run here is explained in its row, so it counts last.
        let cannot_run = it
            .failure
            .is_some_and(|it| matches!(it.kind, FailureKind::Unavailable | FailureKind::Unsupported));
        match (is_wrong, it.unranked) {
            _ if cannot_run => 5,
            (true, _) | (_, Some(Unranked::Wrong)) => 0,
            (_, Some(Unranked::Contradicted)) => 1,
            _ if it.failure.is_some() || it.rows.iter().any(has_failed) => 2,
            (_, Some(Unranked::Unverified)) => 3,
            _ => 4,
        }
    };
    // Of several with the same severity, the first counts.
    overview.configurations.iter().min_by_key(severity)
}
