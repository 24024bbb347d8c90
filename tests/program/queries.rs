//! The scenario `queries`: the time of a request for an engine's facts, with the null engine beside it.

use serde_json::Value;

use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Scratch, fake_engine, finish};

/// One block of three rounds, without warm-up.
const SHORT: &[&str] =
    &["-s", "queries", "--blocks", "1", "--iterations", "3", "--warmup", "0", "--json", "-"];

/// The estimates of a row's metrics by name.
fn estimate(case: &Value, metric: &str) -> Option<f64> {
    let metrics = case["metrics"].as_array().unwrap();
    metrics.iter().find(|it| it["metric"] == metric)?["estimate"].as_f64()
}

fn run_one(settings: &str) -> Run {
    run_selected(&[("one", settings)], Verifier::None, SHORT)
}

#[test]
fn a_query_for_facts_has_a_time_and_the_null_engine_is_beside_it() {
    let run = run_one("");
    let case = run.case_of("one");
    assert_eq!((&case["case"], &case["headline"]), (&"queries".into(), &"query".into()));
    assert!(estimate(case, "query").unwrap() > 0.0, "{case}");
    assert!(estimate(case, "null_query").unwrap() > 0.0, "{case}");
    // A query has no prompt and no output.
    for absent in ["first_token", "throughput", "decode_rate", "prefill_rate"] {
        assert_eq!(estimate(case, absent), None, "{absent}");
    }
    assert_eq!(run.report["cases"].as_array().unwrap().len(), 1, "the null engine has no row");
    assert_eq!(run.record.samples_of("null engine").len(), run.record.samples_of("one").len());
    assert_eq!(run.outcome.code, Some(0), "{:?}", run.outcome);
}

#[test]
fn the_tables_show_the_query_and_the_null_engine_and_every_format_has_the_unit() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(&SHORT[..SHORT.len() - 2]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let heads = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(heads(&outcome.stdout).contains("query engine mem µs µs MB"), "{}", outcome.stdout);
    let report = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        finish(command.arg("report").args(options).arg("--results").arg(scratch.results()))
            .exits_with(0)
            .stdout
    };
    let full = report(&["--full"]);
    assert!(heads(&full).contains("null peak case load query engine mem"), "{full}");
    let csv = report(&["--format", "csv"]);
    for metric in [",query,ns,3,", ",null_query,ns,"] {
        assert!(csv.contains(metric), "{metric}: {csv}");
    }
}

#[test]
fn engines_are_compared_by_their_queries_and_never_by_the_null_engine() {
    let run = run_selected(&[("one", ""), ("other", "")], Verifier::None, SHORT);
    let comparisons = run.report["comparisons"].as_array().unwrap();
    let metrics: Vec<&Value> = comparisons.iter().map(|it| &it["metric"]).collect();
    assert!(metrics.contains(&&"query".into()) && !metrics.contains(&&"null_query".into()), "{metrics:?}");
    let times = |label| estimate(run.case_of(label), "null_query");
    assert_eq!(times("one"), times("other"));
}

#[test]
fn beside_other_scenarios_the_screen_has_no_ratio_of_queries() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).arg("-e").arg(scratch.engine("other", ""));
    command.args([
        "-s",
        "decode,queries",
        "--depth",
        "0",
        "--blocks",
        "1",
        "--iterations",
        "3",
        "--warmup",
        "0",
    ]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let heads = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(heads.contains("ITL") && heads.contains("query"), "{}", outcome.stdout);
    assert!(!heads.contains("query vs ref"), "{}", outcome.stdout);
}

