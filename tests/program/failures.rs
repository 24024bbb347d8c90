//! The failure matrix: for every fault of the fake engine, a run with a healthy engine beside it. The run ends, the row
//! names the fault and its time, everything else is measured, and no process is left. Here are programs that exit, hang,
//! make noise or are no engines. Wrong answers are in `failures_answers.rs`.

use crate::support::failures::{Run, SECOND_SAMPLE, fails, measured, run, start};
use crate::support::record::Record;
use crate::support::{Outcome, Scratch, command, fake_engine, finish};

#[test]
fn every_fault_of_the_fake_engine_is_in_this_matrix() {
    let listed = finish(Scratch::new().marked(fake_engine()).arg("--list")).stdout;
    let faults = listed.lines().filter_map(|line| line.strip_prefix("--fault ")?.split_whitespace().next());
    let here = [
        include_str!("failures.rs"),
        include_str!("failures_answers.rs"),
        include_str!("proof.rs"),
        include_str!("verify.rs"),
        include_str!("../machine/liars.rs"),
    ]
    .concat();
    let missing: Vec<_> = faults.filter(|fault| !here.contains(&format!("\"{fault}\""))).collect();
    assert!(listed.contains("--fault exits_before_hello"), "{listed}");
    assert!(
        missing.is_empty(),
        "add a test to tests/program/failures.rs, failures_answers.rs, proof.rs, verify.rs or tests/machine/liars.rs for {missing:?}"
    );
}

#[test]
fn two_healthy_engines_are_measured_without_failures() {
    measured("chatter", &["--fault", ""]).without_warning();
}

// Before the answer to hello.

#[test]
fn engine_that_exits_before_hello_is_reported_with_its_stderr() {
    fails("exits_before_hello", &[], "exited", "hello", "ended with exit code 3 before it answered")
        .says("libfake.so.4")
        .kept(0);
}

#[test]
fn engine_that_never_answers_is_driven_with_generate_alone_and_times_out() {
    fails("never_answers", &[], "timeout", "warm-up 1", "no answer within 10 s")
        .says("hangs before hello")
        .kept(0);
}

#[test]
fn engine_of_another_protocol_version_fails_with_kind_version() {
    fails("wrong_version", &[], "version", "hello", "speaks protocol 999, this orchestrator speaks 1")
        .kept(0);
}

#[test]
fn an_unavailable_engine_is_a_row_with_the_engines_own_hint() {
    let run =
        fails("says_unavailable", &[], "unavailable", "hello", "the library `libfake.so.4` is not installed");
    run.kept(0);
    assert_eq!(run.failure()["hint"], "apt-get install libfake4");
}

#[test]
fn engine_that_answers_garbage_fails_with_the_start_of_its_line() {
    fails("garbage", &[], "protocol", "hello", "in the line `{\"type\":\"hel").kept(0);
}

#[test]
fn engine_that_hangs_in_hello_is_driven_with_generate_alone() {
    measured("hangs_in_hello", &[]).with_warning("in two launches: only `generate` is used");
}

#[test]
fn engine_that_misses_one_hello_is_started_again_and_uses_the_whole_protocol() {
    let scratch = Scratch::new();
    let (fake, started) = (fake_engine().display(), scratch.join("started"));
    let started = started.display();
    let silent =
        format!("[ -e '{started}' ] || {{ touch '{started}'; exec '{fake}' --fault hangs_in_hello; }}");
    let engine = scratch.script("silent-once", &format!("{silent}\nexec '{fake}'"));
    let outcome = start(&scratch, &engine, &[]).exits_with(0);
    let run = Run::of(scratch, "silent-once", outcome);
    run.kept(2).with_warning("the engine is started once more");
    let launches = run.record.launches_of("silent-once");
    assert!(launches.iter().all(|launch| launch["hello"].is_object()), "{launches:?}");
}

/// The run of an engine that does not answer `hello` in some launches, counted from 1: those for which the shell's test is true.
fn silent_when(test: &str, blocks: &str) -> (Outcome, Record) {
    let scratch = Scratch::new();
    let (fake, counted) = (fake_engine().display(), scratch.join("counted"));
    let counted = counted.display();
    let count = format!("echo >> '{counted}'; n=$(wc -l < '{counted}')");
    let silent = format!("if {test}; then exec '{fake}' --fault hangs_in_hello; fi");
    let engine = scratch.script("silent", &format!("{count}\n{silent}\nexec '{fake}'"));
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(engine).args(["-s", "decode", "--iterations", "2", "--warmup", "1"]);
    command.args(["--blocks", blocks, "--timeout", "5"]).arg("--results").arg(scratch.results());
    let outcome = finish(&mut command);
    (outcome, Record::only_one_in(&scratch.results()))
}

