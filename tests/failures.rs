//! The failure matrix: for every way to go wrong that the fake engine knows, a run with it and a healthy engine beside it.
//! The run ends, the row says what went wrong and when, everything else is measured, and nothing is left running.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod support;

use std::path::Path;

use serde_json::Value;

use support::record::Record;
use support::{Outcome, Scratch, command, fake_engine, finish};

/// One block of the decode scenario: three warm-up requests, then two rounds, in each of which a request that is thrown away
/// comes before the sample, because the healthy engine beside it takes turns with this one, and because its warm-ups were
/// short: of three, a busy machine does not make most long.
const RUN: &[&str] = &["--scenario", "decode", "--iterations", "2", "--blocks", "1", "--json", "-"];
const HEALTHY: &str = "fake-engine";
/// The seventh request of a launch: its second sample.
const SECOND_SAMPLE: &[&str] = &["--at", "6"];

#[test]
fn every_fault_of_the_fake_engine_is_in_this_matrix() {
    let listed = finish(Scratch::new().marked(fake_engine()).arg("--list")).stdout;
    let faults = listed.lines().filter_map(|line| line.strip_prefix("--fault ")?.split_whitespace().next());
    let here = [include_str!("failures.rs"), include_str!("verify.rs"), include_str!("liars.rs")].concat();
    let missing: Vec<_> = faults.filter(|fault| !here.contains(&format!("\"{fault}\""))).collect();
    assert!(listed.contains("--fault exits_before_hello"), "{listed}");
    assert!(missing.is_empty(), "add a test to tests/failures.rs, verify.rs or liars.rs for {missing:?}");
}

#[test]
fn two_healthy_engines_are_measured_without_a_word_of_failure() {
    measured("chatter", &["--fault", ""]).without_warning();
}

// Before hello is answered.

#[test]
fn engine_that_exits_before_hello_is_reported_with_its_stderr() {
    fails("exits_before_hello", &[], "exited", "hello", "ended with exit code 3 before it answered")
        .says("libfake.so.4")
        .kept(0);
}

#[test]
fn engine_that_never_answers_is_driven_as_a_minimal_one_and_then_times_out() {
    fails("never_answers", &[], "timeout", "warm-up 1", "no answer within 10 s")
        .says("hangs before hello")
        .kept(0);
}

#[test]
fn engine_of_another_protocol_version_is_told_apart_from_a_broken_one() {
    fails("wrong_version", &[], "version", "hello", "speaks protocol 999, this orchestrator speaks 1")
        .kept(0);
}

#[test]
fn engine_that_says_what_it_misses_is_a_row_with_its_hint() {
    let run =
        fails("says_unavailable", &[], "unavailable", "hello", "the library `libfake.so.4` is not installed");
    run.kept(0);
    assert_eq!(run.failure()["hint"], "apt-get install libfake4");
}

#[test]
fn engine_that_answers_garbage_is_shown_the_start_of_its_line() {
    fails("garbage", &[], "protocol", "hello", "in the line `{\"type\":\"hel").kept(0);
}

#[test]
fn engine_that_hangs_in_hello_is_driven_with_generate_alone() {
    measured("hangs_in_hello", &[]);
}

#[test]
fn engine_that_knows_generate_alone_is_measured() {
    measured("says_bad_request_to_hello", &[]).without_warning();
}

// In load.

#[test]
fn engine_that_hangs_in_load_times_out_with_a_hint_to_wait_longer() {
    let run = fails("hangs_in_load", &[], "timeout", "load", "no answer within 10 s");
    run.says("hangs in load").kept(0);
    assert!(run.failure()["hint"].as_str().unwrap().starts_with("--timeout "));
}

#[test]
fn engine_that_exits_in_load_is_reported_with_its_stderr() {
    fails("exits_in_load", &[], "exited", "load", "exit code 3").says("shard 2 of 3 is missing").kept(0);
}

#[test]
fn engine_that_cannot_load_says_so_itself() {
    fails("fails_in_load", &[], "model", "load", "`model.safetensors`: header ends after 12 bytes").kept(0);
}

#[test]
fn progress_moves_the_deadline_of_a_slow_load() {
    measured("slow_progress", &["--load-ns", "12000000000"]).without_warning();
}

// In the middle of a run.

