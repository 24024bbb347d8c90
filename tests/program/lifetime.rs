//! Ctrl-C, SIGKILL, a closed stdout or a hanging driver during a run: its results are kept, and no process is left.

use std::process::Command;

use rustix::process::Signal;

use crate::support::record::{Record, files};
use crate::support::{DECODE, Running, Scratch, driver, fake_engine, finish, root};

/// The command of a run whose engine answers three requests and then hangs. The engine has a grandchild in another session.
fn hanging_command(scratch: &Scratch) -> Command {
    let engine = scratch.faulty("hangs_in_generate,leaves_grandchild", &["--at", "3"]);
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--warmup", "1", "--iterations", "5", "--blocks", "2", "--debug"]);
    command.arg("-e").arg(engine).arg("--results").arg(scratch.results());
    command
}

/// Starts a run and waits until its engine hangs. The engine reports that on stderr, which `--debug` shows.
fn start_hanging_run(scratch: &Scratch) -> Running {
    let mut running = Running::start(&mut hanging_command(scratch));
    running.wait_for("fake: hangs in generate");
    assert!(
        scratch.live_processes().len() >= 4,
        "orchestrator, keeper, engine, grandchild: {:?}",
        scratch.live_processes()
    );
    running
}

#[test]
fn an_interrupt_keeps_and_prints_the_results_so_far() {
    let scratch = Scratch::new();
    let running = start_hanging_run(&scratch);
    let outcome = running.interrupt();
    scratch.assert_no_processes_left();
    let record = Record::only_one_in(&scratch.results());
    assert_eq!(record.end(), Some("interrupted"));
    assert_eq!(record.samples_of("hangs_in_generate,leaves_grandchild").len(), 2);
    outcome.assert_stdout(&["interrupted", "decode"]);
    outcome.assert_stderr(&["interrupted"]);
}

#[test]
fn sigterm_interrupts_a_run_like_ctrl_c() {
    let scratch = Scratch::new();
    let running = start_hanging_run(&scratch);
    running.signal(Signal::TERM);
    running.finish().exits_with(130);
    scratch.assert_no_processes_left();
    assert_eq!(Record::only_one_in(&scratch.results()).end(), Some("interrupted"));
}

#[test]
fn a_second_interrupt_leaves_no_processes_behind() {
    let scratch = Scratch::new();
    let running = start_hanging_run(&scratch);
    running.signal(Signal::INT);
    running.interrupt();
    scratch.assert_no_processes_left();
    finish(scratch.orchestrate().arg("report").args(files(&scratch.results()))).exits_with(0);
}

/// The driver is called for the machine's description, then before the first block (for other load and idle power), then for
/// the energy of each case. No record exists during the first calls, so this test lets only later calls hang.
#[test]
fn an_interrupt_while_a_gpus_driver_hangs_ends_the_run_and_keeps_the_record() {
    for (hangs_in, call_number, interrupts) in
        [("PROBE", "3", 1), ("ENERGY", "2", 2), ("ENERGY", "4", 1), ("ENERGY", "5", 1)]
    {
        let scratch = Scratch::new();
        let driver = driver::present(&scratch);
        let mut command = decode_command(&scratch);
        command.args(["--device", "cuda"]).env("LD_LIBRARY_PATH", &driver);
        command.env(format!("STAND_IN_HANGS_IN_{hangs_in}"), call_number);
        let mut running = Running::start(&mut command);
        running.wait_for("stand-in: hangs");
        (0..interrupts).for_each(|_| running.signal(Signal::INT));
        running.finish().exits_with(130);
        scratch.assert_no_processes_left();
        let record = Record::only_one_in(&scratch.results());
        // After a second interrupt there may be no time to record the end.
        assert!(
            interrupts > 1 || record.end() == Some("interrupted"),
            "{hangs_in} {call_number}: {record:?}"
        );
    }
}

#[test]
fn an_interrupt_ends_an_engine_that_refuses_to_exit() {
    let scratch = Scratch::new();
    let engine = scratch.faulty("ignores_sigterm,hangs_in_generate", &[]);
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "1", "--debug", "-e"]).arg(engine);
    let mut running = Running::start(command.arg("--results").arg(scratch.results()));
    running.wait_for("fake: hangs in generate");
    running.interrupt();
    scratch.assert_no_processes_left();
}

#[test]
fn a_killed_orchestrator_leaves_no_processes_and_a_readable_record() {
    let scratch = Scratch::new();
    let running = start_hanging_run(&scratch);
    running.signal(Signal::KILL);
    let outcome = running.finish();
    assert_eq!(outcome.code, None, "{outcome:?}");
    scratch.wait_until_no_processes_left();
    let record = Record::only_one_in(&scratch.results());
    assert_eq!((record.end(), record.samples_of("hangs_in_generate,leaves_grandchild").len()), (None, 2));
    let again = finish(scratch.orchestrate().arg("report").args(files(&scratch.results()))).exits_with(0);
    again.assert_stdout(&["decode"]);
}

