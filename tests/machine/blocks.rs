//! The schedule of a run: blocks that launch every engine, rounds in which one engine runs and the others are paused, and
//! the end of a run.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::record::{Record, files};
use crate::support::{DECODE, Outcome, Running, Scratch, fake_engine, finish, wait_until};

fn decode_command(scratch: &Scratch, engines: &[PathBuf], options: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--json", "-"]).args(options).arg("--results").arg(scratch.results());
    engines.iter().for_each(|engine| {
        command.arg("-e").arg(engine);
    });
    command
}

fn run(scratch: &Scratch, engines: &[PathBuf], options: &[&str]) -> (Outcome, Record) {
    let outcome = finish(&mut decode_command(scratch, engines, options));
    scratch.assert_no_processes_left();
    (outcome, Record::only_one_in(&scratch.results()))
}

/// The record of a run without failures.
fn record_of_run(scratch: &Scratch, engines: &[PathBuf], options: &[&str]) -> Record {
    let (outcome, record) = run(scratch, engines, options);
    outcome.exits_with(0);
    record
}

fn two_engines(scratch: &Scratch) -> [PathBuf; 2] {
    ["one", "other"].map(|name| scratch.engine(name, ""))
}

/// A warm-up, discarded or measured request.
#[derive(Debug)]
struct Step<'a> {
    configuration: u64,
    kind: &'a str,
    round: u64,
}

/// The requests of a record, in the record's order.
fn steps(record: &Record) -> Vec<Step<'_>> {
    let cases = record.0[0]["plan"]["cases"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let samples = record.entries("sample").into_iter();
    samples
        .map(|sample| Step {
            configuration: number(&cases[number(&sample["case"]) as usize]["configuration"]),
            kind: sample["kind"].as_str().unwrap(),
            round: number(&sample["index"]),
        })
        .collect()
}

#[test]
fn rounds_are_interleaved_and_no_sample_follows_a_pause() {
    let scratch = Scratch::new();
    // If requests are short, the first one after a pause is discarded. The median of three warm-up requests is short on a busy
    // machine too.
    let options = ["--blocks", "2", "--iterations", "2", "--warmup", "3"];
    let record = record_of_run(&scratch, &two_engines(&scratch), &options);
    let steps = steps(&record);
    assert!(steps[..2].iter().all(|it| it.kind == "warmup"), "{steps:?}");
    let measured: Vec<_> = steps.iter().filter(|it| it.kind == "measured").collect();
    assert_eq!(measured.len(), 2 * 2 * 2, "blocks, rounds, engines: {steps:?}");
    for pair in measured.chunks(2) {
        let is_other = pair[0].configuration != pair[1].configuration;
        assert!(is_other && pair[0].round == pair[1].round, "the engines did not take turns: {steps:?}");
    }
    for pair in steps.windows(2).filter(|pair| pair[1].kind == "measured") {
        // Before a sample comes a request of the same engine. So a paused engine gets a discarded request first.
        assert_eq!(pair[0].configuration, pair[1].configuration, "the sample follows a pause: {steps:?}");
    }
    let firsts: Vec<u64> = measured.chunks(2).map(|pair| pair[0].configuration).collect();
    // The first engine changes from round to round and from block to block.
    assert!(firsts[0] != firsts[1] && firsts[0] != firsts[2], "{firsts:?}: {steps:?}");
}

#[test]
fn an_engine_measured_alone_discards_no_request() {
    let scratch = Scratch::new();
    let alone = [scratch.engine("one", "")];
    let record = record_of_run(&scratch, &alone, &["--blocks", "1", "--iterations", "3"]);
    assert!(steps(&record).iter().all(|it| it.kind != "discarded"), "{record:?}");
}

