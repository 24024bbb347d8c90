//! `orchestrate explain`, and the texts of a report that name a next step: each word on the screen has an explanation, and each
//! problem has the command that helps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::{DECODE, Outcome, Scratch, finish, root, without_line_breaks};

const SUITE: &str = "tests/records/default-suite.jsonl";

/// Units at the end of the headings of a Markdown table.
const UNITS: [&str; 16] =
    ["ns", "µs", "ms", "s", "kB", "MB", "GB", "B", "tok/s", "%", "nats", "bits", "J", "mJ", "W", "cores"];

/// Runs the orchestrator in a folder without records, except for commands that name one.
fn orchestrate(scratch: &Scratch, words: &[&str]) -> Outcome {
    finish(scratch.orchestrate().args(words).current_dir(&scratch.path))
}

fn path(record: &str) -> String {
    root().join(record).display().to_string()
}

/// The headings of all Markdown tables in a text, without units and escapes.
fn headings(markdown: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = markdown.lines().collect();
    let headers = lines.windows(2).filter(|pair| pair[1].starts_with("| ---")).map(|pair| pair[0]);
    let cells = headers.flat_map(|header| header.trim_matches(['|', ' ']).split(" | "));
    let heading = |cell: &str| {
        let cell = cell.replace('\\', "").trim().to_string();
        let unit = cell.rsplit_once(' ').filter(|(_, unit)| UNITS.contains(unit));
        unit.map_or(cell.clone(), |(heading, _)| heading.to_string())
    };
    cells.map(heading).filter(|heading| !heading.is_empty()).collect()
}

#[test]
fn every_heading_of_every_table_has_an_explanation() {
    let scratch = Scratch::new();
    let views: [&[&str]; 4] = [
        &[],
        &["--full"],
        &["--wall-time", "--distribution", "--settings", "--quality", "--precision", "--resources"],
        &["--price-per-hour", "1.20"],
    ];
    let mut all = BTreeSet::new();
    let records = [SUITE, "tests/records/llama-3.2-1b.jsonl", "tests/records/failed-engine.jsonl"];
    for record in
        records.into_iter().chain(["results/curated/embedded.jsonl", "results/curated/llama-3.2-1b.jsonl"])
    {
        for view in views {
            let record = path(record);
            let words = [&["report", record.as_str(), "--format", "markdown"][..], view].concat();
            all.extend(headings(&orchestrate(&scratch, &words).stdout));
        }
    }
    let compared = ["compare", &path(SUITE), &path(SUITE), "--full", "--format", "markdown"];
    all.extend(headings(&orchestrate(&scratch, &compared).stdout));
    assert!(all.len() > 60 && all.contains("decode vs ref") && all.contains("ITL p99"), "{all:?}");
    for heading in all {
        let words: Vec<&str> = std::iter::once("explain").chain(heading.split(' ')).collect();
        let outcome = orchestrate(&scratch, &words);
        assert_eq!(outcome.code, Some(0), "`{heading}`: {outcome:?}");
    }
}

#[test]
fn every_word_and_mark_of_a_report_is_explained_alone_in_any_case_and_with_spaces() {
    let scratch = Scratch::new();
    let statuses = ["exact", "agrees", "tokens agree", "text agrees", "drifts", "wrong", "unverified"];
    let marks = ["~", "?", "!", "*", "n/a", "ref", "later", "[a, b]", "TTFT @512", "2.1x?*", "±", "x"];
    let verdicts = ["faster", "slower", "same", "inconclusive", "no verdict", "not significant", "next best"];
    let failures = ["no time", "too slow", "timeout", "exited", "unavailable", "unsupported", "refused"];
    let words = [
        "output",
        "version",
        "ITL p99",
        "rank",
        "twin",
        "interval",
        "verifier",
        "reference",
        "noise floor",
        "geometric mean",
        "range only",
        "paired rounds",
        "p",
        "tok/s",
        "MB",
    ];
    let all = [&statuses[..], &marks, &verdicts, &failures, &words].concat();
    for word in all.into_iter().chain(["UNVERIFIED", "Itl P99", " Drifts ", "`WRONG`"]) {
        let outcome = orchestrate(&scratch, &["explain", word]);
        assert_eq!(outcome.code, Some(0), "`{word}`: {outcome:?}");
    }
    // A status is explained without the others.
    for status in statuses {
        let text = orchestrate(&scratch, &["explain", status]).stdout;
        let others =
            statuses.iter().filter(|other| **other != status && text.contains(&format!("- {other}: ")));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&&str>::new(), "{text}");
    }
    // A shell replaces an unquoted `~`.
    let mut at_home = scratch.orchestrate();
    let home = scratch.join("user");
    at_home.arg("explain").arg(&home).env("HOME", &home).current_dir(&scratch.path);
    finish(&mut at_home).exits_with(0).assert_stdout(&["- ~: uncertain"]);
}