#[test]
fn engine_that_hangs_in_the_middle_keeps_the_samples_that_it_gave() {
    fails("hangs_in_generate", SECOND_SAMPLE, "timeout", "sample 2", "no answer within 10 s")
        .says("hangs in generate")
        .kept(1);
}

#[test]
fn engine_that_exits_at_a_sample_is_named_with_its_exit_code() {
    let settings = [SECOND_SAMPLE, &["--exit-code", "41"]].concat();
    fails("exits_at_sample", &settings, "exited", "sample 2", "exit code 41")
        .says("assertion `tokens > 0` failed")
        .kept(1);
}

#[test]
fn engine_that_a_signal_ends_is_named_with_the_signal() {
    let settings = [SECOND_SAMPLE, &["--signal", "KILL"]].concat();
    fails("killed_at_sample", &settings, "exited", "sample 2", "signal 9 (SIGKILL)").kept(1);
    fails("killed_at_sample", SECOND_SAMPLE, "exited", "sample 2", "signal 11 (SIGSEGV)").kept(1);
}

#[test]
fn engine_that_aborts_is_named_with_the_signal_and_its_last_words() {
    fails("aborts_at_sample", SECOND_SAMPLE, "exited", "sample 2", "signal 6 (SIGABRT)")
        .says("heap corrupted")
        .kept(1);
}

#[test]
fn half_a_line_and_the_end_is_an_end_with_an_exit_code() {
    fails("half_line_then_exits", SECOND_SAMPLE, "exited", "sample 2", "exit code 3")
        .says("broken off")
        .kept(1);
}

#[test]
fn half_a_line_and_silence_is_a_timeout() {
    fails("half_line_then_hangs", SECOND_SAMPLE, "timeout", "sample 2", "no answer within 10 s").kept(1);
}

#[test]
fn engine_that_closes_stdout_and_lives_on_does_not_hold_up_the_run() {
    // It is given time to end after its stdout; the deadline is not what ends the waiting.
    let run = run("closes_stdout", SECOND_SAMPLE, &[]);
    run.agree("protocol", "sample 2").kept(1);
    assert_eq!(run.failure()["message"], "closed its stdout and went on running");
}

#[test]
fn engine_out_of_memory_says_so_itself() {
    fails("out_of_memory", SECOND_SAMPLE, "out_of_memory", "sample 2", "tried to allocate 2.00 GiB").kept(1);
}

// Noise.

#[test]
fn chatter_on_stdout_is_skipped() {
    measured("chatter", &[]).without_warning();
}

#[test]
fn a_flood_of_chatter_is_no_chatter() {
    fails(
        "chatter_flood",
        SECOND_SAMPLE,
        "protocol",
        "sample 2",
        "more than 1000 lines on stdout that are no JSON",
    )
    .kept(1);
}

#[test]
fn a_flood_on_stderr_disturbs_nobody() {
    measured("stderr_flood", &["--amount", "20000"]).without_warning();
}

#[test]
fn an_engine_whose_clock_leaves_time_out_is_named_in_a_warning() {
    // Computed from the record, as all that an engine is doubted for.
    let report = measured("hides_time", &[]).report;
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("hides_time: its clock leaves out 1"), "{warnings}");
    let doubted = report["cases"].as_array().unwrap().iter().filter(|case| case["doubted"] == true);
    assert_eq!(doubted.map(|case| &case["engine"]["label"]).collect::<Vec<_>>(), ["hides_time"]);
}

#[test]
fn a_line_beyond_the_bound_is_refused_with_its_size() {
    fails("huge_line", SECOND_SAMPLE, "protocol", "sample 2", "a line of 200000").kept(1);
}

// Answers to something else.

#[test]
fn an_answer_that_comes_twice_is_refused_whenever_its_copy_arrives() {
    let run = run("duplicate_answer", &[], &[]);
    let (kind, when) = (&run.failure()["kind"], run.failure()["when"].as_str().unwrap());
    assert_eq!(kind, "protocol", "{}", run.failure());
    // With its original, or as the answer to the next request.
    let whens = ["warm-up 1", "warm-up 2"];
    assert!(whens.contains(&when), "{}", run.failure());
    run.agree("protocol", when).kept(0);
}

#[test]
fn an_answer_to_somebody_else_is_refused() {
    fails("wrong_id", SECOND_SAMPLE, "protocol", "sample 2", "`generated` with id `999999`").kept(1);
}

// Wrong work.

