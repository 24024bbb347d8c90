//! Tests of commands. Many compare exit code, stdout and stderr with a snapshot.

use serde_json::Value;

use crate::support::record::files;
use crate::support::snapshot::{assert_snapshot, formats};
use crate::support::{DECODE, Outcome, Scratch, fake_engine, finish, root};

/// Runs the orchestrator in the root of the tree, and compares its output with a snapshot.
fn snapshot(name: &str, arguments: &[&str]) {
    let scratch = Scratch::new();
    assert_snapshot(name, &scratch, scratch.orchestrate().args(arguments).current_dir(root()));
}

/// Commands that start nothing, each with the name of its snapshot.
const SNAPSHOTS: &[(&str, &[&str])] = &[
    // Listings.
    ("help", &["--help"]),
    ("scenarios", &["scenarios"]),
    ("metrics", &["metrics"]),
    // Refusals before anything is built or started.
    ("no-arguments", &[]),
    ("json-nowhere", &["-e", "sh", "--json", "no/such/folder/x.json"]),
    ("presets-without-all", &["-e", "sh", "--presets"]),
    ("remove-and-list", &["setup", "--list", "--remove", "x"]),
    ("unknown-scenario", &["-s", "no-such-scenario", "-e", "sh"]),
    ("request-unknown-scenario", &["request", "sh", "no-such-scenario"]),
    ("no-engine-at-path", &["-e", "./no/such/engine"]),
    ("no-engine", &["-s", "decode", "--depth", "0"]),
    ("engine-without-slash", &["-e", "README.md"]),
    ("missing-model", &["-e", "sh", "-m", "/no/such/model"]),
    ("bad-set", &["-e", "sh", "--set", "novalue"]),
    ("bad-threads", &["-e", "sh", "--threads", "0"]),
    ("bad-temperature", &["-e", "sh", "--temperature", "-1"]),
    ("bad-format", &["-e", "sh", "--format", "no-such-format"]),
    ("bad-compare-format", &["compare", "no-base", "no-new", "--format", "no-such-format"]),
    ("no-machine-in-csv", &["machine", "--format", "csv"]),
    ("setup-unknown", &["setup", "no-such-engine"]),
    ("setup-nothing", &["setup"]),
    // Reports of a record.
    ("report-table", &["report", RECORD]),
    ("report-csv", &["report", RECORD, "--format", "csv"]),
    ("report-markdown", &["report", RECORD, "--format", "markdown"]),
    ("report-everything", &["report", RECORD, "--pairs", "--wall-time"]),
    ("report-missing", &["report", "no/such/record.jsonl"]),
    // Explanations of a record.
    ("explain-engine", &["explain", "lmrs:q8_0", EXPLAINED]),
    ("explain-engine-and-case", &["explain", "lmrs:q8_0", "decode", EXPLAINED]),
    ("explain-case", &["explain", "ttft 512", EXPLAINED]),
    ("explain-terms", &["explain", EXPLAINED]),
    ("explain-failure", &["explain", "false", "tests/records/failed-engine.jsonl"]),
    ("explain-unknown", &["explain", "lmsr", EXPLAINED]),
    ("explain-missing", &["explain", "lmrs", "no/such/record.jsonl"]),
];

/// A record with two configurations of one engine, verdicts and output checks.
const EXPLAINED: &str = "tests/records/default-suite.jsonl";

#[test]
fn commands_that_start_nothing_print_their_snapshot() {
    for (name, arguments) in SNAPSHOTS {
        snapshot(name, arguments);
    }
}

#[test]
fn the_version_names_a_commit_and_the_processor_that_the_program_was_built_for() {
    let print = |option| finish(Scratch::new().orchestrate().arg(option)).exits_with(0).stdout;
    let (short, long) = (print("-V"), print("--version"));
    let (first, built_for) = long.split_once('\n').unwrap();
    assert_eq!(short.trim_end(), first);
    assert!(built_for.starts_with(&format!("built for {}-", std::env::consts::ARCH)), "{long}");
    let version = first.strip_prefix(concat!("orchestrate ", env!("CARGO_PKG_VERSION"))).unwrap();
    // Sources without a git checkout have no commit.
    if root().join(".git").exists() {
        let commit = version.strip_prefix(" (").and_then(|it| it.strip_suffix(')')).unwrap();
        let id = commit.strip_suffix("-dirty").unwrap_or(commit);
        assert!(id.len() == 12 && id.bytes().all(|it| it.is_ascii_hexdigit()), "{long}");
    }
}

