//! The columns, words and marks of reports: docs/reading-results.md and docs/full-report.md explain each of them, with examples
//! from the records in `results/curated`.

use std::collections::BTreeSet;

use crate::page::Page;
use crate::support::tree::{sources, text};
use crate::support::{command, root};

const PAGES: [&str; 2] = ["docs/reading-results.md", "docs/full-report.md"];
const RECORDS: [&str; 2] = ["results/curated/embedded.jsonl", "results/curated/llama-3.2-1b.jsonl"];
/// The options that add tables to a report.
const TABLES: [&str; 7] = [
    "--distribution",
    "--wall-time",
    "--resources",
    "--quality",
    "--precision",
    "--settings",
    "--price-per-hour=1.20",
];
/// The units after a title in a report in Markdown.
const UNITS: [&str; 10] = ["ns", "µs", "ms", "s", "MB", "GB", "tok/s", "nats", "%", "cores"];

#[test]
fn every_heading_of_a_report_is_explained() {
    let explained = explained();
    // The other record has another reference, whose name is in a heading.
    let reports = [report(RECORDS[0], &[]), report(RECORDS[0], &["--full"])];
    let headings: BTreeSet<String> = reports.iter().flat_map(|report| headings(report)).collect();
    assert!(headings.len() > 30, "the reports were not read correctly: {headings:?}");
    let missing: Vec<_> = headings.iter().filter(|it| !is_explained(it, &explained)).collect();
    assert!(missing.is_empty(), "{PAGES:?} do not explain these columns: {missing:?}");
}

/// `orchestrate explain` lists the headings, statuses, verdicts and marks of all reports, each as `- NAME, NAME: ...`, and the words
/// of the glossary.
#[test]
fn every_term_of_explain_is_explained() {
    let explained = explained();
    // With a record in the folder, the command explains this record.
    let without_records = tempfile::tempdir().unwrap();
    let terms = orchestrate(&["explain", "--results", &without_records.path().to_string_lossy()]);
    let name = |line: &str| Some(line.strip_prefix("- ")?.split_once(": ")?.0.to_string());
    // A sentence about all values begins with an article, and is about no term.
    let names: Vec<String> = terms.lines().filter_map(name).filter(|it| !it.starts_with("A ")).collect();
    assert!(names.len() > 40, "the terms were not read correctly: {names:?}");
    let glossary = text("docs/glossary.md").unwrap();
    let has = |name: &String| {
        explained.contains(name)
            || name.split(", ").all(|name| is_explained(name, &explained))
            || glossary.contains(&format!("\n| {name} | "))
    };
    let missing: Vec<_> = names.iter().filter(|name| !has(name)).collect();
    assert!(missing.is_empty(), "{PAGES:?} do not explain these terms: {missing:?}");
}

#[test]
fn every_reason_in_place_of_values_is_explained() {
    let explained = explained();
    let kinds = sources("src/record/failure.rs").remove(0).code;
    let (_, kinds) = kinds.split_once("kinds! {").unwrap();
    let (kinds, _) = kinds.split_once("\n}").unwrap();
    let texts = kinds.split('"').skip(1).step_by(2);
    // Each kind has its word, and then a sentence.
    let words: Vec<String> =
        texts.filter(|it| !it.ends_with('.')).map(|word| word.replace('_', " ")).collect();
    assert!(words.len() > 10, "the kinds were not read correctly: {words:?}");
    let missing: Vec<_> = words.iter().filter(|word| !explained.contains(*word)).collect();
    assert!(missing.is_empty(), "{PAGES:?} do not explain these words: {missing:?}");
}