#[test]
fn an_engine_that_gives_fewer_tokens_is_no_fast_engine() {
    fails("wrong_token_count", SECOND_SAMPLE, "wrong_output", "sample 2", "63 tokens where 64 were asked")
        .kept(1);
}

#[test]
fn an_engine_that_stops_at_eos_although_it_was_told_to_go_on_is_no_fast_engine() {
    fails("eos_early", SECOND_SAMPLE, "wrong_output", "sample 2", "33 tokens where 64 were asked").kept(1);
}

#[test]
fn eos_in_the_middle_is_an_ordinary_token_where_eos_is_ignored() {
    measured("eos_in_the_middle", &[]).without_warning();
}

#[test]
fn an_engine_that_cannot_ignore_eos_is_not_asked_to() {
    let settings = ["--capabilities", r#"{"ignore_eos":false}"#];
    fails("eos_in_the_middle", &settings, "unsupported", "load", "needs `ignore_eos`").kept(0);
}

#[test]
fn a_prompt_of_another_length_is_refused() {
    fails(
        "wrong_prompt_tokens",
        SECOND_SAMPLE,
        "wrong_output",
        "sample 2",
        "`prompt_tokens` 33 where 32 ids were sent",
    )
    .kept(1);
}

#[test]
fn a_token_id_outside_the_vocabulary_is_refused() {
    fails("id_beyond_vocabulary", SECOND_SAMPLE, "wrong_output", "sample 2", "token id 1000 lies outside")
        .kept(1);
}

#[test]
fn an_engine_that_claims_to_be_deterministic_is_held_to_it() {
    let run = run("nondeterministic", &[], &["--warmup", "2"]);
    run.agree("wrong_output", "warm-up 2").kept(0);
    assert!(run.failure()["message"].as_str().unwrap().contains("other ids the second time"));
}

#[test]
fn an_engine_that_makes_no_such_claim_may_vary() {
    measured("nondeterministic", &["--deterministic", "false"]).without_warning();
}

#[test]
fn streamed_ids_must_be_those_of_the_answer() {
    fails("wrong_streamed_ids", &[], "protocol", "warm-up 2", "the streamed ids are not the final ids")
        .kept(0);
}

#[test]
fn a_fault_in_what_a_run_does_not_ask_for_does_it_no_harm() {
    measured("wrong_scores", &[]).without_warning();
}

// Wrong facts.

#[test]
fn a_missing_time_is_refused() {
    fails("missing_time", SECOND_SAMPLE, "protocol", "sample 2", "token_ns").kept(1);
}

#[test]
fn times_that_run_backwards_are_refused() {
    fails(
        "times_backwards",
        SECOND_SAMPLE,
        "protocol",
        "sample 2",
        "`token_ns[63]` 999 lies outside its place",
    )
    .kept(1);
}

#[test]
fn times_from_the_future_are_refused() {
    fails("times_in_the_future", SECOND_SAMPLE, "protocol", "sample 2", "lies after the answer arrived")
        .kept(1);
}

#[test]
fn facts_that_are_no_numbers_negative_or_absent_are_refused_by_name() {
    fails("nan_fact", SECOND_SAMPLE, "protocol", "sample 2", "end_ns").kept(1);
    fails("negative_fact", SECOND_SAMPLE, "protocol", "sample 2", "end_ns").kept(1);
    fails("missing_fact", SECOND_SAMPLE, "protocol", "sample 2", "end_ns").kept(1);
}

// At the end.

#[test]
fn engine_that_ignores_shutdown_is_measured_and_ended() {
    measured("ignores_shutdown", &[]).with_warning("did not shut down as the protocol asks");
}

#[test]
fn engine_that_ignores_sigterm_is_measured_and_ended() {
    measured("ignores_sigterm", &[]).with_warning("did not shut down as the protocol asks");
}

#[test]
fn engine_that_leaves_a_grandchild_in_another_session_is_measured_and_the_grandchild_ended() {
    measured("leaves_grandchild", &[]).with_warning("behind");
}

#[test]
fn a_grandchild_that_holds_stdout_open_does_not_hold_up_the_run() {
    measured("grandchild_holds_stdout", &[]).with_warning("behind");
    fails("grandchild_holds_stdout,exits_at_sample", SECOND_SAMPLE, "exited", "sample 2", "exit code 3")
        .kept(1);
}

// Engines that are no programs.

#[test]
fn a_path_where_nothing_is_makes_no_sense_as_an_engine() {
    let scratch = Scratch::new();
    let outcome = start(&scratch, &scratch.join("no-such-engine"), &[]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stderr.contains("no engine at `") && outcome.stderr.contains("no-such-engine"),
        "{outcome:?}"
    );
    assert_eq!(support::record::files(&scratch.results()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_file_that_cannot_be_executed_is_a_row() {
    let scratch = Scratch::new();
    let path = scratch.join("notes.txt");
    std::fs::write(&path, "no program\n").unwrap();
    let outcome = start(&scratch, &path, &[]);
    Run::of(scratch, "notes.txt", outcome).agree("start", "start").kept(0);
}

#[test]
fn a_folder_is_no_engine_and_nothing_runs() {
    let scratch = Scratch::new();
    let path = scratch.join("folder");
    std::fs::create_dir(&path).unwrap();
    let outcome = start(&scratch, &path, &[]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("is a folder, an engine is a program"), "{}", outcome.stderr);
}

#[test]
fn an_engine_whose_interpreter_is_missing_is_a_row() {
    let scratch = Scratch::new();
    let path = scratch.script("orphan", "");
    command("sed").args(["-i", "1s|.*|#!/no/such/interpreter|"]).arg(&path).status().unwrap();
    let outcome = start(&scratch, &path, &[]);
    Run::of(scratch, "orphan", outcome).agree("start", "start").kept(0);
}

#[test]
fn an_engine_whose_shared_library_is_missing_is_a_row_that_names_the_library() {
    let scratch = Scratch::new();
    let source = scratch.join("source.c");
    std::fs::write(&source, "int gone(void) { return 0; }\nint main(void) { return gone(); }\n").unwrap();
    let (library, engine) = (scratch.join("libgone.so.7"), scratch.join("unlinked"));
    let compile = |arguments: &[&str]| {
        let status = command("cc").args(arguments).arg(&source).status().unwrap();
        assert!(status.success(), "a C compiler is needed: whatever links Rust has one");
    };
    let out = library.to_str().unwrap();
    compile(&["-shared", "-fPIC", "-Dmain=unused", "-Wl,-soname,libgone.so.7", "-o", out]);
    std::fs::write(&source, "int gone(void);\nint main(void) { return gone(); }\n").unwrap();
    compile(&["-o", engine.to_str().unwrap(), "-Wl,--no-as-needed", out]);
    std::fs::remove_file(&library).unwrap();
    let outcome = start(&scratch, &engine, &[]);
    let run = Run::of(scratch, "unlinked", outcome);
    run.agree("start", "hello").says("libgone.so.7").kept(0);
    assert_eq!(run.failure()["message"], "cannot start: `libgone.so.7` is missing");
    let hint = "`find / -name libgone.so.7`; its folder belongs on LD_LIBRARY_PATH";
    assert_eq!(run.failure()["hint"], hint);
}

/// Those that answer nothing are waited for until the deadline, so that it is short; but not so short that a busy machine keeps
/// the healthy engine beside them from answering in time. All others have the usual ones.
const SILENT: &[&str] =
    &["never_answers", "hangs_in_load", "hangs_in_generate", "half_line_then_hangs", "slow_progress"];

fn deadline(fault: &str) -> &[&str] {
    if SILENT.contains(&fault) { &["--timeout", "10"] } else { &[] }
}

/// A run that failed as it should. `at` and the like are settings of the fake engine.
fn fails(fault: &str, settings: &[&str], kind: &str, when: &str, message: &str) -> Run {
    let run = run(fault, settings, deadline(fault));
    run.agree(kind, when);
    let said = run.failure()["message"].as_str().unwrap();
    assert!(said.contains(message), "`{said}` does not say `{message}`");
    run
}

/// A run in which the engine is measured in spite of its fault.
fn measured(fault: &str, settings: &[&str]) -> Run {
    let run = run(fault, settings, deadline(fault));
    assert_eq!(run.outcome.code, Some(0), "{}", run.outcome.stderr);
    assert_eq!(run.record.failures_of(&run.label), Vec::<&Value>::new());
    assert_eq!(run.case_of(&run.label)["samples"], 2, "{}", run.report);
    run.kept(2);
    run
}

fn run(fault: &str, settings: &[&str], options: &[&str]) -> Run {
    let scratch = Scratch::new();
    let engine = scratch.faulty(fault, settings);
    let outcome = start(&scratch, &engine, options);
    Run::of(scratch, fault, outcome)
}

fn start(scratch: &Scratch, engine: &Path, options: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate();
    if !options.contains(&"--warmup") {
        command.args(["--warmup", "3"]);
    }
    command.arg("-e").arg(engine).arg("-e").arg(fake_engine()).args(RUN).args(options);
    finish(command.arg("--results").arg(scratch.results()))
}

/// A run that has ended, with the healthy engine's part in it already found good.
struct Run {
    outcome: Outcome,
    report: Value,
    record: Record,
    label: String,
}

impl Run {
    fn of(scratch: Scratch, label: &str, outcome: Outcome) -> Self {
        scratch.assert_nothing_lives();
        let report = serde_json::from_str(&outcome.stdout);
        let report =
            report.unwrap_or_else(|error| panic!("{error}: stdout is no JSON document\n{outcome:?}"));
        let record = Record::only_one_in(&scratch.results());
        let run = Self { report, record, label: label.into(), outcome };
        assert!(!run.outcome.stderr.contains("panicked"), "{}", run.outcome.stderr);
        assert_eq!(run.record.end(), Some("finished"));
        // Whatever befell the other one, this engine was measured in full.
        assert_eq!(run.case_of(HEALTHY)["samples"], 2, "{}", run.report);
        assert_eq!(run.case_of(HEALTHY)["failure"], Value::Null, "{}", run.report);
        assert_eq!(run.record.samples_of(HEALTHY).len(), 2);
        assert_eq!(run.record.failures_of(HEALTHY), Vec::<&Value>::new());
        run
    }

    fn case_of(&self, label: &str) -> &Value {
        let cases = self.report["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["engine"]["label"] == label);
        case.unwrap_or_else(|| panic!("no row of `{label}` in {}", self.report))
    }

    /// What the report says went wrong: with one case, or with the engine as a whole.
    fn failure(&self) -> &Value {
        let of =
            |entry: &&Value| entry["engine"]["label"] == self.label.as_str() && !entry["failure"].is_null();
        let rows = ["failed", "cases"].into_iter().flat_map(|list| self.report[list].as_array().unwrap());
        rows.clone()
            .find(of)
            .map(|entry| &entry["failure"])
            .unwrap_or_else(|| panic!("no failure in {}", self.report))
    }

    /// Exit code, report and record say the same failure.
    fn agree(&self, kind: &str, when: &str) -> &Self {
        assert_eq!(self.outcome.code, Some(4), "{}", self.outcome.stderr);
        let [recorded] = self.record.failures_of(&self.label)[..] else {
            panic!("expected one failure in {:?}", self.record)
        };
        for failure in [recorded, self.failure()] {
            assert_eq!((&failure["kind"], &failure["when"]), (&kind.into(), &when.into()), "{failure}");
        }
        // A report shows no control characters; the record keeps them.
        let recorded = recorded["message"].as_str().unwrap().split(char::is_control).collect::<Vec<_>>();
        let reported = self.failure()["message"].as_str().unwrap();
        assert!(
            recorded.iter().all(|part| reported.contains(part.trim())),
            "{recorded:?} is not {reported:?}"
        );
        self
    }

    /// The end of the engine's stderr is in the report and in the record.
    fn says(&self, words: &str) -> &Self {
        for failure in [self.record.failures_of(&self.label)[0], self.failure()] {
            let stderr = failure["stderr"].as_array().unwrap();
            assert!(stderr.iter().any(|line| line.as_str().unwrap().contains(words)), "{failure}");
        }
        self
    }

    /// The samples before the failure are in the record.
    fn kept(&self, samples: usize) -> &Self {
        assert_eq!(self.record.samples_of(&self.label).len(), samples);
        self
    }

    fn with_warning(&self, words: &str) -> &Self {
        let warnings = self.record.warnings_of(&self.label);
        assert!(warnings.iter().any(|warning| warning.contains(words)), "no `{words}` in {warnings:?}");
        assert!(self.report["warnings"].to_string().contains(words), "{}", self.report);
        self
    }

    fn without_warning(&self) -> &Self {
        assert_eq!(self.record.warnings_of(&self.label), Vec::<&str>::new());
        self
    }
}
