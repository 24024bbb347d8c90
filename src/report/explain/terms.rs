//! The columns, marks, statuses and words of a report, each with its meaning. The meanings stand where the terms are defined; this
//! file collects them and finds those that a user names. With a record, terms that it does not need are left out.

use std::collections::BTreeSet;

use super::context::Part;
use super::glossary;
use crate::analysis::agreement::Status;
use crate::analysis::metric::{METRICS, Metric, MetricId, Shown, by_id};
use crate::plan::scenario::SCENARIOS;
use crate::record::FailureKind;
use crate::report::RESOURCE_FACTS;
use crate::report::grid::reference_of_each_row;
use crate::report::headings::{self, Heading};
use crate::report::limits;
use crate::report::marks::Mark;
use crate::report::rows::{FailureSummary, Row};
use crate::report::run_report::Report;
use crate::report::verdicts::Certainty;
use crate::report::wall_time::PARTS;
use crate::shell::similar_name;

/// The words of the glossary that the explanation of a record has.
const WORDS_OF_RECORDS: [&str; 9] =
    ["estimate", "interval", "noise floor", "twin", "block", "round", "warm-up", "verifier", "rank"];

/// Words, units and signs in the sentences and values of reports.
const WORDS_OF_REPORTS: [(&str, &str); 9] = [
    ("next best", "the engine after the best one, by the headline metric of the workload."),
    (
        "range only",
        "the brackets have the lowest and the highest ratio of single rounds, because there are too few blocks for an interval.",
    ),
    (
        "paired rounds",
        "rounds that both engines of a comparison measured one after the other, so that both had the same conditions.",
    ),
    (
        "not significant",
        "the interval excludes 1, but among all comparisons of the run such a difference can be noise.",
    ),
    (
        "p",
        "the probability that noise alone shows such a difference; after the correction (Holm's method), among all comparisons of the run.",
    ),
    ("±", "a difference of up to this size in either direction."),
    ("x", "after a number, a factor: `2x` is twice as fast, and `2x slower` is half as fast."),
    ("tok/s", "tokens per second."),
    ("kB, MB, GB", "1,000, 1,000,000 and 1,000,000,000 bytes."),
];

/// A term: a name, or several names separated by `, `, with the meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    name: String,
    about: String,
}

/// The terms of one kind.
struct Group {
    title: &'static str,
    terms: Vec<Term>,
}

impl Term {
    fn new(name: impl Into<String>, about: impl Into<String>) -> Self {
        Self { name: name.into(), about: about.into() }
    }

    fn sentence(&self) -> String {
        format!("{}: {}.", self.name, self.about.trim_end_matches('.'))
    }

    /// The names in lower case.
    fn names(&self) -> Vec<String> {
        let name = normalized(&self.name);
        // `[a, b]` is one name.
        if name.starts_with('[') { vec![name] } else { name.split(", ").map(String::from).collect() }
    }
}

impl From<Heading> for Term {
    fn from(heading: Heading) -> Self {
        Self::new(heading.title.replace('\n', " "), heading.about)
    }
}

impl From<&'static Metric> for Term {
    fn from(metric: &'static Metric) -> Self {
        Heading::from(metric).into()
    }
}

impl From<Mark> for Term {
    fn from(mark: Mark) -> Self {
        Self::new(mark.sign(), mark.about())
    }
}

/// The terms that a report needs.
pub fn of_report(report: &Report) -> Vec<Part> {
    let groups = [
        Group { title: "columns", terms: columns(report) },
        Group { title: "output", terms: outputs(report) },
        Group { title: "verdicts", terms: verdicts(report) },
        Group { title: "rows without values", terms: failures(report) },
        Group { title: "words", terms: words(report) },
    ];
    parts(groups.into_iter())
}

/// All terms.
pub fn all() -> Vec<Part> {
    parts(groups().into_iter())
}

fn parts(groups: impl Iterator<Item = Group>) -> Vec<Part> {
    let part = |group: Group| {
        let mut part = Part::titled(group.title);
        group.terms.iter().for_each(|term| part.say(term.sentence()));
        part
    };
    groups.map(part).filter(|part| !part.sentences.is_empty()).collect()
}

/// All terms of all reports, by kind.
fn groups() -> Vec<Group> {
    let named = |heading: &&Heading| !heading.title.is_empty();
    let metrics = METRICS.iter().filter(|metric| is_column(metric, None)).map(Term::from);
    let facts = RESOURCE_FACTS.iter().filter_map(|fact| Some(Term::from(fact.heading()?)));
    let statuses = Status::ALL.map(|status| Term::new(status.name(), status.about()));
    let certainties = Certainty::ALL.map(|certainty| Term::new(certainty.words(), certainty.about()));
    let kinds = FailureKind::ALL.iter().map(|kind| Term::new(kind.words(), kind.about()));
    vec![
        Group {
            title: "columns",
            terms: headings::ALL.iter().filter(named).copied().map(Term::from).collect(),
        },
        Group { title: "columns of metrics", terms: metrics.collect() },
        Group { title: "columns of `--resources`", terms: facts.collect() },
        Group {
            title: "columns of `--wall-time`",
            terms: PARTS.map(|part| Term::from(part.heading())).to_vec(),
        },
        Group { title: "output", terms: statuses.to_vec() },
        Group { title: "verdicts", terms: certainties.to_vec() },
        Group { title: "marks", terms: Mark::ALL.map(Term::from).to_vec() },
        Group { title: "rows without values", terms: kinds.collect() },
        Group {
            title: "words, units and signs in reports",
            terms: WORDS_OF_REPORTS.map(|(name, about)| Term::new(name, about)).to_vec(),
        },
        words_of_glossary(),
    ]
}