/// In a table with a column `example`, code that has a digit is a part of a record's report, unless it is an option.
#[test]
fn every_example_with_a_number_is_in_a_report_of_a_record() {
    let of_record = |record| [report(record, &[]), report(record, &["--full"])].concat();
    let reports: String = RECORDS.into_iter().map(of_record).collect();
    let reports = reports.replace('\\', "");
    let examples: Vec<String> = PAGES.iter().flat_map(|path| examples(&Page::read(path).text)).collect();
    let is_value = |it: &&String| it.contains(|char: char| char.is_ascii_digit()) && !it.starts_with("--");
    let values: Vec<_> = examples.iter().filter(is_value).collect();
    assert!(values.len() > 40, "the examples were not read correctly: {values:?}");
    let missing: Vec<_> = values.iter().filter(|it| !reports.contains(it.as_str())).collect();
    assert!(missing.is_empty(), "no report of {RECORDS:?} has these examples: {missing:?}");
}

/// A report in Markdown, which has each column with its whole title, and the tables of all options.
fn report(record: &str, options: &[&str]) -> String {
    orchestrate(&[&["report", record, "--format", "markdown"][..], options, &TABLES].concat())
}

fn orchestrate(arguments: &[&str]) -> String {
    let mut program = command(env!("CARGO_BIN_EXE_orchestrate"));
    let output = program.current_dir(root()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The titles in the first line of each table, with their units.
fn headings(report: &str) -> Vec<String> {
    let lines: Vec<&str> = report.lines().collect();
    let is_head = |pair: &&[&str]| pair[0].starts_with("| ") && pair[1].starts_with("| ---");
    let heads = lines.windows(2).filter(is_head).map(|pair| pair[0].replace('\\', ""));
    heads.flat_map(|head| cells(&head)).collect()
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_string()).collect()
}

/// The code in the cells of the pages' tables, except in the column `meaning` and the last one, which has examples.
fn explained() -> BTreeSet<String> {
    let of_page = |path: &&str| {
        let rows = tables(&Page::read(path).text).into_iter().map(|mut row| {
            row.truncate(row.len() - 2);
            row
        });
        rows.flatten().flat_map(|cell| code(&cell)).map(|it| without_length(&it)).collect::<Vec<_>>()
    };
    PAGES.iter().flat_map(of_page).collect()
}

fn examples(page: &str) -> Vec<String> {
    tables(page).iter().filter_map(|row| row.last()).flat_map(|cell| code(cell)).collect()
}

/// The rows of the tables whose last column has the title `example`.
fn tables(page: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line.strip_prefix('|') {
            Some(row) if row.ends_with(" example |") => is_inside = true,
            Some(row) if is_inside && !row.starts_with('-') => rows.push(cells(row)),
            Some(_) => {}
            None => is_inside = false,
        }
    }
    rows
}

fn code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// `TTFT @N` for `TTFT @512`: the length differs from run to run.
fn without_length(title: &str) -> String {
    match title.split_once('@') {
        Some((metric, rest)) => {
            format!("{metric}@N{}", rest.trim_start_matches(|it: char| it.is_ascii_digit()))
        }
        None => title.into(),
    }
}

/// Whether the pages have this title, or both parts of it, with or without a unit: `ITL p50 µs`, `decode vs ref`, `request mean ms`.
fn is_explained(title: &str, explained: &BTreeSet<String>) -> bool {
    let title = without_length(title);
    let has = |title: &str| {
        let in_two_parts =
            |at: usize| explained.contains(&title[..at]) && explained.contains(&title[at + 1..]);
        title.is_empty()
            || explained.contains(title)
            || title.match_indices(' ').any(|(at, _)| in_two_parts(at))
    };
    let without_unit = title.rsplit_once(' ').filter(|(_, unit)| UNITS.contains(unit));
    has(&title) || without_unit.is_some_and(|(title, _)| has(title))
}

#[test]
fn a_title_without_an_explanation_is_found() {
    let explained = BTreeSet::from(["ITL", "p99", "TTFT @N", "prefill"].map(String::from));
    for title in ["ITL p99", "ITL p99 µs", "TTFT @512 ms", "prefill tok/s", "prefill"] {
        assert!(is_explained(title, &explained), "{title}");
    }
    for title in ["ITL p95", "TTFT", "prefill of limit", "prefill J"] {
        assert!(!is_explained(title, &explained), "{title}");
    }
}