#[test]
fn a_closed_stdout_is_no_failure() {
    for arguments in [&["metrics"][..], &["schema"], &["--help"], &["report", "tests/snapshots/record.jsonl"]]
    {
        let scratch = Scratch::new();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = finish(scratch.orchestrate().args(arguments).current_dir(root()).stdout(writer));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_run_with_a_closed_stdout_is_recorded() {
    let scratch = Scratch::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let outcome = finish(decode_command(&scratch).stdout(writer)).exits_with(0);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    assert_eq!(Record::only_one_in(&scratch.results()).end(), Some("finished"));
}

#[test]
fn an_unwritable_results_folder_is_refused_before_anything_is_built_or_started() {
    let scratch = Scratch::new();
    // Root ignores permissions, but even root cannot use a file as a folder.
    std::fs::write(scratch.results(), "").unwrap();
    let outcome = finish(&mut decode_command(&scratch));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(5), ""), "{outcome:?}");
    let error = format!("error: cannot write records to the folder `{}`: ", scratch.results().display());
    assert!(outcome.stderr.starts_with(&error), "{outcome:?}");
    // Nothing comes before the error, and its hint comes last.
    let hint = "\nhint: --results DIR, or: export ORCHESTRATE_RESULTS=DIR\n";
    assert!(outcome.stderr.ends_with(hint) && outcome.stderr.lines().count() == 2, "{outcome:?}");
    scratch.assert_no_processes_left();
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_and_the_record_stays() {
    let scratch = Scratch::new();
    let outcome = finish(decode_command(&scratch).args(["--json", "/proc/self/report.json"])).exits_with(5);
    outcome.assert_stderr(&["cannot write `/proc/self/report.json`"]);
    assert_eq!(Record::only_one_in(&scratch.results()).end(), Some("finished"));
}

#[test]
fn runs_at_once_write_separate_records_and_end_only_their_own_processes() {
    let scratch = Scratch::new();
    let hanging = start_hanging_run(&scratch);
    let others = [(); 3].map(|()| Running::start(&mut decode_command(&scratch)));
    let outcomes = others.map(Running::finish);
    assert!(outcomes.iter().all(|outcome| outcome.code == Some(0)), "{outcomes:?}");
    assert!(
        scratch.live_processes().len() >= 4,
        "another run ended the hanging run: {:?}",
        scratch.live_processes()
    );
    assert_eq!(files(&scratch.results()).len(), 4);
    hanging.interrupt();
    scratch.assert_no_processes_left();
}

fn decode_command(scratch: &Scratch) -> Command {
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "1", "--iterations", "1", "-e"]).arg(fake_engine());
    command.arg("--results").arg(scratch.results());
    command
}

/// An engine that fails at a long prompt and then exits. The protocol allows that if an engine cannot continue.
const BRITTLE: &str = r#"
while read -r line; do
    case "$line" in
    *'"type":"hello"'*) echo '{"type":"hello","protocol":1,"engine":"brittle","version":"1","capabilities":{"prompt_ids":true,"ignore_eos":"exact"}}' ;;
    *'"type":"load"'*) echo '{"type":"loaded","load_ns":1}' ;;
    *'"type":"shutdown"'*) echo '{"type":"bye"}'; exit 0 ;;
    *)
        id=$(echo "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
        if [ ${#line} -gt 2000 ]; then
            echo "{\"type\":\"failed\",\"id\":$id,\"kind\":\"out_of_memory\",\"message\":\"too long\"}"
            exit 3
        fi
        echo "{\"type\":\"generated\",\"id\":$id,\"iterations\":[{\"start_ns\":1,\"end_ns\":4,\"sequences\":[{\"prompt_tokens\":32,\"output_ids\":[1],\"token_ns\":[2],\"finish\":\"length\"}]}]}"
        ;;
    esac
done
"#;

#[test]
fn an_engine_that_exits_in_one_case_is_started_again_for_the_next() {
    let scratch = Scratch::new();
    let engine = scratch.script("brittle", BRITTLE);
    let mut command = scratch.orchestrate();
    let cases = ["-s", "decode", "--depth", "992,0", "--new-tokens", "1"];
    command.args(cases).args(["--blocks", "1", "--iterations", "2"]);
    finish(command.arg("-e").arg(engine).arg("--results").arg(scratch.results())).exits_with(4);
    let record = Record::only_one_in(&scratch.results());
    assert_eq!(record.failure_of("brittle")["kind"], "out_of_memory");
    assert_eq!(record.samples_of("brittle").len(), 2, "{record:?}");
    scratch.assert_no_processes_left();
}