#[test]
fn an_engine_that_cannot_be_paused_is_in_no_group_with_the_null_engine() {
    let options = ["--blocks", "2", "--iterations", "3", "--warmup", "0", "--json", "-", "-s", "queries"];
    let run = run_selected(&[("alone", r#"--loaded '{"pids":[1]}'"#)], Verifier::None, &options);
    assert!(!run.outcome.stderr.contains("stay paused"), "{:?}", run.outcome);
    assert!(estimate(run.case_of("alone"), "null_query").is_some(), "{}", run.report);
}

#[test]
fn the_clock_and_the_tokens_of_a_query_are_not_checked() {
    let options = ["--blocks", "2", "--iterations", "20", "--warmup", "0", "--json", "-", "-s", "queries"];
    let run = run_selected(&[("one", ""), ("other", "")], Verifier::Engine(""), &options);
    assert_eq!(run.report["contradictions"], Value::Array(Vec::new()), "{}", run.report);
    assert_eq!((run.status("one"), run.status("other")), ("exact", "exact"), "{}", run.report["outputs"]);
}

#[test]
fn an_engine_that_answers_no_facts_is_an_unsupported_row_and_the_others_are_measured() {
    let silent = ("silent", r#"--capabilities '{"facts":false}'"#);
    let run = run_selected(&[silent, ("other", "")], Verifier::None, SHORT);
    let failure = &run.case_of("silent")["failure"];
    assert_eq!(failure["kind"], "unsupported");
    assert_eq!(failure["message"], "the scenario needs `facts`, and this engine does not support it");
    assert!(estimate(run.case_of("other"), "query").is_some(), "{}", run.report);
    // Without a row to compare with, the null engine is not measured again, and has no failure of its own.
    let options = [&["-s", "queries,ttft", "--prompt-tokens", "16", "--budget", "10s"], &SHORT[4..]].concat();
    let alone = run_selected(&[silent], Verifier::None, &options);
    assert!(alone.record.launches_of("null engine").len() <= 1, "{:?}", alone.record);
    assert!(alone.record.failures_of("null engine").is_empty(), "{:?}", alone.record);
}

#[test]
fn a_wrong_answer_to_a_query_is_a_failure_with_the_fact() {
    for (facts, kind, message) in [
        (r#"{"hidden_size":65}"#, "wrong_output", "`facts` has 65 as `hidden_size`, and `loaded` has 64"),
        (
            r#"{"device":"cuda:0"}"#,
            "wrong_output",
            r#"`facts` has "cuda:0" as `device`, and `loaded` has "cpu""#,
        ),
        (
            r#"{"weights_bytes":null}"#,
            "wrong_output",
            "`facts` has no `weights_bytes`, and `loaded` has 4000000",
        ),
        (r#"{"hidden_size":-1}"#, "protocol", "`hidden_size`: invalid value: integer `-1`, expected u32"),
        (r#"{"type":"bye"}"#, "protocol", "expected `facts`, got `bye`"),
        (
            r#"{"type":"failed","kind":"device","message":"the device was lost"}"#,
            "device",
            "the device was lost",
        ),
    ] {
        let run = run_one(&format!("--facts '{facts}'"));
        let failure = run.assert_failed("one", kind, "sample 1");
        let found = failure["message"].as_str().unwrap();
        assert!(found.contains(message), "{facts}: `{found}`");
    }
}

#[test]
fn facts_that_change_after_a_load_are_no_contradiction() {
    let run = run_one(r#"--facts '{"threads":7,"libraries":{"pretence":"2"}}' --memory-bytes 5000"#);
    assert_eq!(run.case_of("one")["failure"], Value::Null, "{}", run.report);
    let sample = run.record.samples_of("one")[0];
    assert_eq!(sample["device_memory"]["in_use_bytes"], 5000);
}

#[test]
fn a_run_without_queries_starts_no_null_engine_in_its_blocks() {
    let options = ["-s", "ttft", "--prompt-tokens", "16", "--blocks", "1", "--json", "-"];
    let run = run_selected(&[("one", "")], Verifier::None, &options);
    let configurations = run.record.header()["plan"]["configurations"].as_array().unwrap();
    assert!(configurations.iter().all(|it| it["label"] != "null engine"), "{configurations:?}");
    assert_eq!(estimate(run.case_of("one"), "query"), None);
}

#[test]
fn options_of_axes_do_not_change_a_query() {
    let options =
        ["-s", "queries,ttft", "--prompt-tokens", "16,24", "--blocks", "1", "--warmup", "0", "--json", "-"];
    let run = run_selected(&[("one", "")], Verifier::None, &options);
    let labels: Vec<&Value> = run.report["cases"].as_array().unwrap().iter().map(|it| &it["case"]).collect();
    assert_eq!(labels, ["queries", "ttft 16", "ttft 24"]);
}

#[test]
fn the_subcommand_request_prints_a_query_that_an_engine_answers() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    let lines = finish(command.arg("request").arg(fake_engine()).arg("queries")).exits_with(0).stdout;
    assert_eq!(lines.lines().nth(2), Some(r#"{"type":"facts"}"#), "{lines}");
    assert_eq!(lines.lines().count(), 4, "{lines}");
}
