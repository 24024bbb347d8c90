//! Run records as files: where they are, how they are found and listed, which files are no records, and which runs leave none.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::record::{Record, files};
use crate::support::snapshot::formats;
use crate::support::{Outcome, Scratch, build_command, fake_engine, finish, root};

const QUICK: &[&str] =
    &["-s", "decode", "--depth", "0", "--blocks", "1", "--iterations", "1", "--warmup", "1"];

/// The orchestrator in the scratch folder, without a default verifier.
fn command(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.args(words).current_dir(&scratch.path);
    command
}

fn orchestrate(scratch: &Scratch, words: &[&str]) -> Outcome {
    finish(&mut command(scratch, words))
}

/// Copies the stored record, with another start and id, to a file.
fn store(file: &Path, started: &str, id: &str) {
    let text = std::fs::read_to_string(root().join("tests/snapshots/record.jsonl")).unwrap();
    let (header, rest) = text.split_once('\n').unwrap();
    let mut header: Value = serde_json::from_str(header).unwrap();
    (header["started"], header["id"]) = (started.into(), id.into());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, format!("{header}\n{rest}")).unwrap();
}

/// Writes two records. By name, the file of the later one comes first.
fn write_two_records(scratch: &Scratch) -> [PathBuf; 2] {
    let [earlier, later] = ["z.jsonl", "a.jsonl"].map(|name| scratch.results().join(name));
    store(&earlier, "2026-01-02T03:04:05Z", "earlier");
    store(&later, "2026-02-03T04:05:06Z", "later");
    [earlier, later]
}

/// The text of the first command between backticks in the line that begins with `start`.
fn command_after<'a>(start: &str, text: &'a str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    line.and_then(|line| line.split('`').nth(1))
        .unwrap_or_else(|| panic!("no command after `{start}`: {text}"))
}

#[test]
fn a_command_below_a_table_runs_as_it_is_although_the_program_is_not_on_path() {
    let scratch = Scratch::outside_checkout();
    write_two_records(&scratch);
    let report = |words: &[&str]| {
        let mut command = scratch.orchestrate_without_checkout();
        finish(command.args(["report", "results/a.jsonl"]).args(words)).exits_with(0)
    };
    let table = report(&[]).stdout;
    let pasted = command_after("in full: ", &table);
    assert_eq!(pasted, "./bin/orchestrate report results/a.jsonl --full");
    let mut shell = scratch.command("sh");
    let full = finish(shell.args(["-c", pasted]).current_dir(&scratch.path)).exits_with(0);
    assert_eq!(full.stdout, report(&["--full"]).stdout);
    // The other formats do not depend on the program's path.
    for format in ["markdown", "csv", "json", "svg"] {
        let page = report(&["--format", format]).stdout;
        let mut installed = scratch.orchestrate_without_checkout();
        installed.args(["report", "results/a.jsonl", "--format", format]).env("PATH", scratch.join("bin"));
        assert!(
            page == finish(&mut installed).stdout && !page.contains("bin/orchestrate"),
            "{format}: {page}"
        );
    }
}

#[test]
fn a_program_on_path_is_named_by_its_short_name() {
    let scratch = Scratch::outside_checkout();
    let hint = |path: &str| {
        let mut command = scratch.orchestrate_without_checkout();
        finish(command.arg("report").env("PATH", path)).exits_with(2).stderr
    };
    let found = format!("{}:/usr/bin:/bin", scratch.join("bin").display());
    assert!(hint(&found).ends_with("\nhint: orchestrate --all\n"), "{}", hint(&found));
    assert!(hint("/usr/bin:/bin").ends_with("\nhint: ./bin/orchestrate --all\n"));
}