#[test]
fn engine_that_misses_hello_occasionally_always_uses_the_whole_protocol() {
    let (outcome, record) = silent_when("[ $n = 2 ] || [ $n = 4 ]", "3");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let launches = record.launches_of("silent");
    assert!(launches.len() >= 3, "{launches:?}");
    assert!(launches.iter().all(|launch| launch["hello"].is_object()), "{launches:?}");
}

#[test]
fn engine_that_misses_one_hello_gets_a_converted_model_in_one_shot_mode() {
    let scratch = Scratch::new();
    let (fake, counted, paths) = (fake_engine().display(), scratch.join("counted"), scratch.join("paths"));
    let (counted, shown) = (counted.display(), paths.display());
    let text = format!(
        "echo >> '{counted}'; n=$(wc -l < '{counted}')\nif [ $n = 1 ]; then exec '{fake}' --fault hangs_in_hello; fi\n\
         echo \"$n $ORCHESTRATE_MODEL\" >> '{shown}'\n\
         exec '{fake}' --capabilities '{{\"formats\":[\"gguf\"]}}'"
    );
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.script("reads-gguf", &text));
    command.args(["-s", "decode", "--iterations", "2", "--blocks", "1", "--mode", "one-shot"]);
    command.args(["--timeout", "5", "--verifier", "none"]).arg("--results").arg(scratch.results());
    finish(&mut command).exits_with(0);
    let started = std::fs::read_to_string(&paths).unwrap();
    // The first launch does not answer, and the second one names its formats.
    let models: Vec<_> = started.lines().skip_while(|line| !line.starts_with("3 ")).collect();
    assert!(models.len() >= 2 && models.iter().all(|line| line.ends_with(".gguf")), "{started}");
}

#[test]
fn engine_that_stops_answering_hello_in_the_middle_of_a_run_times_out() {
    let (outcome, record) = silent_when("[ $n -gt 2 ]", "4");
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    let failures = record.failures_of("silent");
    let [failure] = failures[..] else { panic!("{failures:?}") };
    assert_eq!((&failure["kind"], &failure["when"]), (&"timeout".into(), &"hello".into()), "{failure}");
    let launches = record.launches_of("silent");
    assert!(launches.iter().all(|launch| launch["hello"].is_object()), "{launches:?}");
}

#[test]
fn engine_that_supports_only_generate_is_measured() {
    measured("says_bad_request_to_hello", &[]).without_warning();
}

#[test]
fn launch_of_a_generate_only_engine_is_recorded_before_its_samples() {
    let run = run("says_bad_request_to_hello", &[], &["--warmup", "0"]);
    assert_eq!(run.outcome.code, Some(0), "{}", run.outcome.stderr);
    run.kept(2).without_warning();
    // A warm-up of no requests waits for the first answer, which records the launch.
    let label = "says_bad_request_to_hello";
    let [launch] = run.record.launches_of(label)[..] else { panic!("{:?}", run.record) };
    let of_it = |it: &&serde_json::Value| it["launch"] == launch["launch"];
    assert_eq!(run.record.entries("warm_up").into_iter().filter(of_it).count(), 1, "{:?}", run.record);
}

// During load.

#[test]
fn engine_that_hangs_in_load_times_out_with_a_hint_to_raise_the_timeout() {
    let run = fails("hangs_in_load", &[], "timeout", "load", "no answer within 10 s");
    run.says("hangs in load").kept(0);
    assert!(run.failure()["hint"].as_str().unwrap().starts_with("--timeout "));
}

#[test]
fn engine_that_exits_in_load_is_reported_with_its_stderr() {
    fails("exits_in_load", &[], "exited", "load", "exit code 3").says("shard 2 of 3 is missing").kept(0);
}

#[test]
fn engine_that_cannot_load_fails_with_its_own_message() {
    fails("fails_in_load", &[], "model", "load", "`model.safetensors`: header ends after 12 bytes").kept(0);
}

#[test]
fn progress_moves_the_deadline_of_a_slow_load() {
    measured("slow_progress", &["--load-ns", "12000000000"]).without_warning();
}

// During a run.

#[test]
fn engine_that_hangs_during_samples_keeps_its_earlier_samples() {
    fails("hangs_in_generate", SECOND_SAMPLE, "timeout", "sample 2", "no answer within 10 s")
        .says("hangs in generate")
        .kept(1);
}

#[test]
fn engine_that_exits_at_a_sample_fails_with_its_exit_code() {
    let settings = [SECOND_SAMPLE, &["--exit-code", "41"]].concat();
    fails("exits_at_sample", &settings, "exited", "sample 2", "exit code 41")
        .says("assertion `tokens > 0` failed")
        .kept(1);
}

