//! The failure matrix: for each fault that a run can meet, a run of the fake engine and a healthy one. The run ends, the row
//! names the failure and its stage, the healthy engine is measured, and no process is left. This file has the programs that
//! exit, hang, print too much, or are no engines. Tests of wrong answers are in `answers.rs`.

use std::path::PathBuf;

use crate::support::record::{Record, files};
use crate::support::run::{FaultCase, Run, assert_faults, run_program_with_healthy, run_with_healthy};
use crate::support::{DECODE, Outcome, Scratch, command, fake_engine, finish, write_program};

/// Faults of answers to requests that an engine must refuse. Only tests of `check` have these faults.
const ONLY_IN_CHECKS: &[&str] = &[
    "answers_broken_json",
    "unsupported_option",
    "ignores_capabilities",
    "checks_context_first",
    "accepts_large_integers",
    "uncounted_drafts",
    "uses_prefixes_always",
];

#[test]
fn every_fault_that_a_run_can_meet_has_a_test() {
    let listed = finish(Scratch::new().command(fake_engine()).arg("--list")).stdout;
    let faults = listed.lines().filter_map(|line| line.strip_prefix("--fault ")?.split_whitespace().next());
    let tests = [
        include_str!("failures.rs"),
        include_str!("answers.rs"),
        include_str!("false_times.rs"),
        include_str!("containment.rs"),
        include_str!("output_checks.rs"),
        include_str!("perplexity.rs"),
        include_str!("text_engines.rs"),
        include_str!("../machine/false_claims.rs"),
    ]
    .concat();
    let is_tested = |fault: &&str| {
        let uses = [format!("\"{fault}\""), format!("--fault {fault}\""), format!("--fault {fault} ")];
        uses.iter().any(|used| tests.contains(used))
    };
    let missing: Vec<_> =
        faults.filter(|fault| !ONLY_IN_CHECKS.contains(fault) && !is_tested(fault)).collect();
    assert!(listed.contains("--fault exits_before_hello"), "{listed}");
    assert!(missing.is_empty(), "no test of {missing:?}: add one to a file that this test reads");
}

/// Faults that need no deadline. Request 6 of a launch, counted from 0, is its second sample.
const FAULTS: &[FaultCase] = &[
    ("exits_before_hello", "", "exited", "hello", "exit code 3 before it answered"),
    ("wrong_version", "", "version", "hello", "speaks protocol 999, this orchestrator speaks 1"),
    ("garbage", "", "protocol", "hello", "in the line `{\"type\":\"hel"),
    ("exits_in_load", "", "exited", "load", "exit code 3"),
    ("fails_in_load", "", "model", "load", "`model.safetensors`: header ends after 12 bytes"),
    ("exits_at_sample", "--at 6 --exit-code 41", "exited", "sample 2", "exit code 41"),
    ("killed_at_sample,stray_lines", "--at 6 --signal KILL", "exited", "sample 2", "signal 9 (SIGKILL)"),
    ("killed_at_sample", "--at 6", "exited", "sample 2", "signal 11 (SIGSEGV)"),
    ("aborts_at_sample", "--at 6", "exited", "sample 2", "signal 6 (SIGABRT)"),
    ("half_line_then_exits", "--at 6", "exited", "sample 2", "exit code 3"),
    ("closes_stdout", "--at 6", "protocol", "sample 2", "closed its stdout and kept running"),
    ("out_of_memory", "--at 6", "out_of_memory", "sample 2", "tried to allocate 2.00 GiB"),
    (
        "unrequested_drafts",
        "",
        "wrong_output",
        "warm-up 1",
        "drafted tokens, and the request asks for no `speculation`",
    ),
    ("many_stray_lines", "--at 6", "protocol", "sample 2", "1000 lines on stdout that are not JSON"),
    ("huge_line", "--at 6", "protocol", "sample 2", "a line of more than 16 MiB, the limit of the protocol"),
    (
        "endless_line",
        "--at 6",
        "protocol",
        "sample 2",
        "a line of more than 16 MiB, the limit of the protocol",
    ),
    ("long_message", "--at 6", "internal", "sample 2", "aaa... (100000 bytes)"),
    ("hint_in_message", "--at 6", "device", "sample 2", "no kernel for this shape"),
    ("grandchild_holds_stdout,exits_at_sample", "--at 6", "exited", "sample 2", "exit code 3"),
];