#[test]
fn without_warm_up_no_request_is_discarded_before_the_first_sample() {
    let scratch = Scratch::new();
    let options = ["--blocks", "1", "--iterations", "2", "--warmup", "0"];
    let record = record_of_run(&scratch, &two_engines(&scratch), &options);
    // A request is discarded only before a short one. Before the first sample, the duration of requests is unknown.
    let kinds_and_rounds: Vec<_> =
        steps(&record).iter().filter(|it| it.kind != "warmup").map(|it| (it.kind, it.round)).collect();
    assert_eq!(kinds_and_rounds[..2], [("measured", 0), ("measured", 0)], "{kinds_and_rounds:?}");
    assert!(kinds_and_rounds[2..].contains(&("discarded", 1)), "{kinds_and_rounds:?}");
}

/// Starts a run of the engine `one` and of an engine that hangs in a request. Waits for the hang, in which `one` is paused.
fn start_with_paused_engine(scratch: &Scratch) -> (Running, Record) {
    let engines = [scratch.engine("one", ""), scratch.faulty("hangs_in_generate", &["--at", "1"])];
    let options = ["--blocks", "1", "--warmup", "1", "--debug"];
    let mut running = Running::start(&mut decode_command(scratch, &engines, &options));
    running.wait_for("fake: hangs in generate");
    (running, Record::only_one_in(&scratch.results()))
}

/// The state of an engine's process: `T` is paused, `S` is asleep, `R` is running.
fn state(record: &Record, label: &str) -> char {
    let pid = record.launches_of(label)[0]["pid"].as_u64().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().chars().next().unwrap()
}

#[test]
fn an_engine_is_paused_while_another_is_measured() {
    let scratch = Scratch::new();
    let (running, record) = start_with_paused_engine(&scratch);
    // The stop signal was sent earlier, but on a busy machine the process stops only when it gets a core.
    wait_until("the engine `one` is paused", || state(&record, "one") == 'T');
    assert_ne!(state(&record, "hangs_in_generate"), 'T');
    running.interrupt();
    scratch.assert_no_processes_left();
}

#[test]
fn paused_processes_end_if_the_orchestrator_is_killed() {
    let scratch = Scratch::new();
    let (running, _) = start_with_paused_engine(&scratch);
    running.signal(Signal::KILL);
    running.finish();
    scratch.wait_until_no_processes_left();
}

#[test]
fn warm_up_ends_when_requests_take_a_steady_time_and_is_never_longer_in_later_launches() {
    let scratch = Scratch::new();
    // Requests are long, so that delays on a busy machine are a small share of their time.
    let steady = [scratch.engine("steady", "--per-token-ns 1000000")];
    let record = record_of_run(&scratch, &steady, &["--blocks", "2", "--iterations", "1"]);
    let warm_ups = record.entries("warm_up");
    let ended: Vec<&str> = warm_ups.iter().map(|it| it["ended_by"].as_str().unwrap()).collect();
    let requests: Vec<u64> = warm_ups.iter().map(|it| it["requests"].as_u64().unwrap()).collect();
    assert_eq!(ended, ["steady", "as_before"], "{warm_ups:?}");
    // Times are steady if three windows in a row, of three requests each, agree. A later launch has at least one window.
    assert!(requests[0] >= 9 && requests[1] <= requests[0] && requests[1] >= 3, "{requests:?}");
}

#[test]
fn a_run_makes_the_requested_number_of_warm_up_requests() {
    let scratch = Scratch::new();
    let (_, record) =
        run(&scratch, &two_engines(&scratch), &["--blocks", "1", "--warmup", "4", "--iterations", "1"]);
    let warm_ups = record.entries("warm_up");
    assert!(warm_ups.len() == 2 && warm_ups.iter().all(|it| it["requests"] == 4), "{warm_ups:?}");
    assert_eq!(steps(&record).iter().filter(|it| it.kind == "warmup").count(), 8);
}