fn words_of_glossary() -> Group {
    let terms = glossary::words().map(|word| Term::new(word.name, word.about)).collect();
    Group { title: "words", terms }
}

/// The columns of the table, and its marks.
fn columns(report: &Report) -> Vec<Term> {
    let some_row = |is: fn(&Row) -> bool| report.rows.iter().any(is);
    let headings = [
        (headings::ENGINE, true),
        (headings::CASE, true),
        (headings::DTYPE, some_row(|row| row.engine.dtype.is_some())),
        (headings::OUTPUT, report.no_checks.is_none()),
    ];
    let mut terms: Vec<Term> =
        headings.into_iter().filter(|(_, is_needed)| *is_needed).map(|(it, _)| it.into()).collect();
    let is_measured = |metric: &Metric| report.rows.iter().any(|row| row.summary(metric.id).is_some());
    for metric in METRICS.iter().filter(|metric| is_column(metric, Some(report)) && is_measured(metric)) {
        terms.push(metric.into());
        if metric.shown == Shown::Percentiles {
            terms.extend([headings::P50, headings::P95, headings::P99].map(Term::from));
            terms.push(Mark::FewValues.into());
        }
    }
    let marks = [
        (Mark::Unreported, some_row(|row| row.engine.dtype.is_none())),
        (Mark::NotAQuotient, some_row(|_| true)),
        (Mark::NotAvailable, some_row(|_| true)),
        (Mark::NotYetChecked, report.is_running),
    ];
    terms.extend(marks.into_iter().filter(|(_, is_needed)| *is_needed).map(|(it, _)| Term::from(it)));
    let of_limit = by_id(MetricId::BANDWIDTH_SHARE).title;
    let is_used = |key| report.rows.iter().any(|row| matches!(&row.limit, Ok(Some(it)) if it == key));
    let used = report.limits.iter().filter(|limit| is_used(&limit.key));
    terms.extend(used.map(|limit| Term::new(of_limit, format!("the limit is {}", limits::described(limit)))));
    let absent = report.rows.iter().filter_map(|row| row.limit.as_ref().err()).map(limits::why_absent);
    for why in absent {
        let term = Term::new(of_limit, format!("n/a. {why}"));
        terms.extend((!terms.contains(&term)).then_some(term));
    }
    terms
}

/// Whether a table has a column for this metric.
fn is_column(metric: &Metric, report: Option<&Report>) -> bool {
    match (metric.shown, report) {
        (Shown::AsHeadline, Some(report)) => {
            report.rows.iter().any(|row| row.case.headline.map(|it| it.id) == Some(metric.id))
        }
        _ => true,
    }
}

fn outputs(report: &Report) -> Vec<Term> {
    if report.no_checks.is_some() {
        return vec![Term::new(Status::Unverified.name(), "the outputs of this record were not checked")];
    }
    let has = |status: &Status| report.outputs.iter().any(|it| it.agreement.status == *status);
    let statuses = Status::ALL.into_iter().filter(has);
    statuses.map(|status| Term::new(status.name(), status.about())).collect()
}

fn verdicts(report: &Report) -> Vec<Term> {
    let headline = report.verdicts.for_view(false).filter(|pair| pair.is_headline);
    let certainties: Vec<Certainty> = headline.filter_map(|pair| pair.certainty()).collect();
    if certainties.is_empty() {
        return Vec::new();
    }
    let reference = format!("the speed-up over the reference {}", reference_of_each_row(report));
    let mut terms = vec![
        Term::new(headings::VS_REFERENCE.title, format!("{reference}; above 1 is better for every metric")),
        Mark::Interval.into(),
    ];
    let shown = Certainty::ALL.into_iter().filter(|it| certainties.contains(it));
    terms.extend(shown.map(|it| Term::new(it.words(), it.about())));
    let marks = [
        (Mark::Inconclusive, certainties.contains(&Certainty::Inconclusive)),
        (Mark::NoVerdict, certainties.contains(&Certainty::NoVerdict)),
        (Mark::Contradicted, report.rows.iter().any(|row| row.contradicted)),
        (Mark::GeometricMean, report.verdicts.means.iter().any(|mean| mean.is_verified)),
    ];
    terms.extend(marks.into_iter().filter(|(_, is_needed)| *is_needed).map(|(it, _)| Term::from(it)));
    terms
}

