//! The columns, marks and terms of a report, each in a sentence or two. With a record, terms that it does not need are left out.

use std::collections::BTreeSet;

use super::context::Part;
use crate::analysis::agreement::Status;
use crate::analysis::agreement::bounds::{AGREES, EXACT, Precision};
use crate::analysis::metric::{METRICS, Metric, Shown};
use crate::plan::scenario::SCENARIOS;
use crate::record::FailureKind;
use crate::report::Report;
use crate::report::grid::reference_of_each_row;
use crate::report::limits;
use crate::report::overview::NOT_YET_CHECKED;
use crate::report::ranking::NOT_A_QUOTIENT;
use crate::report::rows::Row;
use crate::report::verdicts::Certainty;

const ALL_CERTAINTIES: [Certainty; 4] =
    [Certainty::Differs, Certainty::Same, Certainty::Inconclusive, Certainty::NoVerdict];

/// The terms that a report needs, or all terms without a report.
pub fn parts(report: Option<&Report>) -> Vec<Part> {
    let parts = [columns(report), outputs(report), verdicts(report), failures(report), measurement(report)];
    parts.into_iter().filter(|part| !part.sentences.is_empty()).collect()
}

/// The columns of the table.
fn columns(report: Option<&Report>) -> Part {
    let mut part = Part::titled("columns");
    part.say("engine: its name, its preset after a colon, and the options that vary between rows.");
    part.say("case: a scenario with the values of its axes that vary: `ttft 512` has 512 prompt tokens.");
    let some_row = |is: fn(&Row) -> bool| report.is_none_or(|report| report.rows.iter().any(is));
    if some_row(|row| row.engine.dtype.is_some()) {
        part.say(
            "dtype: the format of the weights, as the engine reports it; a/b: weights in a, computed in b.",
        );
    }
    if some_row(|row| row.engine.dtype.is_none()) {
        part.say("A setting with ?: the requested value, because the engine does not report its own.");
    }
    let is_column = |metric: &&Metric| match metric.shown {
        Shown::Estimate | Shown::Percentiles => true,
        Shown::AsHeadline => match report {
            Some(report) => {
                report.rows.iter().any(|row| row.case.headline.map(|it| it.id) == Some(metric.id))
            }
            None => SCENARIOS.iter().any(|scenario| scenario.headline == metric.id),
        },
        Shown::OfLimit(_) | Shown::OfDataSheet(_) | Shown::Beside(_) => true,
    };
    let is_measured = |metric: &&Metric| {
        report.is_none_or(|report| report.rows.iter().any(|row| row.summary(metric.id).is_some()))
    };
    for metric in METRICS.iter().filter(is_column).filter(is_measured) {
        part.say(format!("{}: {}", metric.title, metric.about));
        if metric.shown == Shown::Percentiles {
            part.say("p50, p95, p99: half, 95 % and 99 % of the values are at most this. ~: fewer than 100 values.");
        }
    }
    if some_row(|_| true) {
        part.say("A value is the median of the launches' medians. Ratios are of paired rounds, so they may differ from ratios of shown values.");
        part.say(format!(
            "{NOT_A_QUOTIENT}: a ratio of paired rounds that differs from that of the two shown values."
        ));
        part.say(format!("{NOT_YET_CHECKED}: the output check continues after the last block."));
    }
    let Some(report) = report else { return part };
    for limit in report.limits.iter().filter(|limit| {
        report.rows.iter().any(|row| matches!(&row.limit, Ok(Some(key)) if *key == limit.key))
    }) {
        part.say(format!("Limit of this machine: {}.", limits::described(limit)));
    }
    let absent: BTreeSet<String> =
        report.rows.iter().filter_map(|row| row.limit.as_ref().err()).map(limits::why_absent).collect();
    part.sentences.extend(absent.into_iter().map(|why| format!("of limit: n/a. {why}")));
    part
}

fn outputs(report: Option<&Report>) -> Part {
    let mut part = Part::titled("output");
    if report.is_some_and(|report| report.no_checks.is_some()) {
        part.say("The outputs of this record were not checked.");
        return part;
    }
    part.say("The number is the difference from the verifier's log-probabilities of held-out text, in nats (root mean square).");
    let has = |status: Status| {
        report.is_none_or(|report| report.outputs.iter().any(|it| it.agreement.status == status))
    };
    let meanings = [
        (Status::Exact, format!("exact: up to {EXACT} nats, and the same tokens as the verifier.")),
        (
            Status::Agrees,
            format!(
                "agrees: up to {AGREES} nats, in f32 up to {}, and less if the cost of its dtypes on this model is known.",
                Precision::Full.bounds().rms
            ),
        ),
        (
            Status::TokensAgree,
            "tokens agree: the same tokens, or almost as likely ones; the engine gives no log-probabilities."
                .into(),
        ),
        (
            Status::TextAgrees,
            "text agrees: the text of such tokens; the engine gives neither tokens nor log-probabilities."
                .into(),
        ),
        (Status::Drifts, "drifts: more, but within the bound for the precision of the engine.".into()),
        (
            Status::Wrong,
            "wrong: above the bound for its precision, or other tokens. It is not compared.".into(),
        ),
        (Status::Unverified, "unverified: it could not be checked, so it has no rank.".into()),
    ];
    part.sentences.extend(meanings.into_iter().filter(|(status, _)| has(*status)).map(|(_, text)| text));
    part
}