#[test]
fn a_mistyped_word_has_the_command_that_explains_the_similar_one() {
    let scratch = Scratch::new();
    orchestrate(&scratch, &["explain", "unverifed"])
        .exits_with(2)
        .assert_stderr(&["no term `unverifed`", "hint: orchestrate explain unverified"]);
    orchestrate(&scratch, &["explain", "qqqqqqqq"])
        .exits_with(2)
        .assert_stderr(&["error: no term `qqqqqqqq`, and no run record", "hint: orchestrate explain\n"]);
    // An engine is explained from a record, which a run makes.
    orchestrate(&scratch, &["explain", "lmrs"])
        .exits_with(2)
        .assert_stderr(&["error: no run record in the folder", "hint: orchestrate --all"]);
    let record = path(SUITE);
    orchestrate(&scratch, &["explain", "inconclusve", &record])
        .exits_with(2)
        .assert_stderr(&[&format!("hint: orchestrate explain inconclusive {record}")]);
}

#[test]
fn an_inconclusive_engine_has_its_ratio_its_noise_and_the_blocks_that_would_decide() {
    let scratch = Scratch::new();
    let explained = |engine: &str, record: &str| {
        without_line_breaks(&orchestrate(&scratch, &["explain", engine, &path(record)]).stdout)
    };
    let suite = explained("lmrs:q8_0", SUITE);
    let beyond = "inconclusive against the reference `lmrs` (11,100 tok/s): 2.0x* as fast [1.2, 3.2] over 5 blocks, difference not beyond the noise \
                  of this machine (a factor of 2.3); more blocks do not help, a quieter machine may.";
    assert!(suite.contains(beyond), "{suite}");
    let large = explained("llama-cpp:q8_0", "results/curated/llama-3.2-1b.jsonl");
    assert!(
        large.contains("over 5 blocks, noise floor 4.2 %; about 13 blocks would decide it: `--blocks 13`"),
        "{large}"
    );
    let embedded = explained("transformers", "results/curated/embedded.jsonl");
    let equal = "1 %* slower [1.2x slower, 1.2x as fast] over 5 blocks, noise floor 21.4 %; even 200 blocks with this noise";
    assert!(embedded.contains(equal), "{embedded}");
}

#[test]
fn the_full_report_has_every_note() {
    let scratch = Scratch::new();
    let text = orchestrate(&scratch, &["report", &path("results/curated/embedded.jsonl"), "--full"]).stdout;
    let text = without_line_breaks(&text);
    let unsteady = "not steady at the end of its warm-up time: ";
    let (_, note) = text.split_once(unsteady).unwrap_or_else(|| panic!("{text}"));
    let (rows, hint) = note.split_once("; hint: ").unwrap();
    assert_eq!((text.matches(unsteady).count(), rows.split(", ").count()), (1, 14), "{text}");
    assert!(hint.starts_with("`--warmup "), "{text}");
    assert!(!text.contains(" more: "), "{text}");
}

/// A run of engines without scores, in one block, with a report for people.
fn run(scratch: &Scratch, verifier: Option<&Path>, engines: &[PathBuf], options: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate();
    if let Some(verifier) = verifier {
        command.env_remove("ORCHESTRATE_VERIFIER").arg("--verifier").arg(verifier);
    }
    for engine in engines {
        command.arg("-e").arg(engine);
    }
    command.args(DECODE).args(["--blocks", "1", "--iterations", "2", "--warmup", "1"]).args(options);
    finish(command.arg("--results").arg(scratch.results()))
}

#[test]
fn sampled_tokens_have_the_command_of_the_same_run_without_sampling_as_next_step() {
    let scratch = Scratch::new();
    let (verifier, engine) = (scratch.engine("verifier", ""), scratch.engine("right", ""));
    let outcome = run(&scratch, Some(&verifier), &[engine], &["--temperature", "0.8"]);
    let text = without_line_breaks(&outcome.stdout).replace(" \\ ", " ");
    assert!(text.contains("sampled tokens cannot be checked; hint: `--temperature 0`"), "{text}");
    let (_, step) = text.split_once("to verify the output: `").unwrap_or_else(|| panic!("{text}"));
    let command = step.split('`').next().unwrap();
    assert!(
        command.starts_with("orchestrate --verifier ") && command.ends_with("--temperature 0"),
        "{command}"
    );
    assert!(command.contains("-s decode") && !command.contains("0.8"), "{command}");
    assert!(!text.contains("why: "), "{text}");
    let mut explain = scratch.orchestrate();
    explain.args(["explain", "right", "--results"]).arg(scratch.results());
    let explained = without_line_breaks(&finish(&mut explain).exits_with(0).stdout);
    assert!(explained.contains("Reason: sampled tokens cannot be checked. "), "{explained}");
    assert_eq!(explained.matches("--temperature 0`").count(), 1, "{explained}");
}