#[test]
fn engine_that_a_signal_ends_fails_with_the_name_of_the_signal() {
    let settings = [SECOND_SAMPLE, &["--signal", "KILL"]].concat();
    fails("killed_at_sample", &settings, "exited", "sample 2", "signal 9 (SIGKILL)").kept(1);
    fails("killed_at_sample", SECOND_SAMPLE, "exited", "sample 2", "signal 11 (SIGSEGV)").kept(1);
}

#[test]
fn engine_that_aborts_fails_with_the_signal_and_its_remaining_output() {
    fails("aborts_at_sample", SECOND_SAMPLE, "exited", "sample 2", "signal 6 (SIGABRT)")
        .says("heap corrupted")
        .kept(1);
}

#[test]
fn an_exit_after_half_a_line_fails_with_the_exit_code() {
    fails("half_line_then_exits", SECOND_SAMPLE, "exited", "sample 2", "exit code 3")
        .says("broken off")
        .kept(1);
}

#[test]
fn half_a_line_without_an_end_times_out() {
    fails("half_line_then_hangs", SECOND_SAMPLE, "timeout", "sample 2", "no answer within 10 s").kept(1);
}

#[test]
fn engine_that_closes_stdout_and_keeps_running_does_not_block_the_run() {
    // After closing stdout it gets time to end, and the waiting ends before the deadline.
    let run = run("closes_stdout", SECOND_SAMPLE, &[]);
    run.agree("protocol", "sample 2").kept(1);
    assert_eq!(run.failure()["message"], "closed its stdout and kept running");
}

#[test]
fn engine_out_of_memory_fails_with_its_own_message() {
    fails("out_of_memory", SECOND_SAMPLE, "out_of_memory", "sample 2", "tried to allocate 2.00 GiB").kept(1);
}

// Noise.

#[test]
fn a_few_lines_on_stdout_that_are_no_json_are_skipped() {
    measured("chatter", &[]).without_warning();
}

#[test]
fn too_many_lines_on_stdout_that_are_no_json_break_the_protocol() {
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
fn a_flood_on_stderr_changes_nothing() {
    measured("stderr_flood", &["--amount", "20000"]).without_warning();
}

#[test]
fn an_engine_whose_clock_omits_time_gets_a_warning() {
    // Computed from the record, like all claims.
    let report = measured("hides_time", &[]).report;
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("hides_time: its clock leaves out 1"), "{warnings}");
    let doubted = report["cases"].as_array().unwrap().iter().filter(|case| case["contradicted"] == true);
    assert_eq!(doubted.map(|case| &case["engine"]["label"]).collect::<Vec<_>>(), ["hides_time"]);
}

#[test]
fn a_line_above_the_size_limit_is_refused_with_its_size() {
    fails("huge_line", SECOND_SAMPLE, "protocol", "sample 2", "a line of 200000").kept(1);
}

// At the end.

#[test]
fn engine_that_ignores_shutdown_is_measured_and_ended() {
    measured("ignores_shutdown", &[]).with_warning("did not shut down as the protocol requires");
}

#[test]
fn engine_that_ignores_sigterm_is_measured_and_ended() {
    measured("ignores_sigterm", &[]).with_warning("did not shut down as the protocol requires");
}

#[test]
fn grandchild_in_another_session_is_ended_with_its_measured_engine() {
    measured("leaves_grandchild", &[]).with_warning("behind");
}

#[test]
fn a_grandchild_that_holds_stdout_open_does_not_block_the_run() {
    measured("grandchild_holds_stdout", &[]).with_warning("behind");
    fails("grandchild_holds_stdout,exits_at_sample", SECOND_SAMPLE, "exited", "sample 2", "exit code 3")
        .kept(1);
}

// Engines that are no programs.

#[test]
fn a_path_without_a_file_is_a_usage_error() {
    let scratch = Scratch::new();
    let outcome = start(&scratch, &scratch.join("no-such-engine"), &[]).exits_with(2);
    outcome.assert_stderr(&["no engine at `", "no-such-engine"]);
    assert_eq!(crate::support::record::files(&scratch.results()), Vec::<std::path::PathBuf>::new());
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
fn a_folder_as_engine_is_a_usage_error_and_nothing_runs() {
    let scratch = Scratch::new();
    let path = scratch.join("folder");
    std::fs::create_dir(&path).unwrap();
    let outcome = start(&scratch, &path, &[]).exits_with(2);
    outcome.assert_stderr(&["is a folder, an engine is a program"]);
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
    let hint = "find / -name libgone.so.7 # add its folder to LD_LIBRARY_PATH";
    assert_eq!(run.failure()["hint"], hint);
}
