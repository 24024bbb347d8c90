//! The command line for a person: exit code, stdout and stderr together, one snapshot each.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::snapshot::{assert_snapshot, formats};
use crate::support::{Scratch, fake_engine, finish, root};

/// Runs the orchestrator in the root of the tree.
fn snapshot(name: &str, arguments: &[&str]) {
    let scratch = Scratch::new();
    assert_snapshot(name, &scratch, scratch.orchestrate().args(arguments).current_dir(root()));
}

// Refusals before anything is built or started.

#[test]
fn a_report_that_could_not_be_written_is_refused() {
    snapshot("json-nowhere", &["-e", "sh", "--json", "no/such/folder/x.json"]);
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    snapshot("presets-without-all", &["-e", "sh", "--presets"]);
    snapshot("remove-and-list", &["setup", "--list", "--remove", "x"]);
}

// Listings.

#[test]
fn no_arguments_print_the_help_with_a_usage_exit_code() {
    snapshot("no-arguments", &[]);
}

#[test]
fn help_names_every_option_and_every_exit_code() {
    snapshot("help", &["--help"]);
}

#[test]
fn the_version_is_one_line() {
    snapshot("version", &["--version"]);
}

#[test]
fn scenarios_and_metrics_describe_their_measurement() {
    snapshot("scenarios", &["scenarios"]);
    snapshot("metrics", &["metrics"]);
}

#[test]
fn an_installed_orchestrator_measures_a_program_on_the_embedded_model() {
    let scratch = Scratch::outside();
    let mut command = scratch.orchestrate_alone();
    command.args(["--blocks", "1", "--iterations", "1", "-s", "decode", "--format", "csv", "-e"]);
    let outcome = finish(command.arg(fake_engine())).exits_with(0);
    outcome.assert_stdout(&["decode_rate"]);
    // Without a checkout, the data directory has the results.
    assert_eq!(crate::support::record::files(&scratch.join("home/results")).len(), 1, "{outcome:?}");
}

#[test]
fn an_engine_is_called_by_the_name_that_it_was_given_also_through_a_link() {
    let scratch = Scratch::new();
    let link = scratch.join("my-link");
    std::os::unix::fs::symlink(fake_engine(), &link).unwrap();
    let mut command = scratch.orchestrate();
    command.args(["--blocks", "1", "--iterations", "1", "-s", "decode", "--format", "csv"]);
    let outcome = finish(
        command.arg("--results").arg(scratch.results()).arg("-e").arg(&link).arg("--reference").arg(&link),
    )
    .exits_with(0);
    outcome.assert_stdout(&["my-link"]);
}

#[test]
fn sampling_is_refused_for_an_engine_that_cannot_confirm_it() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.args(["--blocks", "1", "--temperature", "0.8", "-s", "decode", "-e", "tests/smallest-engine.py"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(root())).exits_with(4);
    outcome.assert_stdout(&["needs `sampling`"]);
}

#[test]
fn a_request_as_text_is_what_an_engine_without_hello_gets() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    let outcome = finish(command.args(["request", "sh", "ttft", "--text"]).current_dir(root()));
    let lines: Vec<Value> = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{outcome:?}");
    assert!(lines.iter().all(|it| it["type"] == "generate" && it["prompt"].is_string()), "{outcome:?}");
}

#[test]
fn the_schema_is_the_committed_one() {
    let outcome = finish(Scratch::new().orchestrate().arg("schema"));
    let committed = std::fs::read_to_string(root().join("protocol/schema/protocol.schema.json")).unwrap();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert!(outcome.stdout == committed, "orchestrate schema > protocol/schema/protocol.schema.json");
}

// Invalid arguments.

#[test]
fn an_unknown_engine_or_scenario_is_refused_with_a_hint() {
    snapshot("unknown-scenario", &["-s", "no-such-scenario", "-e", "sh"]);
    snapshot("no-engine-at-path", &["-e", "./no/such/engine"]);
    snapshot("no-engine", &["-s", "decode"]);
}

#[test]
fn a_program_in_this_folder_is_hinted_at_by_its_path() {
    snapshot("engine-without-slash", &["-e", "README.md"]);
}

