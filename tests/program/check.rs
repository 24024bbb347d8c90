//! `orchestrate check`: the conformance checks on engines with known faults.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use crate::support::run::run_program_with_healthy;
use crate::support::{
    Outcome, Scratch, command, fake_engine, finish, root, without_line_breaks, write_program,
};

/// Faults of the fake engine, each with the check that must find it.
const FAULTS: &[(&str, &str)] = &[
    ("exits_before_hello", "hello"),
    ("wrong_version", "hello"),
    ("garbage", "hello"),
    ("unsupported_option", "unknown-option"),
    ("accepts_large_integers", "large-integers"),
    ("endless_line", "plain-line"),
    ("answers_broken_json", "half-json"),
    ("stray_lines", "stdout-clean"),
    ("exits_in_load", "load"),
    ("half_line_then_exits", "plain-line"),
    ("closes_stdout", "plain-line"),
    ("duplicate_answer", "in-order"),
    ("wrong_id", "id"),
    ("wrong_token_count", "length"),
    ("wrong_prompt_tokens", "prompt-ids"),
    ("id_beyond_vocabulary", "prompt-ids"),
    ("missing_time", "clock"),
    ("times_backwards", "clock"),
    ("times_in_the_future", "clock"),
    ("nan_end_ns", "clock"),
    ("wrong_streamed_ids", "stream"),
    ("nondeterministic", "deterministic"),
    ("ends_at_early_eos", "ignore-eos"),
    ("continues_after_eos", "length"),
    ("too_many_tokens", "length"),
    ("first_token_at_start", "clock"),
    ("streams_unrequested", "default-length"),
    ("unrequested_drafts", "plain-line"),
    ("uncounted_drafts", "speculation"),
    ("uses_prefixes_always", "prefix-cache"),
    ("streams_other_times", "stream"),
    ("more_cached_than_sent", "plain-line"),
    ("wrong_scores", "score"),
    ("leaves_grandchild", "shutdown"),
];

#[test]
fn the_smallest_engine_passes_with_absent_features_listed() {
    let outcome = check(&Scratch::new(), &root().join("tests/smallest-engine.py"), &[]).exits_with(0);
    assert!(failed_checks(&outcome).is_empty(), "{}", outcome.stdout);
    outcome.assert_stdout(&["\n  passed  plain-line", "\n  absent  "]);
}

#[test]
fn every_fault_is_found_by_its_check() {
    // The fake engine has no model, so it fails the checks of text even without a fault.
    let without_fault = failed_checks(&check(&Scratch::new(), fake_engine(), &[]));
    for (fault, check_name) in FAULTS {
        assert!(!without_fault.contains(*check_name), "`{check_name}` finds a fault where there is none");
        assert_found(fault, check_name, &[]);
    }
    assert!(!without_fault.contains("end-of-stdin"), "{without_fault:?}");
}

// Each of these tests waits for a deadline, in parallel with the others. The deadline is short, but long enough for correct
// answers on a busy machine.

#[test]
fn check_reports_an_engine_that_does_not_answer_load() {
    assert_found("hangs_in_load", "load", &["--timeout", "10"]);
}

#[test]
fn check_reports_an_engine_that_does_not_answer_generate() {
    assert_found("hangs_in_generate", "plain-line", &["--timeout", "10"]);
}

#[test]
fn check_reports_an_engine_that_sends_progress_and_never_answers() {
    assert_found("progress_without_end", "plain-line", &["--timeout", "10"]);
}

#[test]
fn check_reports_an_engine_that_does_not_exit() {
    assert_found("ignores_shutdown", "shutdown", &[]);
    assert_found("ignores_sigterm", "end-of-stdin", &[]);
}

fn assert_found(fault: &str, check_name: &str, options: &[&str]) {
    let scratch = Scratch::new();
    let engine = scratch.faulty(fault, &[]);
    let outcome = check(&scratch, &engine, options).exits_with(4);
    assert!(
        failed_checks(&outcome).contains(check_name),
        "`{check_name}` did not find `{fault}`\n{}",
        outcome.stdout
    );
    assert!(!outcome.stderr.contains("panicked"), "{fault}: {}", outcome.stderr);
    scratch.assert_no_processes_left();
}