#[test]
fn every_round_has_a_new_prompt_that_is_equal_for_all_engines() {
    let scratch = Scratch::new();
    let (_, record) =
        run(&scratch, &two_engines(&scratch), &["--blocks", "2", "--iterations", "3", "--warmup", "2"]);
    let hashes = |label: &str| -> Vec<String> {
        let samples = record.samples_of(label).into_iter();
        samples.map(|sample| sample["prompt_hash"].as_str().unwrap().to_string()).collect()
    };
    let distinct: BTreeSet<String> = hashes("one").into_iter().collect();
    assert_eq!(distinct.len(), 6, "{distinct:?}");
    assert_eq!(distinct, hashes("other").into_iter().collect());
    let warm_ups =
        record.entries("sample").into_iter().filter(|it| it["kind"] == "warmup" && it["launch"] == 0);
    let prompts: BTreeSet<&str> = warm_ups.filter_map(|it| it["prompt_hash"].as_str()).collect();
    assert_eq!(prompts.len(), 1, "both warm-up requests of a launch must have the same prompt: {prompts:?}");
}

#[test]
fn a_case_with_a_too_slow_request_is_a_row_and_others_are_measured() {
    let scratch = Scratch::new();
    // The engine `one` is far below this cap even on a busy machine.
    let engines = [scratch.engine("one", ""), scratch.engine("slow", "--per-token-ns 500000000")];
    let (outcome, record) = run(&scratch, &engines, &["--quick", "--max-request-time", "10s"]);
    outcome.exits_with(4);
    let failure = record.failure_of("slow");
    let [kind, message, hint] = ["kind", "message", "hint"].map(|field| failure[field].as_str().unwrap());
    assert_eq!((kind, message, hint), ("too_slow", "too slow (> 10 s)", "--max-request-time 50s"));
    assert_eq!(record.samples_of("one").len(), 3, "the rounds of a quick run");
}

#[test]
fn the_longest_time_of_a_request_limits_warm_and_one_shot_requests_and_not_a_load() {
    let scratch = Scratch::new();
    let slow = |name: &str, fault: &str| scratch.engine(name, &format!("--per-token-ns 500000000 {fault}"));
    let engines = [slow("minimal", "--fault says_bad_request_to_hello"), slow("whole", "")];
    // With a shorter deadline, an engine may not answer `hello` in time on a busy machine.
    let (_, record) = run(&scratch, &engines, &["--quick", "--max-request-time", "10s", "--timeout", "10"]);
    // The first request of an engine without `load` includes the load, so it has the deadline of a load.
    for (label, kind) in [("minimal", "timeout"), ("whole", "too_slow")] {
        assert_eq!(record.failures_of(label)[0]["kind"], kind, "{record:?}");
    }
    let scratch = Scratch::new();
    let whole = [scratch.engine("whole", "--per-token-ns 50000000")];
    let (_, record) =
        run(&scratch, &whole, &["--mode", "one-shot", "--blocks", "1", "--max-request-time", "1s"]);
    assert_eq!(record.failures_of("whole")[0]["kind"], "too_slow", "{record:?}");
}

#[test]
fn a_budget_ends_the_run_before_the_requested_rounds_and_is_recorded() {
    let scratch = Scratch::new();
    let settings = "--per-token-ns 1000000 --noise-percent 9";
    let engines = ["one", "other"].map(|name| scratch.engine(name, settings));
    let options = ["--budget", "3s", "--iterations", "1000", "--interval", "0.001%"];
    let (outcome, record) = run(&scratch, &engines, &options);
    // A busy machine may spend the budget before anything is measured. Then the row has the failure `no_time`.
    let failures = record.entries("failure");
    assert!(failures.iter().all(|it| it["kind"] == "no_time"), "{failures:?}");
    assert_eq!(outcome.code, Some(if failures.is_empty() { 0 } else { 4 }), "{outcome:?}");
    assert_eq!(record.only("closed")["by"], "time");
    let samples = record.samples_of("one").len();
    assert!(samples < 200, "{samples} samples of 64 ms in 3 s");
}

#[test]
fn a_budget_limits_the_rounds_of_a_block() {
    let scratch = Scratch::new();
    // Two engines and a twin: ten rounds of 70 ms requests take more than a fifth of the budget.
    let engines = ["one", "other"].map(|name| scratch.engine(name, "--per-token-ns 1000000"));
    let (_, record) =
        run(&scratch, &engines, &["--budget", "8s", "--iterations", "10", "--interval", "0.001%"]);
    let launches = record.launches_of("other");
    let first = launches.iter().find(|it| it["block"] == 0).map(|it| &it["launch"]);
    let rounds = record.samples_of("other").iter().filter(|it| Some(&it["launch"]) == first).count();
    assert!(rounds < 10, "{rounds}");
}