#[test]
fn a_column_without_any_value_is_left_out_with_the_reason() {
    let scratch = Scratch::new();
    let shown = |record: &str, table: &str| {
        without_line_breaks(&orchestrate(&scratch, &["report", &path(record), table]).stdout)
    };
    let precision = shown("results/curated/llama-3.2-1b.jsonl", "--precision");
    let why = "the scenario `perplexity` has them, and was not measured";
    let all = format!("n/a in every row: perplexity, change, drift from widest; {why}");
    assert!(precision.contains(&all), "{precision}");
    assert!(!precision.contains("`?`: no verdict"), "no ratio has this mark: {precision}");
    let quality = shown("results/curated/embedded.jsonl", "--quality");
    assert!(quality.contains(&format!("n/a in every row: bits/byte; {why}")), "{quality}");
    let times = shown("results/curated/embedded.jsonl", "--wall-time");
    assert!(times.contains("n/a: the engine reports no time of this part"), "{times}");
}

#[test]
fn an_engine_without_scores_names_the_failure_of_the_verifier_as_the_reason() {
    let scratch = Scratch::new();
    let mute = scratch.engine("mute", r#"--capabilities '{"score":false}'"#);
    let verifier = scratch.faulty("fails_in_load", &[]);
    let outcome = run(&scratch, Some(&verifier), std::slice::from_ref(&mute), &[]);
    let text = without_line_breaks(&outcome.stdout);
    let reason = "`mute` UNVERIFIED: the verifier `fails_in_load (verifier)` gave no answers: model at load";
    assert!(text.contains(reason) && !text.contains("implement"), "{text}");
    let mut explain = scratch.orchestrate();
    explain.args(["explain", "mute", "--results"]).arg(scratch.results());
    let explained = without_line_breaks(&finish(&mut explain).exits_with(0).stdout);
    assert!(
        explained.contains("gave no answers: model at load") && !explained.contains("implement"),
        "{explained}"
    );
}

#[test]
fn a_budget_that_leaves_the_verifier_no_time_is_the_reason_and_not_a_missing_feature() {
    let scratch = Scratch::new();
    let mute = scratch.engine("mute", r#"--capabilities '{"score":false}'"#);
    // The verifier does not answer before the end of the budget.
    let verifier = scratch.faulty("hangs_in_score", &[]);
    let outcome = run(&scratch, Some(&verifier), &[mute], &["--budget", "3s"]);
    let text = without_line_breaks(&outcome.stdout);
    assert!(text.contains("the verifier `hangs_in_score (verifier)` gave no answers: "), "{text}");
    assert!(text.contains("; hint: `--budget ") && !text.contains("implement"), "{text}");
}

#[test]
fn one_block_says_that_a_verdict_needs_five() {
    let scratch = Scratch::new();
    let (verifier, engines) =
        (scratch.engine("one", ""), ["one", "other"].map(|name| scratch.engine(name, "")));
    let outcome = run(&scratch, Some(&verifier), &engines, &["--reference", "one"]);
    let text = without_line_breaks(&outcome.stdout);
    assert!(text.contains("! no verdicts: 1 block, verdicts need 5; hint: `--blocks 5`"), "{text}");
    assert!(text.contains("? no verdict: a line above the table says why"), "{text}");
}

#[test]
fn a_long_failure_ends_with_a_whole_clause_or_says_where_the_rest_is() {
    let scratch = Scratch::new();
    let clause = "the graph could not be compiled for this processor";
    let many = [clause; 12].join("; ");
    let endless = "word ".repeat(150);
    let failing = |name: &str, message: &str| {
        let answer = format!(r#"{{"type":"failed","kind":"unavailable","message":"{message}"}}"#);
        scratch.script(name, &format!("read line; echo '{answer}'"))
    };
    let engines =
        [failing("clauses", &many), failing("endless", endless.trim()), scratch.engine("right", "")];
    let outcome = run(&scratch, None, &engines, &[]);
    let text = without_line_breaks(&outcome.stdout);
    assert!(text.contains(&format!("clauses unavailable: {clause}; ")), "{text}");
    assert!(text.contains("word ... (all: `orchestrate explain ENGINE`)"), "{text}");
    assert!(!text.contains('…') && !text.contains(" the ..."), "{text}");
}

#[test]
fn a_dry_run_begins_with_what_the_run_would_do() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("toy", "")).args(["--dry-run", "--results"]).arg(scratch.results());
    let text = finish(&mut command).exits_with(0).stdout;
    let first = "the plan of the run; nothing is measured yet:\n5 to 20 blocks; each block launches every configuration once";
    assert!(text.starts_with(first), "{text}");
    assert!(
        text.contains("\nconfigurations:\n  toy on embedded")
            && text.contains("\nrequests to each of them:\n"),
        "{text}"
    );
}