#[test]
fn a_missing_interpreter_is_named_with_a_hint() {
    let scratch = Scratch::new();
    let engine = scratch.join("bad");
    write_program(&engine, "#!/no/such/python3 -u\nprint(1)\n");
    let outcome = check(&scratch, &engine, &[]).exits_with(4);
    let text = without_line_breaks(&outcome.stdout);
    assert!(text.contains("its first line names `/no/such/python3`, which does not exist"), "{text}");
    assert!(text.contains("install `/no/such/python3`, or name another interpreter"), "{text}");
}

#[test]
fn an_interpreter_that_cannot_be_run_is_named_with_its_own_hint() {
    let scratch = Scratch::new();
    let (engine, interpreter) = (scratch.join("bad"), scratch.join("python9"));
    std::fs::write(&interpreter, "#!/bin/sh\n").unwrap();
    let text_of = |first_line: &str| {
        write_program(&engine, &format!("#!{first_line}\nprint(1)\n"));
        without_line_breaks(&check(&scratch, &engine, &[]).exits_with(4).stdout)
    };
    let path = interpreter.display().to_string();
    let text = text_of(&path);
    assert!(text.contains(&format!("its first line names `{path}`, which is not executable")), "{text}");
    assert!(text.contains(&format!("chmod +x {path}")), "{text}");
    assert!(!text.contains(&format!("chmod +x {}", engine.display())), "{text}");
    let text = text_of(&scratch.path.display().to_string());
    assert!(text.contains("which is a folder"), "{text}");
    // `env` itself is started, and reports the error.
    write_program(&engine, "#!/usr/bin/env no-such-python9\nprint(1)\n");
    let text = without_line_breaks(&run_program_with_healthy(&scratch, &engine).stderr);
    assert!(text.contains("its first line names `no-such-python9`, which is not in PATH"), "{text}");
}

#[test]
fn a_fault_is_printed_with_the_line_sent_and_the_line_received() {
    let scratch = Scratch::new();
    let engine = scratch.faulty("wrong_scores", &[]);
    let outcome = check(&scratch, &engine, &[]);
    let entry = outcome.stdout.split("\n  WRONG   ").find(|entry| entry.starts_with("score ")).unwrap();
    assert!(entry.contains("sent      {") && entry.contains("received  {"), "{entry}");
    outcome.assert_stdout(&["`wrong_scores` violates protocol 1: "]);
}

#[test]
fn a_program_that_answers_no_request_is_reported_once_as_no_engine() {
    let scratch = Scratch::new();
    let printing = scratch.script("chatters", "while :; do echo y; done");
    for program in [Path::new("/bin/cat"), Path::new("/bin/true"), Path::new("/bin/sh"), &printing] {
        let outcome = check(&scratch, program, &["--timeout", "30"]);
        let page = &outcome.stdout;
        assert_eq!(outcome.code, Some(4), "{page}");
        assert_eq!(failed_checks(&outcome), BTreeSet::from(["hello".to_string()]), "{page}");
        assert_eq!(page.matches("no engine: gave no valid answer").count(), 1, "{page}");
        assert!(page.contains("is not an engine: it gave no valid answer\n"), "{page}");
        assert!(!page.contains("smallest") && page.lines().count() < 16, "{page}");
        scratch.assert_no_processes_left();
    }
    let outcome = check(&scratch, &printing, &[]);
    outcome.assert_stdout(&["more than 1000 lines on stdout"]);
}

#[test]
fn an_engine_without_hello_counts_as_minimal_if_it_answers_generate() {
    let scratch = Scratch::new();
    let engine = scratch.faulty("hangs_in_hello", &[]);
    let outcome = check(&scratch, &engine, &[]);
    outcome.assert_stdout(&["\n  passed  plain-line", "\n  absent  hello "]);
}