#[test]
fn every_failure_is_a_row_with_its_kind_stage_message_and_stderr() {
    let run = assert_faults(FAULTS, &[]);
    for (fault, stderr) in [
        ("exits_before_hello", "libfake.so.4"),
        ("exits_in_load", "shard 2 of 3 is missing"),
        ("exits_at_sample", "assertion `tokens > 0` failed"),
        ("aborts_at_sample", "heap corrupted"),
        ("half_line_then_exits", "broken off"),
    ] {
        run.assert_stderr(fault, stderr);
    }
    let failure_of = |fault: &str| run.record.failure_of(fault);
    let message = failure_of("long_message")["message"].as_str().unwrap();
    assert_eq!(message.matches('a').count(), 1000);
    assert_eq!(failure_of("hint_in_message")["message"], "no kernel for this shape");
    assert_eq!(failure_of("hint_in_message")["hint"], "--set kernels=portable");
}

// Engines that do not answer. The deadline is short, but long enough for the healthy engine on a busy machine. Each engine
// has its own test, so that the tests wait in parallel.

const DEADLINE: &[&str] = &["--timeout", "10"];

fn assert_times_out(fault: &'static str, settings: &'static str, when: &'static str, stderr: &str) -> Run {
    let expected = (fault, settings, "timeout", when, "no answer within 10 s");
    let run = assert_faults(&[expected], DEADLINE);
    if !stderr.is_empty() {
        run.assert_stderr(fault, stderr);
    }
    run
}

#[test]
fn an_engine_that_never_answers_gets_only_generate_and_times_out() {
    assert_times_out("never_answers", "", "warm-up 1", "hangs before hello");
}

#[test]
fn an_engine_that_hangs_in_load_times_out_with_a_hint_to_raise_the_timeout() {
    let run = assert_times_out("hangs_in_load", "", "load", "hangs in load");
    let failure = run.record.failure_of("hangs_in_load");
    assert!(failure["hint"].as_str().unwrap().starts_with("--timeout "), "{failure}");
}

#[test]
fn an_engine_that_hangs_during_samples_keeps_its_earlier_samples() {
    assert_times_out("hangs_in_generate", "--at 6", "sample 2", "hangs in generate");
}

#[test]
fn an_engine_that_sends_progress_without_end_during_samples_times_out() {
    assert_times_out("progress_without_end", "--at 6", "sample 2", "");
}

#[test]
fn a_stopped_engine_times_out_with_a_message_that_says_so() {
    let run = assert_times_out("stops_at_sample", "--at 6", "sample 2", "");
    let message = run.record.failure_of("stops_at_sample")["message"].as_str().unwrap();
    assert!(message.contains(" is stopped, by a signal (`kill -STOP`)"), "{message}");
}

#[test]
fn half_a_line_without_an_end_times_out() {
    assert_times_out("half_line_then_hangs", "--at 6", "sample 2", "hangs after half a line");
}

#[test]
fn an_unavailable_engine_is_a_row_with_the_engines_own_hint() {
    let run = run_with_healthy(&[("absent", "--fault says_unavailable")], &[]);
    let failure = run.assert_samples("absent", 0).assert_failed("absent", "unavailable", "hello");
    assert_eq!(failure["message"], "the library `libfake.so.4` is not installed");
    assert_eq!(failure["hint"], "apt-get install libfake4");
}

// Engines that are measured in spite of a fault.

#[test]
fn engines_with_harmless_faults_are_measured_and_ended_with_the_expected_warnings() {
    let shutdown = "did not shut down as the protocol requires";
    let faults = [
        ("none", "", ""),
        ("stray_lines", "--fault stray_lines", ""),
        ("stderr-flood", "--fault stderr_flood --amount 20000", ""),
        ("only-generate", "--fault says_bad_request_to_hello", ""),
        ("eos", "--fault continues_after_eos", ""),
        ("other-ids", "--fault nondeterministic --deterministic false", ""),
        // No request of this run asks for scores.
        ("scores", "--fault wrong_scores", ""),
        ("no-shutdown", "--fault ignores_shutdown", shutdown),
        ("no-sigterm", "--fault ignores_sigterm", shutdown),
        ("grandchild", "--fault leaves_grandchild", "behind"),
        ("open-stdout", "--fault grandchild_holds_stdout", "behind"),
    ];
    let run = run_with_healthy(&faults.map(|(name, settings, _)| (name, settings)), &[]);
    for (name, _, warning) in faults {
        run.assert_measured(name).assert_warnings(name, warning);
    }
}