#[test]
fn a_missing_model_is_refused() {
    snapshot("missing-model", &["-e", "sh", "-m", "/no/such/model"]);
}

#[test]
fn values_that_make_no_sense_are_refused_before_anything_starts() {
    snapshot("bad-set", &["-e", "sh", "--set", "novalue"]);
    snapshot("bad-threads", &["-e", "sh", "--threads", "0"]);
    snapshot("bad-temperature", &["-e", "sh", "--temperature", "-1"]);
    snapshot("bad-format", &["-e", "sh", "--format", "no-such-format"]);
    snapshot("bad-compare-format", &["compare", "no-base", "no-new", "--format", "no-such-format"]);
}

#[test]
fn a_format_that_has_no_place_for_a_view_is_refused_with_those_that_have() {
    snapshot("no-machine-in-csv", &["machine", "--format", "csv"]);
    let (all, of_machine) = (formats(&["report", "record"]), formats(&["machine"]));
    assert_eq!(formats(&["-e", "sh"]), all);
    assert!(of_machine.iter().all(|format| all.contains(format)), "{of_machine:?} of {all:?}");
    let refused: Vec<_> = all.iter().filter(|format| !of_machine.contains(format)).collect();
    assert!(refused.iter().any(|format| *format == "csv"), "{of_machine:?} of {all:?}");
    // A line-based format has no room for pairs either.
    let (last, others) = of_machine.split_last().unwrap();
    for format in refused {
        let words = ["report", "no-such-record.jsonl", "--pairs", "--format", format];
        let outcome = finish(Scratch::new().orchestrate().args(words));
        let said = format!(
            "error: --pairs: a line of {format} cannot hold a comparison with several engines\n\
             hint: --format {} or {last} has it\n",
            others.join(", ")
        );
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr), (Some(2), "", said));
    }
}

#[test]
fn setup_of_an_unknown_engine_is_refused() {
    snapshot("setup-unknown", &["setup", "no-such-engine"]);
    snapshot("setup-nothing", &["setup"]);
}

// Requests.

#[test]
fn a_request_is_the_exact_lines_of_a_whole_conversation() {
    let scratch = Scratch::new();
    let outcome = finish(scratch.orchestrate().args(["request", "sh", "decode"])).exits_with(0);
    let lines: Vec<Value> = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["hello", "load", "generate", "shutdown"]);
    assert_eq!(
        (lines[2]["prompt_ids"].as_array().unwrap().len(), &lines[2]["max_new_tokens"]),
        (32, &64.into())
    );
    // An engine accepts these lines.
    let path = scratch.join("lines");
    std::fs::write(&path, &outcome.stdout).unwrap();
    let mut fake = scratch.marked(fake_engine());
    let answers = finish(fake.stdin(std::fs::File::open(&path).unwrap())).stdout;
    let types: Vec<Value> =
        answers.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].take()).collect();
    assert_eq!(types, ["hello", "loaded", "generated", "bye"]);
}

#[test]
fn a_request_for_an_unknown_scenario_is_refused() {
    snapshot("request-unknown-scenario", &["request", "sh", "no-such-scenario"]);
}

// Reports of existing records.

const RECORD: &str = "tests/snapshots/record.jsonl";

#[test]
fn a_report_can_be_made_again_in_every_format() {
    snapshot("report-table", &["report", RECORD]);
    snapshot("report-csv", &["report", RECORD, "--format", "csv"]);
    snapshot("report-markdown", &["report", RECORD, "--format", "markdown"]);
    snapshot("report-everything", &["report", RECORD, "--pairs", "--wall-time"]);
    for format in formats(&["report", RECORD]) {
        let mut command = Scratch::new().orchestrate();
        let outcome = finish(command.args(["report", RECORD, "--format", &format]).current_dir(root()));
        assert!(outcome.code == Some(0) && !outcome.stdout.is_empty(), "{format}: {outcome:?}");
    }
    let outcome =
        finish(Scratch::new().orchestrate().args(["report", RECORD, "--format", "json"]).current_dir(root()));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (report["record"].as_str(), report["cases"].as_array().unwrap().len()),
        (Some("2026-01-02T03-04-05Z-67"), 3)
    );
}