#[test]
fn records_are_written_to_results_or_to_the_folder_of_the_variable_or_of_the_option() {
    let scratch = Scratch::new();
    let engine = fake_engine().to_str().unwrap();
    let run = [&["-e", engine], QUICK].concat();
    orchestrate(&scratch, &run).exits_with(0);
    assert_eq!(files(&scratch.results()).len(), 1);
    let variable = || {
        let mut command = command(&scratch, &run);
        command.env("ORCHESTRATE_RESULTS", scratch.join("of-variable"));
        command
    };
    finish(&mut variable()).exits_with(0);
    finish(variable().args(["--results", "of-option"])).exits_with(0);
    let counts = ["results", "of-variable", "of-option"].map(|name| files(&scratch.join(name)).len());
    assert_eq!(counts, [1, 1, 1]);
    // A report reads the same folder.
    let mut report = command(&scratch, &["report", "--format", "json"]);
    let id = |outcome: Outcome| outcome.exits_with(0).json()["record"].clone();
    let of_variable = id(finish(report.env("ORCHESTRATE_RESULTS", scratch.join("of-variable"))));
    assert_eq!(of_variable, Record::only_one_in(&scratch.join("of-variable")).0[0]["id"]);
    let of_option = id(orchestrate(&scratch, &["report", "--results", "of-option", "--format", "json"]));
    assert_eq!(of_option, Record::only_one_in(&scratch.join("of-option")).0[0]["id"]);
}