fn failures(report: &Report) -> Vec<Term> {
    let of_rows = report.rows.iter().filter_map(|row| row.failure.as_ref());
    let failures: Vec<&FailureSummary> = of_rows.chain(report.failed.iter().map(|it| &it.failure)).collect();
    let has = |kind: &&FailureKind| failures.iter().any(|it| it.kind == **kind);
    FailureKind::ALL.iter().filter(has).map(|kind| Term::new(kind.words(), kind.about())).collect()
}

fn words(report: &Report) -> Vec<Term> {
    if report.rows.is_empty() {
        return vec![Term::new("record", "nothing was measured in it")];
    }
    let words = glossary::words().filter(|word| WORDS_OF_RECORDS.contains(&word.name));
    words.map(|word| Term::new(word.name, word.about)).collect()
}

/// The text in lower case, without backticks, with one space between words.
fn normalized(text: &str) -> String {
    text.replace('`', "").to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The terms with this name: a term, or a heading that several terms make, such as `ITL p99` or `decode vs ref`. If there are none,
/// the words of the glossary whose name has the text as one of its words: `noise` is a word of `noise floor`.
pub fn named(name: &str) -> Vec<Part> {
    let name = normalized(name);
    let words: Vec<&str> = name.split(' ').collect();
    let groups = groups();
    let found = of_words(&groups, &words)
        .unwrap_or_else(|| with_name(&[words_of_glossary()], |it| it.split(' ').any(|word| word == name)));
    let with_found = |group: Group| {
        let terms = group.terms.into_iter().filter(|term| found.contains(term)).collect();
        Group { terms, ..group }
    };
    parts(groups.into_iter().chain([scenarios()]).map(with_found))
}

/// The columns with this title.
pub fn with_title(title: &str) -> Vec<Part> {
    let title = normalized(title);
    let columns = groups().into_iter().filter(|group| group.title.starts_with("columns"));
    let with_title = |group: Group| {
        let terms = group.terms.into_iter().filter(|term| term.names().contains(&title)).collect();
        Group { terms, ..group }
    };
    parts(columns.map(with_title))
}

/// The name of a term that the user probably meant.
pub fn similar(name: &str) -> Option<String> {
    let terms = groups().into_iter().flat_map(|group| group.terms);
    let names: BTreeSet<String> = terms.flat_map(|term| term.names()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    similar_name(name, &names).map(String::from)
}

fn scenarios() -> Group {
    let terms = SCENARIOS.iter().map(|scenario| Term::new(scenario.name, scenario.about)).collect();
    Group { title: "scenarios", terms }
}

fn with_name(groups: &[Group], is_it: impl Fn(&str) -> bool) -> Vec<Term> {
    let terms = groups.iter().flat_map(|group| &group.terms);
    terms.filter(|term| term.names().iter().any(|it| is_it(it))).cloned().collect()
}

/// The marks after a ratio such as `2.1x?*` or `4%*`; empty for any other word.
fn marks_of_ratio(word: &str) -> Vec<Term> {
    let marks = word.trim_start_matches(|it: char| it.is_ascii_digit() || matches!(it, '.' | ','));
    let Some(marks) = marks.strip_prefix(['x', '%']).filter(|it| it.len() < word.len() - 1) else {
        return Vec::new();
    };
    let all = [Mark::Inconclusive, Mark::NoVerdict, Mark::NotAQuotient, Mark::Contradicted];
    let is_known = marks.chars().all(|it| all.iter().any(|mark| mark.sign() == it.to_string()));
    let used = all.into_iter().filter(|mark| is_known && marks.contains(mark.sign()));
    used.map(Term::from).collect()
}

/// The terms that these words are made of, the longest names first. `None` if a part of them is no term.
fn of_words(groups: &[Group], words: &[&str]) -> Option<Vec<Term>> {
    let Some(first) = words.first() else { return Some(Vec::new()) };
    for count in (1..=words.len()).rev() {
        let (start, rest) = words.split_at(count);
        let start = start.join(" ");
        let mut found = with_name(groups, |it| it == start);
        if found.is_empty() {
            found = with_name(&[scenarios()], |it| it == start);
        }
        if !found.is_empty()
            && let Some(rest) = of_words(groups, rest)
        {
            return Some([found, rest].concat());
        }
    }
    let rest = &words[1..];
    match *first {
        // A ratio with its marks, as in `2.1x?*`.
        word if !marks_of_ratio(word).is_empty() => {
            Some([marks_of_ratio(word), of_words(groups, rest)?].concat())
        }
        // The value of an axis, as in `TTFT @512`.
        word if word.starts_with('@') => {
            Some([vec![Mark::AxisValue.into()], of_words(groups, rest)?].concat())
        }
        // A number, as in `batch 4`, or in `1 thread` and `2 threads`, which the heading `threads` explains.
        word if word.parse::<f64>().is_ok() => match rest {
            [one] => of_words(groups, &[format!("{}s", one.trim_end_matches('s')).as_str()]),
            rest => of_words(groups, rest),
        },
        // The name of the reference.
        "vs" if !rest.is_empty() => Some(vec![headings::VS_REFERENCE.into()]),
        _ => None,
    }
}