#[test]
fn an_installed_orchestrator_measures_a_program_on_the_embedded_model() {
    let scratch = Scratch::outside_checkout();
    let mut command = scratch.orchestrate_without_checkout();
    command.args([
        "--blocks",
        "1",
        "--iterations",
        "1",
        "-s",
        "decode",
        "--depth",
        "0",
        "--format",
        "csv",
        "-e",
    ]);
    let outcome = finish(command.arg(fake_engine())).exits_with(0);
    outcome.assert_stdout(&["decode_rate"]);
    // Records are in `results` of the current folder.
    assert_eq!(files(&scratch.results()).len(), 1, "{outcome:?}");
}

#[test]
fn an_engine_behind_a_link_has_the_name_of_the_link() {
    let scratch = Scratch::new();
    let link = scratch.join("my-link");
    std::os::unix::fs::symlink(fake_engine(), &link).unwrap();
    let mut command = scratch.orchestrate();
    command.args(["--blocks", "1", "--iterations", "1", "-s", "decode", "--depth", "0", "--format", "csv"]);
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
    command.args([
        "--blocks",
        "1",
        "--temperature",
        "0.8",
        "-s",
        "decode",
        "--depth",
        "0",
        "-e",
        "tests/smallest-engine.py",
    ]);
    let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(root())).exits_with(4);
    outcome.assert_stdout(&["needs `sampling`"]);
}

#[test]
fn request_with_text_prints_only_the_generate_requests() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    let outcome = finish(command.args(["request", "sh", "ttft", "--text"]).current_dir(root()));
    let lines: Vec<Value> = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // One for each prompt length of `ttft`.
    assert_eq!(lines.len(), 9, "{outcome:?}");
    assert!(lines.iter().all(|it| it["type"] == "generate" && it["prompt"].is_string()), "{outcome:?}");
}

#[test]
fn the_printed_schema_equals_the_committed_schema() {
    let outcome = finish(Scratch::new().orchestrate().arg("schema"));
    let committed = std::fs::read_to_string(root().join("protocol/schema/protocol.schema.json")).unwrap();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert!(outcome.stdout == committed, "it differs from protocol/schema/protocol.schema.json");
}

#[test]
fn a_format_that_cannot_show_pairs_is_refused_with_the_formats_that_can() {
    let (all, machine_formats) = (formats(&["report", "record"]), formats(&["machine"]));
    assert_eq!(formats(&["-e", "sh"]), all);
    assert!(machine_formats.iter().all(|format| all.contains(format)), "{machine_formats:?} of {all:?}");
    let refused: Vec<_> = all.iter().filter(|format| !machine_formats.contains(format)).collect();
    assert!(refused.iter().any(|format| *format == "csv"), "{machine_formats:?} of {all:?}");
    // The formats that `machine` lacks have a row on each line, so they cannot show pairs either.
    for format in refused {
        let words = ["report", "no-such-record.jsonl", "--pairs", "--format", format];
        let outcome = finish(Scratch::new().orchestrate().args(words));
        let expected = format!(
            "error: --pairs: a line of {format} cannot hold a comparison with several engines\n\
             hint: orchestrate report no-such-record.jsonl --pairs --format {}\n",
            machine_formats[0]
        );
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr), (Some(2), "", expected));
    }
}

// Requests.

#[test]
fn the_command_request_prints_the_lines_of_a_whole_conversation() {
    let scratch = Scratch::new();
    let outcome =
        finish(scratch.orchestrate().args(["request", "sh", "decode", "--depth", "0"])).exits_with(0);
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
    let mut fake = scratch.command(fake_engine());
    let answers = finish(fake.stdin(std::fs::File::open(&path).unwrap())).stdout;
    let types: Vec<Value> =
        answers.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].take()).collect();
    assert_eq!(types, ["hello", "loaded", "generated", "bye"]);
}

// Reports of existing records.

const RECORD: &str = "tests/snapshots/record.jsonl";

#[test]
fn a_report_can_be_made_again_in_every_format() {
    for format in formats(&["report", RECORD]) {
        let mut command = Scratch::new().orchestrate();
        let outcome = finish(command.args(["report", RECORD, "--format", &format]).current_dir(root()));
        assert!(outcome.code == Some(0) && !outcome.stdout.is_empty(), "{format}: {outcome:?}");
    }
    let mut command = Scratch::new().orchestrate();
    let report = finish(command.args(["report", RECORD, "--format", "json"]).current_dir(root())).json();
    let cases = report["cases"].as_array().unwrap().len();
    assert_eq!((report["record"].as_str(), cases), (Some("2026-01-02T03-04-05Z-67"), 3));
}