/// The committed record, with a change.
fn record(scratch: &Scratch, change: impl FnOnce(String) -> String) -> PathBuf {
    let path = scratch.join("record.jsonl");
    std::fs::write(&path, change(std::fs::read_to_string(root().join(RECORD)).unwrap())).unwrap();
    path
}

fn snapshot_of_changed_record(name: &str, change: impl FnOnce(String) -> String) {
    let scratch = Scratch::new();
    let path = record(&scratch, change);
    assert_snapshot(name, &scratch, scratch.orchestrate().arg("report").arg(path));
}

#[test]
fn a_record_that_was_cut_off_is_reported_with_a_note() {
    snapshot_of_changed_record("report-truncated", |whole| whole[..whole.len() / 2].to_string());
}

#[test]
fn a_record_of_another_version_is_refused() {
    snapshot_of_changed_record("report-other-version", |whole| {
        whole.replacen("\"record_version\":2", "\"record_version\":99", 1)
    });
}

#[test]
fn a_file_that_is_no_record_is_refused() {
    snapshot_of_changed_record("report-empty", |_| String::new());
    snapshot_of_changed_record("report-of-something-else", |_| "{\"name\": \"not a record\"}\n[1]\n".into());
    snapshot("report-missing", &["report", "no/such/record.jsonl"]);
}

#[test]
fn a_record_with_a_broken_line_in_the_middle_is_refused_with_its_number() {
    snapshot_of_changed_record("report-broken-line", |whole| {
        whole.replacen("{\"entry\":\"sample\"", "{\"entry\":", 1)
    });
}

// Output to pipes and files.

fn decode(scratch: &Scratch, arguments: &[&str]) -> crate::support::Outcome {
    let chatters = scratch.faulty("chatter", &[]);
    let mut command = scratch.orchestrate();
    command.args(["-s", "decode", "--blocks", "1", "--iterations", "2"]).arg("-e").arg(chatters);
    finish(command.arg("--results").arg(scratch.results()).args(arguments))
}

#[test]
fn json_to_a_dash_is_all_of_stdout() {
    let scratch = Scratch::new();
    let outcome = decode(&scratch, &["--json", "-"]).exits_with(0);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["cases"][0]["engine"]["label"], "chatter");
    outcome.assert_stderr(&["recorded in "]);
}

#[test]
fn json_to_a_file_leaves_the_table_on_stdout() {
    let scratch = Scratch::new();
    let file = scratch.join("report.json");
    let outcome = decode(&scratch, &["--json", file.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(report["cases"][0]["case"], "decode");
    outcome.assert_stdout(&["explanations: orchestrate metrics"]);
}

#[test]
fn a_run_prints_only_the_requested_format() {
    let outcome = decode(&Scratch::new(), &["--format", "csv"]);
    let columns: Vec<_> = outcome.stdout.lines().map(|line| line.split(',').count()).collect();
    assert!(outcome.stdout.starts_with("record,case,scenario,engine,"), "{outcome:?}");
    assert!(columns.len() > 2 && columns.iter().all(|count| *count == columns[0]), "{outcome:?}");
}

#[test]
fn a_record_gives_the_same_report_again() {
    let scratch = Scratch::new();
    let first = decode(&scratch, &["--format", "csv"]);
    let [record] = &crate::support::record::files(&scratch.results())[..] else {
        panic!("no record: {first:?}")
    };
    let again = finish(scratch.orchestrate().arg("report").arg(record).args(["--format", "csv"]));
    assert_eq!((again.stdout, again.code), (first.stdout, Some(0)));
}

#[test]
fn debug_shows_both_directions_on_stderr_and_leaves_stdout_alone() {
    let outcome = decode(&Scratch::new(), &["--json", "-", "--debug"]);
    assert!(serde_json::from_str::<Value>(&outcome.stdout).is_ok(), "{outcome:?}");
    outcome.assert_stderr(&[
        "[chatter] < {\"type\":\"hello\"",
        "[chatter] > {",
        "[chatter] < {\"type\":\"shutdown\"",
    ]);
}