#[test]
fn a_single_engine_is_measured_until_its_interval_is_narrow() {
    let blocks_and_reason = |name: &str, settings: &str| {
        let scratch = Scratch::new();
        let engine = [scratch.engine(name, settings)];
        let (_, record) = run(&scratch, &engine, &["--iterations", "1", "--warmup", "1"]);
        let closed = record.only("closed");
        (closed["blocks"].as_u64().unwrap(), closed["by"].as_str().unwrap().to_string())
    };
    assert_eq!(blocks_and_reason("steady", "--real-sleep false"), (5, "width".into()));
    let (count, by) = blocks_and_reason("noisy", "--noise-percent 30 --noise-seed 1 --per-token-ns 20000");
    assert!(count > 5 && by != "fixed", "{count} {by}");
}

#[test]
fn a_case_without_time_left_in_the_budget_is_a_row_with_that_reason() {
    let scratch = Scratch::new();
    let engines = [scratch.engine("one", "--load-ns 1500000000"), scratch.engine("other", "")];
    let (outcome, record) = run(&scratch, &engines, &["--budget", "1s"]);
    let outcome = outcome.exits_with(4);
    let failure = record.failures_of("one")[0];
    let proposed = &record.only("end")["needs_budget"];
    assert_eq!((&failure["kind"], proposed), (&"no_time".into(), &"4s".into()));
    assert!(outcome.stdout.contains("--budget 4s"), "{outcome:?}");
}

#[test]
fn an_engine_that_the_end_of_the_budget_interrupts_has_not_failed() {
    for fault in ["hangs_in_load", "hangs_in_generate"] {
        let scratch = Scratch::new();
        let engine = [scratch.faulty(fault, &[])];
        let (outcome, record) = run(&scratch, &engine, &["--budget", "2s", "--timeout", "60"]);
        outcome.exits_with(4);
        let failure = record.failure_of(fault);
        let [kind, message] = ["kind", "message"].map(|field| failure[field].as_str().unwrap());
        let expected = "no time: --budget 2s is too short for this case";
        assert_eq!((kind, message), ("no_time", expected));
        assert_eq!(record.only("end")["needs_budget"], "8s");
    }
}

#[test]
fn an_engine_that_takes_long_to_start_has_fewer_blocks_than_the_others_and_a_warning() {
    let scratch = Scratch::new();
    let slow = scratch.engine("slow", "--load-ns 6000000000");
    let engines = [scratch.engine("one", ""), scratch.engine("other", ""), slow];
    let options = ["--budget", "30s", "--iterations", "1", "--warmup", "1", "--interval", "99%"];
    let (outcome, record) = run(&scratch, &engines, &options);
    outcome.exits_with(0).assert_stderr(&["fewer blocks than other engines, because a block takes too long"]);
    let [slow, one, other, twin] =
        ["slow", "one", "other", "one (twin)"].map(|label| record.launches_of(label).len());
    assert!(
        one >= 5 && (one, one) == (other, twin) && (1..one).contains(&slow),
        "{slow} {one} {other} {twin}"
    );
    let warned: Vec<&Value> =
        record.entries("warning").into_iter().filter(|it| it["configuration"] == 2).collect();
    assert!(warned.len() == 1 && record.only("end")["needs_budget"].is_string(), "{warned:?}");
}

#[test]
fn a_budget_that_earlier_runs_show_to_be_too_short_is_named_before_the_run() {
    let scratch = Scratch::new();
    let engine = [scratch.engine("one", "--load-ns 500000000")];
    let stderr = |options: &[&str]| finish(&mut decode_command(&scratch, &engine, options)).stderr;
    assert!(!stderr(&["--blocks", "1"]).contains("is too short"));
    let warned = stderr(&["--budget", "1s"]);
    let warning = warned.find("warning: --budget 1s is too short for ").expect(&warned);
    assert!(warned.find("\nblock 1 of ").is_some_and(|block| warning < block), "{warned}");
    assert!(!stderr(&["--budget", "10m", "--interval", "99%"]).contains("is too short"));
}