#[test]
fn a_run_that_measured_nothing_does_not_become_the_latest_record() {
    let scratch = Scratch::new();
    orchestrate(&scratch, &[&["-e", fake_engine().to_str().unwrap()], QUICK].concat()).exits_with(0);
    let measured = Record::only_one_in(&scratch.results()).0[0]["id"].clone();
    let broken = scratch.script("broken", "exit 3");
    let broken = [&["-e", broken.to_str().unwrap()], QUICK].concat();
    orchestrate(&scratch, &broken).exits_with(4);
    let latest =
        || orchestrate(&scratch, &["report", "--format", "json"]).exits_with(0).json()["record"].clone();
    assert_eq!(latest(), measured);
    let report = orchestrate(&scratch, &["report"]).exits_with(0);
    report.assert_stderr(&["note: `results/", "hint: orchestrate report results/"]);
    assert_eq!(orchestrate(&scratch, &["report", "-q"]).exits_with(0).stderr, "");
    // If no run measured anything, there is nothing else to show.
    let scratch = Scratch::new();
    orchestrate(&scratch, &broken).exits_with(4);
    orchestrate(&scratch, &["report"]).exits_with(0).assert_stdout(&["broken  exited at hello"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_an_engine_is_built() {
    let scratch = Scratch::outside_checkout();
    let program = "slow-engine";
    let manifest =
        format!("about = \"an engine\"\nbinary = \"{program}\"\n[build]\n{}", build_command(program));
    scratch.write_tree(&[("slow", &manifest)]);
    for mode in [&[][..], &["--dry-run"]] {
        // Even the administrator can create no folder there.
        let mut run = scratch.orchestrate_without_checkout();
        run.args(["-e", "slow", "--results", "/proc/x"]).args(QUICK).args(mode);
        let outcome = finish(run.arg("-m").arg(root().join("models/embedded"))).exits_with(5);
        outcome.assert_stderr(&["cannot write records to the folder `/proc/x`", "hint: --results DIR"]);
        assert!(!scratch.join("target").exists(), "{outcome:?}");
    }
}

#[test]
fn a_report_without_a_file_shows_the_record_that_was_started_last() {
    let scratch = Scratch::new();
    write_two_records(&scratch);
    // Files that are no record do not matter.
    std::fs::write(scratch.results().join("zz.jsonl"), "no record\n").unwrap();
    let report = orchestrate(&scratch, &["report", "--format", "json"]).exits_with(0).json();
    assert_eq!(report["record"], "later");
    // It is also the default of the later side of a comparison.
    let judged = orchestrate(&scratch, &["compare", "results/z.jsonl", "--format", "json"]).json();
    assert_eq!((&judged["base"]["record"], &judged["new"]["record"]), (&"earlier".into(), &"later".into()));
}

#[test]
fn records_are_listed_newest_first_in_every_format() {
    let scratch = Scratch::new();
    let [earlier, _] = write_two_records(&scratch);
    let text = std::fs::read_to_string(&earlier).unwrap();
    let cut_off = text.lines().filter(|line| !line.contains("\"entry\":\"end\""));
    std::fs::write(&earlier, cut_off.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    std::fs::write(scratch.results().join("other.jsonl"), "[1]\n").unwrap();
    let list = |format: &str| orchestrate(&scratch, &["report", "--list", "--format", format]).exits_with(0);
    for format in formats(&["report", "--list"]) {
        let text = list(&format).stdout;
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{format}: no `{word}`\n{text}"));
        assert!(at("results/a.jsonl") < at("results/z.jsonl"), "{format}\n{text}");
        for word in ["embedded", "decode", "finished", "cut off"] {
            at(word);
        }
    }
    let table = list("table");
    table.assert_stdout(&["2026-02-03 04:05", "not listed: `results/other.jsonl` is not a run record: "]);
    let json = list("json").json();
    let records = json["records"].as_array().unwrap();
    assert_eq!((&records[0]["record"], &records[1]["end"]), (&"later".into(), &"cut off".into()));
    assert_eq!(records[0]["blocks"], records[1]["blocks"]);
    let lines = list("csv").stdout;
    assert_eq!(lines.lines().count(), 3, "{lines}");
}

#[test]
fn without_a_record_the_hint_has_the_command_that_makes_or_finds_one() {
    let scratch = Scratch::outside_checkout();
    let run = |words: &[&str]| finish(scratch.orchestrate_without_checkout().args(words));
    let [none, hint] = ["no run record in the folder `results`", "\nhint: ./bin/orchestrate --all\n"];
    run(&["report"]).exits_with(2).assert_stderr(&[none, hint]);
    run(&["report", "--list"]).exits_with(0).assert_stdout(&[none, hint]);
    // Earlier versions wrote records into the data folder.
    let earlier = scratch.join("home/results");
    store(&earlier.join("x.jsonl"), "2026-01-02T03:04:05Z", "earlier");
    let hint = format!("\nhint: ./bin/orchestrate report --list --results {}\n", earlier.display());
    run(&["report"]).exits_with(2).assert_stderr(&[none, &hint]);
    let listed = run(&["report", "--list"]).exits_with(0);
    listed.assert_stdout(&[none, "report --list --results"]);
    let list = ["report", "--list", "--results", earlier.to_str().unwrap()];
    run(&list).exits_with(0).assert_stdout(&["x.jsonl"]);
}

#[test]
fn a_file_that_is_no_record_is_described_in_words() {
    let scratch = Scratch::new();
    let png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR";
    let of_file: [(&str, &[u8], &str); 6] = [
        ("empty", b"", "it is empty"),
        ("picture.png", png, "it is a binary file"),
        ("config.json", b"{\n  \"name\": 1\n}\n", "it is JSON with other content"),
        ("report.json", b"{\n  \"report_version\": 3,\n", "it is text, not lines of JSON"),
        ("notes.txt", b"measured on Monday\n", "it is text, not lines of JSON"),
        ("tail.jsonl", b"{\"entry\":\"end\"}\n", "its first line is not a header"),
    ];
    for (name, bytes, description) in of_file {
        std::fs::write(scratch.join(name), bytes).unwrap();
        let outcome = orchestrate(&scratch, &["report", name]).exits_with(5);
        let expected =
            format!("error: `{name}` is not a run record: {description}\nhint: orchestrate report --list\n");
        assert_eq!(outcome.stderr, expected);
    }
    // The JSON of a report is not its record.
    let record = root().join("tests/snapshots/record.jsonl");
    let report = orchestrate(&scratch, &["report", record.to_str().unwrap(), "--format", "json"]).stdout;
    std::fs::write(scratch.join("whole-report.json"), report).unwrap();
    let outcome = orchestrate(&scratch, &["report", "whole-report.json"]).exits_with(5);
    outcome.assert_stderr(&["it is a report in JSON, which is made from a record"]);
    let folder = orchestrate(&scratch, &["report", "."]).exits_with(5);
    folder.assert_stderr(&[
        "`.` is not a run record: it is a folder\nhint: orchestrate report --list --results .\n",
    ]);
    let missing = orchestrate(&scratch, &["report", "none.jsonl"]).exits_with(5);
    missing
        .assert_stderr(&["cannot open the run record `none.jsonl`: ", "\nhint: orchestrate report --list\n"]);
}

#[test]
fn a_record_compared_with_itself_says_so_in_every_format() {
    let scratch = Scratch::new();
    let [_, later] = write_two_records(&scratch);
    let copy = scratch.join("copy.jsonl");
    std::fs::copy(&later, &copy).unwrap();
    for format in ["table", "markdown", "json"] {
        let words = ["compare", later.to_str().unwrap(), copy.to_str().unwrap(), "--format", format];
        let outcome = orchestrate(&scratch, &words).exits_with(0);
        let text = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("both are the same record (later), so there is no difference"), "{text}");
        assert!(text.contains("orchestrate report --list"), "{text}");
        // A table has nothing else.
        assert!(format != "table" || outcome.stdout.lines().count() <= 2, "{text}");
    }
}

#[test]
fn a_run_that_every_engine_refuses_leaves_no_record() {
    let scratch = Scratch::new();
    // The engine finds the unknown option only in its `load`.
    let words = [&["-e", fake_engine().to_str().unwrap(), "--set", "no_such_option=2"], QUICK].concat();
    let outcome = orchestrate(&scratch, &words).exits_with(4);
    outcome.assert_stderr(&[
        "no record: nothing was measured, because no engine can run what the command line selects",
    ]);
    assert!(!outcome.stderr.contains("recorded in") && !outcome.stdout.contains("saved"), "{outcome:?}");
    assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new());
    // A failure while loading is a result.
    let failing = scratch.faulty("fails_in_load", &[]);
    let words = [&["-e", failing.to_str().unwrap()], QUICK].concat();
    orchestrate(&scratch, &words).exits_with(4).assert_stderr(&["recorded in results/"]);
    assert_eq!(files(&scratch.results()).len(), 1);
}

#[test]
fn a_program_that_is_no_engine_leaves_no_record() {
    let scratch = Scratch::new();
    let chat = scratch.script("chat", "echo 'I am a chat program'");
    let noisy = scratch.script("noisy", "while echo more; do :; done");
    for program in [Path::new("/bin/true"), &chat, &noisy] {
        let words = [&["-e", program.to_str().unwrap()], QUICK].concat();
        let outcome = orchestrate(&scratch, &words).exits_with(4);
        outcome.assert_stderr(&["no record: nothing was measured"]);
        outcome.assert_stdout(&["orchestrate check "]);
        assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new(), "{}", program.display());
    }
}

#[test]
fn a_refused_command_line_leaves_no_record() {
    let scratch = Scratch::new();
    for words in [
        &["-e", "no-such-engine"][..],
        &["-e", "sh", "-s", "no-such-scenario"],
        &["-e", "sh", "--threads", "0"],
        &["-e", "sh", "-m", "/no/such/model"],
        &["-e", "sh", "--reference", "no-such-engine"],
        &["-e", "sh", "--pairs", "--format", "csv"],
    ] {
        orchestrate(&scratch, words).exits_with(2);
        assert!(!scratch.results().exists(), "{words:?}");
    }
}

#[test]
fn an_engine_that_is_not_executable_is_refused_with_the_command_that_helps() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("engine"), "#!/bin/sh\n").unwrap();
    for words in [&["-e", "./engine"][..], &["check", "./engine"], &["request", "./engine", "decode"]] {
        let outcome = orchestrate(&scratch, words).exits_with(2);
        let expected =
            "error: cannot start the engine `./engine`: it is not executable\nhint: chmod +x ./engine\n";
        assert_eq!(outcome.stderr, expected, "{words:?}");
    }
    std::fs::write(scratch.join("notes"), "of text\n").unwrap();
    let outcome = orchestrate(&scratch, &["-e", "./notes"]).exits_with(2);
    outcome.assert_stderr(&["error: cannot start the engine `./notes`: it is not a program\nhint: "]);
    assert!(!scratch.results().exists());
}