#[test]
fn a_report_of_a_damaged_record_prints_its_snapshot() {
    let text = std::fs::read_to_string(root().join(RECORD)).unwrap();
    let damaged = [
        ("report-truncated", text[..text.len() / 2].to_string()),
        ("report-other-version", text.replacen("\"record_version\":2", "\"record_version\":99", 1)),
        ("report-empty", String::new()),
        ("report-of-something-else", "{\"name\": \"not a record\"}\n[1]\n".into()),
        ("report-broken-line", text.replacen("{\"entry\":\"sample\"", "{\"entry\":", 1)),
    ];
    for (name, text) in damaged {
        let scratch = Scratch::new();
        let path = scratch.join("record.jsonl");
        std::fs::write(&path, text).unwrap();
        assert_snapshot(name, &scratch, scratch.orchestrate().arg("report").arg(path));
    }
}

#[test]
fn a_metric_is_explained_by_its_name_or_by_the_title_of_its_column() {
    let scratch = Scratch::new();
    let explained = |name: &str| finish(scratch.orchestrate().args(["metrics", name])).exits_with(0).stdout;
    let itl = explained("ITL");
    let head = "ITL (inter_token): ms in tables, ns in JSON and CSV
    ";
    assert!(
        itl.starts_with(head)
            && itl
                .matches(
                    " in JSON and CSV
"
                )
                .count()
                == 1,
        "{itl}"
    );
    for same in ["inter_token", "ITL p99", "ITL p50 p95 p99"] {
        assert_eq!(explained(same), itl, "{same}");
    }
}

// Output to pipes and files.

/// Measures an engine whose stray lines on stdout must not appear in the output.
fn measure(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    let engine = scratch.faulty("stray_lines", &[]);
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "1", "--iterations", "2"]).arg("-e").arg(engine);
    finish(command.arg("--results").arg(scratch.results()).args(arguments))
}

#[test]
fn with_json_to_stdout_nothing_else_is_on_stdout() {
    let scratch = Scratch::new();
    let outcome = measure(&scratch, &["--json", "-"]).exits_with(0);
    let report = outcome.json();
    assert_eq!(report["cases"][0]["engine"]["label"], "stray_lines");
    outcome.assert_stderr(&["recorded in "]);
}

#[test]
fn an_engine_that_prints_lines_before_each_answer_is_measured_in_a_long_run() {
    // Three lines for each of 400 requests are more than the limit, but the limit is for the lines before one message.
    measure(&Scratch::new(), &["--warmup", "400"]).exits_with(0);
}

#[test]
fn json_to_a_file_leaves_the_table_on_stdout() {
    let scratch = Scratch::new();
    let file = scratch.join("report.json");
    let outcome = measure(&scratch, &["--json", file.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(report["cases"][0]["case"], "decode");
    outcome.assert_stdout(&["decode", "--full"]);
}

#[test]
fn a_run_prints_only_the_requested_format() {
    let outcome = measure(&Scratch::new(), &["--format", "csv"]);
    let columns: Vec<_> = outcome.stdout.lines().map(|line| line.split(',').count()).collect();
    assert!(outcome.stdout.starts_with("record,case,scenario,engine,"), "{outcome:?}");
    assert!(columns.len() > 2 && columns.iter().all(|count| *count == columns[0]), "{outcome:?}");
}

#[test]
fn a_record_gives_the_same_report_again() {
    let scratch = Scratch::new();
    let first = measure(&scratch, &["--format", "csv"]);
    let mut report = scratch.orchestrate();
    let again = finish(report.arg("report").args(files(&scratch.results())).args(["--format", "csv"]));
    assert_eq!((again.stdout, again.code), (first.stdout, Some(0)));
}

#[test]
fn debug_shows_requests_and_answers_on_stderr_and_nothing_on_stdout() {
    let outcome = measure(&Scratch::new(), &["--json", "-", "--debug"]);
    outcome.json();
    outcome.assert_stderr(&[
        "[stray_lines] < {\"type\":\"hello\"",
        "[stray_lines] > {",
        "[stray_lines] < {\"type\":\"shutdown\"",
    ]);
}

#[test]
fn the_short_help_fits_sixty_lines_and_the_long_one_has_every_option() {
    let help = |option| finish(Scratch::new().orchestrate().arg(option)).exits_with(0).stdout;
    let (short, long) = (help("-h"), help("--help"));
    assert!(short.lines().count() <= 60, "{} lines\n{short}", short.lines().count());
    for option in ["--engine", "--model", "--scenario", "--budget", "--dry-run"] {
        assert!(short.contains(option) && long.contains(option), "{option}");
    }
    for option in ["--padding", "--nonce", "--max-request-time", "--rerun-baseline", "  130  interrupted"] {
        assert!(!short.contains(option) && long.contains(option), "{option}");
    }
}