#[test]
fn a_log_has_one_line_for_each_block() {
    let scratch = Scratch::new();
    let options = ["--blocks", "3", "--iterations", "1", "--warmup", "1"];
    let (outcome, _) = run(&scratch, &two_engines(&scratch), &options);
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| !line.starts_with("warning: ")).collect();
    let words: Vec<&str> = lines.iter().map(|line| line.split([' ', ':']).next().unwrap()).collect();
    assert_eq!(words, ["measuring", "record", "block", "block", "block", "recorded"], "{lines:?}");
    assert!(lines[3].starts_with("block 2 of 3 (") && lines[3].ends_with(" left)"), "{lines:?}");
}

#[test]
fn a_quick_run_has_one_block_and_no_twin() {
    let scratch = Scratch::new();
    let record = record_of_run(&scratch, &two_engines(&scratch), &["--quick"]);
    assert_eq!(record.0[0]["plan"]["configurations"].as_array().unwrap().len(), 2);
    assert_eq!(record.entries("launch").len(), 2);
    let closed = record.only("closed");
    assert_eq!((&closed["blocks"], &closed["by"]), (&1.into(), &"fixed".into()));
}

#[test]
fn a_comparison_has_five_blocks_and_a_twin_of_the_reference_by_default() {
    let scratch = Scratch::new();
    let record = record_of_run(&scratch, &two_engines(&scratch), &["--iterations", "1", "--interval", "99%"]);
    for label in ["one", "other", "one (twin)"] {
        let blocks: Vec<u64> =
            record.launches_of(label).iter().map(|it| it["block"].as_u64().unwrap()).collect();
        assert_eq!(blocks, [0, 1, 2, 3, 4], "{label}");
    }
}

#[test]
fn sequential_order_finishes_one_engine_before_the_next() {
    let scratch = Scratch::new();
    let options = ["--order", "sequential", "--blocks", "3", "--iterations", "1", "--warmup", "1"];
    let record = record_of_run(&scratch, &two_engines(&scratch), &options);
    let configurations: Vec<u64> =
        record.entries("launch").iter().map(|it| it["configuration"].as_u64().unwrap()).collect();
    assert_eq!(configurations, [0, 0, 0, 1, 1, 1]);
    assert!(steps(&record).iter().all(|it| it.kind != "discarded"));
}

#[test]
fn a_dry_run_prints_the_plan_and_starts_nothing() {
    let scratch = Scratch::new();
    let printing = scratch.script("loud", "echo started >&2; exit 1");
    let engines = [printing, scratch.engine("one", "")];
    let outcome = finish(&mut decode_command(&scratch, &engines, &["--dry-run"])).exits_with(0);
    assert!(!outcome.stderr.contains("started"), "{outcome:?}");
    let plan = ["loud", "(twin)", "decode: 3 requests in each block", "5 to 20 blocks", "no estimate"];
    outcome.assert_stdout(&plan);
    assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new());
}

#[test]
fn the_overhead_is_measured_before_the_blocks_and_reported() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(fake_engine()).args([
        "--scenario",
        "ttft",
        "--prompt-tokens",
        "16,128,512",
        "--blocks",
        "1",
        "--iterations",
        "1",
    ]);
    let outcome =
        finish(command.args(["--warmup", "1", "--full", "--results"]).arg(scratch.results())).exits_with(0);
    outcome.assert_stdout(&["\noverhead of orchestrate: "]);
    let record = Record::only_one_in(&scratch.results());
    let overhead = record.only("overhead");
    assert!(overhead["request_ns"].as_u64().unwrap() > 0 && overhead["requests"] == 50, "{overhead}");
    let first = |kind: &str| record.0.iter().position(|entry| entry["entry"] == kind).unwrap();
    assert!(first("overhead") < first("launch"));
}