#[test]
fn progress_moves_the_deadline_of_a_slow_load() {
    let run = run_with_healthy(&[("slow", "--fault slow_progress --load-ns 12000000000")], DEADLINE);
    run.assert_measured("slow").assert_warnings("slow", "");
}

#[test]
fn an_engine_whose_clock_omits_time_gets_a_warning() {
    let run = run_with_healthy(&[("late", "--fault hides_time")], &[]);
    // The report makes this warning from the record, as it does for other claims.
    let warnings = run.assert_measured("late").report["warnings"].to_string();
    assert!(warnings.contains("late: its clock leaves out 1"), "{warnings}");
    let contradicted = run.report["cases"].as_array().unwrap().iter().filter(|it| it["contradicted"] == true);
    assert_eq!(contradicted.map(|case| &case["engine"]["label"]).collect::<Vec<_>>(), ["late"]);
}

#[test]
fn the_launch_of_an_engine_with_only_generate_is_recorded_before_its_samples() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("minimal", "--fault says_bad_request_to_hello"));
    command.args(DECODE).args(["--iterations", "2", "--blocks", "1", "--warmup", "0", "--json", "-"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let run = Run::of(&scratch, outcome);
    run.assert_measured("minimal").assert_warnings("minimal", "");
    // The launch is recorded at the first answer, and the entry of its empty warm-up follows.
    let [launch] = run.record.launches_of("minimal")[..] else { panic!("{:?}", run.record) };
    let warm_ups = run.record.entries("warm_up").into_iter();
    assert_eq!(warm_ups.filter(|it| it["launch"] == launch["launch"]).count(), 1, "{:?}", run.record);
}

// Engines that do not answer `hello`, in all launches or in some.

#[test]
fn an_engine_that_hangs_in_hello_gets_only_generate() {
    let run = run_with_healthy(&[("silent", "--fault hangs_in_hello")], DEADLINE);
    run.assert_measured("silent").assert_warnings("silent", "in two launches: only `generate` is used");
}

#[test]
fn an_engine_that_leaves_one_hello_unanswered_is_started_again_and_uses_the_whole_protocol() {
    let scratch = Scratch::new();
    let outcome = run_program_with_healthy(&scratch, &silent_when(&scratch, "[ $n = 1 ]", "")).exits_with(0);
    let run = Run::of(&scratch, outcome);
    run.assert_measured("healthy").assert_measured("silent");
    run.assert_warnings("silent", "the engine is started once more");
    let launches = run.record.launches_of("silent");
    assert!(launches.iter().all(|launch| launch["hello"].is_object()), "{launches:?}");
}

/// An engine that does not answer `hello` in launches for which the shell's test is true. `$n` counts launches from 1.
fn silent_when(scratch: &Scratch, test: &str, settings: &str) -> PathBuf {
    let (fake, count) = (fake_engine().display(), scratch.join("launches"));
    let text = format!(
        "echo \"$ORCHESTRATE_MODEL\" >> '{0}'; n=$(wc -l < '{0}')\n\
         if {test}; then exec '{fake}' --fault hangs_in_hello; fi\nexec '{fake}' {settings}",
        count.display()
    );
    scratch.script("silent", &text)
}

/// Runs the engine of `silent_when` alone.
fn run_of_silent(test: &str, blocks: &str) -> (Outcome, Record) {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(silent_when(&scratch, test, ""));
    command.args(DECODE).args(["--iterations", "2", "--warmup", "1"]);
    command.args(["--blocks", blocks, "--timeout", "5"]).arg("--results").arg(scratch.results());
    let outcome = finish(&mut command);
    (outcome, Record::only_one_in(&scratch.results()))
}

#[test]
fn an_engine_that_leaves_some_hellos_unanswered_always_uses_the_whole_protocol() {
    let (outcome, record) = run_of_silent("[ $n = 2 ] || [ $n = 4 ]", "3");
    outcome.exits_with(0);
    let launches = record.launches_of("silent");
    assert!(launches.len() >= 3, "{launches:?}");
    assert!(launches.iter().all(|launch| launch["hello"].is_object()), "{launches:?}");
}

#[test]
fn an_engine_that_stops_answering_hello_in_the_middle_of_a_run_times_out() {
    let (outcome, record) = run_of_silent("[ $n -gt 2 ]", "4");
    outcome.exits_with(4);
    record.assert_failed("silent", "timeout", "hello");
    let launches = record.launches_of("silent");
    assert!(launches.iter().all(|launch| launch["hello"].is_object()), "{launches:?}");
}

#[test]
fn an_engine_that_leaves_one_hello_unanswered_gets_a_converted_model_in_one_shot_mode() {
    let scratch = Scratch::new();
    let engine = silent_when(&scratch, "[ $n = 1 ]", r#"--capabilities '{"formats":["gguf"]}'"#);
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(engine).args(DECODE).args(["--iterations", "2", "--blocks", "1"]);
    command.args(["--mode", "one-shot", "--timeout", "5"]).arg("--results").arg(scratch.results());
    finish(&mut command).exits_with(0);
    let launches = std::fs::read_to_string(scratch.join("launches")).unwrap();
    // The first launch does not answer, and the second one names its formats.
    let models: Vec<_> = launches.lines().skip(2).collect();
    assert!(models.len() >= 2 && models.iter().all(|model| model.ends_with(".gguf")), "{launches}");
}

// Programs that are no engines.

#[test]
fn a_program_that_writes_text_gets_its_text_and_the_command_that_checks_it() {
    for (rest, kind) in
        [("while read line; do echo Hello!; done", "timeout"), ("read line; exit 3", "exited")]
    {
        let scratch = Scratch::new();
        let chat = scratch.script("chat", &format!("echo 'I am a chat program'\n{rest}"));
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(&chat).args(DECODE).args(["--blocks", "1", "--timeout", "2"]);
        let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(4);
        let record = Record::only_one_in(&scratch.results());
        let failure = record.entries("failure")[0];
        assert_eq!(failure["kind"], kind);
        let message = failure["message"].as_str().unwrap();
        assert!(message.ends_with("; it wrote text, not JSON: `I am a chat program`"), "{message}");
        assert_eq!(failure["hint"], format!("orchestrate check {}", chat.display()));
        outcome.assert_stdout(&["I am a chat program", "orchestrate check "]);
    }
}

#[test]
fn a_path_without_a_program_is_a_usage_error() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("folder")).unwrap();
    for (name, message) in
        [("no-such-engine", "no engine at `"), ("folder", "is a folder, and an engine is a program")]
    {
        let outcome = run_program_with_healthy(&scratch, &scratch.join(name)).exits_with(2);
        outcome.assert_stderr(&[name, message]);
        assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_program_without_its_interpreter_is_a_row() {
    let scratch = Scratch::new();
    let orphan = scratch.join("orphan");
    write_program(&orphan, "#!/no/such/interpreter\n");
    let run = Run::of(&scratch, run_program_with_healthy(&scratch, &orphan));
    run.assert_measured("healthy").assert_samples("orphan", 0).assert_failed("orphan", "start", "start");
}

#[test]
fn an_engine_whose_shared_library_is_missing_is_a_row_that_names_the_library() {
    let scratch = Scratch::new();
    let source = scratch.join("source.c");
    std::fs::write(&source, "int absent(void) { return 0; }\nint main(void) { return absent(); }\n").unwrap();
    let (library, engine) = (scratch.join("libabsent.so.7"), scratch.join("unlinked"));
    let compile = |arguments: &[&str]| {
        let status = command("cc").args(arguments).arg(&source).status().unwrap();
        assert!(status.success(), "a C compiler is needed");
    };
    let out = library.to_str().unwrap();
    compile(&["-shared", "-fPIC", "-Dmain=unused", "-Wl,-soname,libabsent.so.7", "-o", out]);
    std::fs::write(&source, "int absent(void);\nint main(void) { return absent(); }\n").unwrap();
    compile(&["-o", engine.to_str().unwrap(), "-Wl,--no-as-needed", out]);
    std::fs::remove_file(&library).unwrap();
    let run = Run::of(&scratch, run_program_with_healthy(&scratch, &engine));
    run.assert_measured("healthy").assert_samples("unlinked", 0).assert_stderr("unlinked", "libabsent.so.7");
    let failure = run.assert_failed("unlinked", "start", "hello");
    assert_eq!(failure["message"], "cannot start: `libabsent.so.7` is missing");
    assert_eq!(failure["hint"], "find / -name libabsent.so.7 # add its folder to LD_LIBRARY_PATH");
}