#[test]
fn an_engine_that_answers_broken_json_with_generated_is_wrong_also_without_hello() {
    let scratch = Scratch::new();
    let minimal = scratch.faulty("says_bad_request_to_hello", &[]);
    assert!(failed_checks(&check(&scratch, &minimal, &[]).exits_with(0)).is_empty());
    let inventing = scratch.faulty("says_bad_request_to_hello,answers_broken_json", &[]);
    let outcome = check(&scratch, &inventing, &[]).exits_with(4);
    let broken = ["no-json", "half-json", "empty-line", "no-object", "noise", "endless-line"];
    assert_eq!(failed_checks(&outcome), broken.map(String::from).into(), "{}", outcome.stdout);
    outcome.assert_stdout(&["answered `generated`, as if the line were valid"]);
}

#[test]
fn the_first_of_several_errors_is_the_answer_and_an_unclaimed_feature_is_refused() {
    let scratch = Scratch::new();
    let without = r#"--capabilities '{"prompt":false,"stream":false,"sampling":false,"batch":4096}'"#;
    let outcome = check(&scratch, &scratch.engine("obeys", without), &[]);
    let failed = failed_checks(&outcome);
    assert!(!failed.contains("first-error") && !failed.contains("not-claimed"), "{}", outcome.stdout);
    outcome.assert_stdout(&["\n  passed  first-error", "\n  passed  not-claimed", "not claimed: `prompt`"]);
    for (fault, check_name) in
        [("ignores_capabilities", "not-claimed"), ("checks_context_first", "first-error")]
    {
        let outcome = check(&scratch, &scratch.engine(fault, &format!("--fault {fault} {without}")), &[]);
        assert!(failed_checks(&outcome).contains(check_name), "{fault}: {}", outcome.stdout);
    }
}