fn verdicts(report: Option<&Report>) -> Part {
    let mut part = Part::titled("verdicts");
    let certainties: Vec<Certainty> = match report {
        Some(report) => {
            let headline = report.verdicts.for_view(false).filter(|pair| pair.is_headline);
            headline.filter_map(|pair| pair.certainty()).collect()
        }
        None => ALL_CERTAINTIES.to_vec(),
    };
    if certainties.is_empty() {
        return part;
    }
    let reference = report.map_or_else(String::new, |report| format!(" {}", reference_of_each_row(report)));
    part.say(format!(
        "vs ref: the speed-up over the reference{reference}; above 1 is better for every metric."
    ));
    part.say("[a, b]: the interval in which the true ratio lies with 95 % confidence.");
    part.say(
        "A ratio comes from paired rounds: two engines that ran one after the other had the same noise.",
    );
    let meanings = [
        (
            Certainty::Differs,
            "faster, slower: the interval excludes 1, and the difference exceeds 2 % and the noise floor.",
        ),
        (Certainty::Same, "same: the whole interval is within 2 % of 1."),
        (Certainty::Inconclusive, "inconclusive, ?: noise is too large for a decision."),
        (Certainty::NoVerdict, "2x?: there is no verdict, because of too few blocks or sequential order."),
    ];
    part.sentences.extend(
        meanings
            .into_iter()
            .filter(|(certainty, _)| certainties.contains(certainty))
            .map(|(_, text)| text.into()),
    );
    let some = |is: fn(&Report) -> bool| report.is_none_or(is);
    if some(|report| !report.verdicts.noise.is_empty()) {
        part.say(
            "noise floor: the difference between an engine and its twin, a second copy of the same program.",
        );
    }
    if some(|report| report.verdicts.means.iter().any(|mean| mean.is_verified)) {
        part.say("geometric mean: the mean of an engine's ratios over all cases, each with the same weight.");
    }
    if some(|report| report.rows.iter().any(|row| row.contradicted)) {
        part.say("!: an observation contradicts a claim of the engine, so it has no rank.");
    }
    part
}

fn failures(report: Option<&Report>) -> Part {
    let mut part = Part::titled("rows without values");
    let has = |kind: &FailureKind| {
        report.is_none_or(|report| {
            let of_rows = report.rows.iter().filter_map(|row| row.failure.as_ref());
            of_rows.chain(report.failed.iter().map(|it| &it.failure)).any(|it| it.kind == *kind)
        })
    };
    let meanings = [
        (FailureKind::Unavailable, "unavailable: the engine cannot run on this machine as it is now."),
        (FailureKind::Unsupported, "unsupported: the engine does not support something that the run needs."),
        (
            FailureKind::Refused,
            "refused: the engine refused a request that it must refuse; this is not a failure.",
        ),
        (FailureKind::TooSlow, "too slow: a request took longer than `--max-request-time` allows."),
        (
            FailureKind::NoTime,
            "no time: the time budget of the run ended first. This is no fault of the engine.",
        ),
        (FailureKind::Timeout, "timeout: the engine gave no answer within the deadline."),
        (FailureKind::Exited, "exited: the process ended before it answered."),
    ];
    part.sentences.extend(meanings.into_iter().filter(|(kind, _)| has(kind)).map(|(_, text)| text.into()));
    part
}

fn measurement(report: Option<&Report>) -> Part {
    let mut part = Part::titled("how it was measured");
    if report.is_some_and(|report| report.rows.is_empty()) {
        part.say("Nothing was measured in this record.");
        return part;
    }
    part.say("block: engines are launched anew, and rounds measure them in turn. A verdict needs 5 blocks.");
    part.say("round: one request to each engine, one after the other. Only one engine runs at a time.");
    part.say("warm-up: requests before the measured ones, until their times are steady. They do not count.");
    part
}

/// The sentences about a term: those that begin with its name, or with a list that has its name. If there are none, those whose
/// name has the term as one of its words: `noise` is a word of `noise floor`.
pub fn named(term: &str) -> Vec<Part> {
    let term = term.trim().trim_matches('`').to_lowercase();
    let with_name = |is_it: &dyn Fn(&str) -> bool| {
        let is_about = |sentence: &String| {
            let names = sentence.split_once(": ").map_or("", |(names, _)| names).to_lowercase();
            is_it(&names) || names.split(", ").any(is_it)
        };
        let mut parts = parts(None);
        parts.iter_mut().for_each(|part| part.sentences.retain(is_about));
        parts.retain(|part| !part.sentences.is_empty());
        parts
    };
    let exact = with_name(&|name| name == term);
    if exact.is_empty() { with_name(&|name| name.split(' ').any(|word| word == term)) } else { exact }
}