#[test]
fn settings_that_an_engine_does_not_report_are_absent() {
    let scratch = Scratch::new();
    for (loaded, absent) in [
        (r#"{"device":null,"threads":null}"#, "`device` and `threads` are not reported, so they are"),
        (r#"{"threads":null}"#, "`threads` is not reported, so it is not checked\n"),
        (r#"{"device":null}"#, "`device` is not reported, so it is not checked\n"),
    ] {
        let engine = scratch.engine("quiet", &format!("--loaded '{loaded}'"));
        check(&scratch, &engine, &[]).assert_stdout(&[&format!("\n  absent  in-effect        {absent}")]);
    }
}

#[test]
fn facts_that_contradict_the_load_are_wrong() {
    let scratch = Scratch::new();
    for (facts, wrong) in [
        (r#"{"layers":3}"#, "`facts` has 3 as `layers`, and `loaded` has 2\n"),
        (r#"{"eos_ids":null}"#, "`facts` has no `eos_ids`, and `loaded` has [2]\n"),
    ] {
        let engine = scratch.engine("other", &format!("--facts '{facts}'"));
        check(&scratch, &engine, &[]).assert_stdout(&[&format!("\n  WRONG   facts            {wrong}")]);
    }
}

#[test]
fn an_engine_in_javascript_without_a_kit_passes() {
    let node = command("node").arg("--version").output();
    if !node.is_ok_and(|node| node.status.success()) {
        // The test harness would hide the output of a macro, so this writes to stderr itself.
        let skipped = "skipped: an_engine_in_javascript_without_a_kit_passes: no `node` on PATH\n";
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
        return;
    }
    let scratch = Scratch::new();
    let outcome = check(&scratch, &root().join("tests/node-engine.js"), &[]).exits_with(0);
    assert!(failed_checks(&outcome).is_empty(), "{}", outcome.stdout);
    // It has every feature but text, drafts, a prefix cache and sizes in bytes.
    outcome.assert_stdout(&[
        "\n  passed  score-greedy",
        "\n  passed  cancel ",
        "\n  passed  overlap ",
        "\n  passed  sampling ",
    ]);
    let is_left_out = |line: &&str| {
        [
            "not claimed: `prompt",
            "not claimed: `speculation`",
            "not claimed: `prefix_cache_toggle`",
            "main-facts",
        ]
        .iter()
        .any(|it| line.contains(it))
    };
    let absent: Vec<&str> = outcome.stdout.lines().filter(|line| line.starts_with("  absent")).collect();
    assert!(absent.iter().all(is_left_out), "{absent:?}");
    scratch.assert_no_processes_left();
}

#[test]
fn an_engine_that_no_run_can_verify_gets_the_next_step() {
    let scratch = Scratch::new();
    let hint = "\nUNVERIFIED in every run, with any verifier; hint: implement `score` and `prompt_ids`\n";
    let partial = scratch.engine("partial", r#"--capabilities '{"prompt_ids":false}'"#);
    assert!(check(&scratch, &partial, &[]).stdout.ends_with(hint));
    let smallest = root().join("tests/smallest-engine.py");
    assert!(check(&scratch, &smallest, &[]).stdout.ends_with(hint));
    let complete = r#"--capabilities '{"score":true,"prompt_ids":true}'"#;
    // The verifier checks the tokens of an engine without scores.
    for capabilities in [complete, r#"--capabilities '{"score":false}'"#] {
        let outcome = check(&scratch, &scratch.engine("complete", capabilities), &[]);
        assert!(!outcome.stdout.contains("UNVERIFIED"), "{}", outcome.stdout);
    }
}

#[test]
fn a_program_that_cannot_start_is_reported_in_a_few_lines() {
    let scratch = Scratch::new();
    let program = scratch.join("no-program");
    write_program(&program, "text without an interpreter line");
    let outcome = check(&scratch, &program, &[]).exits_with(4);
    outcome.assert_stdout(&["cannot be started: "]);
    assert_eq!(outcome.stdout.matches("skipped").count(), 2, "{}", outcome.stdout);
    assert!(outcome.stdout.lines().count() < 14, "{}", outcome.stdout);
}

#[test]
fn a_program_that_answers_in_another_form_is_reported_with_its_words() {
    let scratch = Scratch::new();
    let answers = "echo note >&2; while read line; do echo ANSWER 42; done";
    let engine = scratch.script("answers", answers);
    let outcome = check(&scratch, &engine, &["--timeout", "1"]).exits_with(4);
    let shown = without_line_breaks(&outcome.stdout);
    for part in ["what it wrote on stdout is not a JSON object", "ANSWER 42", "note"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_program_that_prints_text_and_ends_is_reported_with_its_text() {
    let scratch = Scratch::new();
    let outcome = check(&scratch, &scratch.script("prints", "echo usage: prints FILE"), &[]).exits_with(4);
    let shown = without_line_breaks(&outcome.stdout);
    for part in ["ended with exit code 0 before it answered; what it wrote", "received usage: prints FILE"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("to `generate`"), "a program that prints text gets one request: {shown}");
}

#[test]
fn more_than_a_thousand_stray_lines_are_wrong_and_checks_continue() {
    let scratch = Scratch::new();
    let outcome =
        check(&scratch, &scratch.faulty("many_stray_lines", &["--amount", "1001"]), &["--timeout", "30"])
            .exits_with(4);
    assert!(failed_checks(&outcome).contains("plain-line"), "{}", outcome.stdout);
    outcome.assert_stdout(&["\n  passed  hello ", "more than 1000 lines on stdout"]);
}

#[test]
fn an_unknown_engine_is_refused() {
    let outcome = check(&Scratch::new(), Path::new("./no/such/engine"), &[]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{outcome:?}");
    outcome.assert_stderr(&["no engine at `./no/such/engine`"]);
}

fn check(scratch: &Scratch, engine: &Path, options: &[&str]) -> Outcome {
    finish(scratch.orchestrate().arg("check").arg(engine).args(options).current_dir(root()))
}

fn failed_checks(outcome: &Outcome) -> BTreeSet<String> {
    let entries = outcome.stdout.lines().filter_map(|line| line.strip_prefix("  WRONG   "));
    entries.map(|entry| entry.split_whitespace().next().unwrap().to_string()).collect()
}
