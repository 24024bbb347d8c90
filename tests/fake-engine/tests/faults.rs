//! Tests that faults have the effects of their names. Tests of the engine without faults are in `healthy.rs`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod support;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};

use support::{EOS, Fake, GENERATE, HELLO, LOAD, SHUTDOWN, ids, iteration, times};

#[test]
fn streamed_ids_are_the_final_ids_unless_the_fault_changes_them() {
    for (fault, same) in [("", true), ("wrong_streamed_ids", false)] {
        let mut fake = Fake::with_fault(fault);
        fake.send(r#"{"id":1,"prompt":"a","max_new_tokens":3,"stream":true}"#);
        let tokens: Vec<Value> = (0..3).map(|_| fake.message()).collect();
        let generated = fake.message();
        let streamed: Vec<u64> = tokens.iter().map(|token| token["ids"][0].as_u64().unwrap()).collect();
        assert_eq!(streamed == ids(&generated), same, "{tokens:?} {generated}");
        let stamps: Vec<u64> = tokens.iter().map(|token| token["ns"].as_u64().unwrap()).collect();
        assert_eq!(stamps, times(&generated));
        assert!(tokens.iter().enumerate().all(|(index, token)| token["index"] == index && token["id"] == 1));
    }
}

#[test]
fn early_times_are_in_answers_without_a_stream_and_not_in_streamed_ones() {
    let settings = |fault: &str| {
        let durations =
            [("load_ns", 0), ("start_ns", 1000), ("first_token_ns", 4000), ("per_token_ns", 1000)];
        let mut settings = json!({ "fault": fault, "end_ns": 1000 });
        durations.iter().for_each(|(name, ns)| settings[name] = (*ns).into());
        settings
    };
    let times_and_end = |fault: &str, tokens: u64, stream: bool| {
        let mut fake = Fake::start(&settings(fault));
        fake.send(&json!({ "prompt": "a", "max_new_tokens": tokens, "stream": stream }).to_string());
        let mut answer = fake.message();
        while answer["type"] == "token" {
            answer = fake.message();
        }
        (times(&answer), iteration(&answer)["end_ns"].as_u64().unwrap())
    };
    let true_times = (vec![5000, 6000, 7000, 8000, 9000], 10_000);
    let expected = [
        ("halved_short_times", vec![3000, 3500, 4000, 4500, 5000], 5500),
        ("early_first_token", vec![4000, 6000, 7000, 8000, 9000], 10_000),
        ("early_first_token_and_end", vec![4000, 6000, 7000, 8000, 9000], 10_000),
        ("grouped_times", vec![5000, 5000, 5000, 5000, 9000], 10_000),
    ];
    for (fault, early_times, early_end) in expected {
        assert_eq!(times_and_end(fault, 5, false), (early_times, early_end), "{fault}");
        assert_eq!(times_and_end(fault, 5, true), true_times, "{fault}");
    }
    assert_eq!(times_and_end("early_first_token", 1, false), (vec![4000], 6000));
    assert_eq!(times_and_end("early_first_token_and_end", 1, false), (vec![4000], 4750));
    // Only short requests are affected.
    let mut slow = Fake::start(
        &json!({ "fault": "halved_short_times", "load_ns": 0, "first_token_ns": 50_000_000, "real_sleep": false }),
    );
    assert_eq!(times(&slow.ask(GENERATE))[0], 50_001_000);
}

#[test]
fn an_engine_that_exits_before_hello_writes_to_stderr() {
    let mut fake = Fake::with_fault("exits_before_hello");
    let mut stderr = String::new();
    fake.stderr.read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("libfake.so.4"), "{stderr}");
    assert_eq!((fake.line(), fake.close_stdin_and_wait().code()), (Vec::new(), Some(3)));
}

#[test]
fn hello_can_have_a_wrong_version_or_fail_or_be_invalid() {
    assert_eq!(Fake::with_fault("wrong_version").ask(HELLO)["protocol"], 999);
    let unavailable = Fake::with_fault("says_unavailable").ask(HELLO);
    assert_eq!((&unavailable["kind"], unavailable["hint"].is_string()), (&json!("unavailable"), true));
    let mut generate_only = Fake::with_fault("says_bad_request_to_hello");
    let kinds = [HELLO, LOAD].map(|line| generate_only.ask(line)["kind"].clone());
    assert_eq!(kinds, ["bad_request"; 2]);
    assert_eq!(ids(&generate_only.ask(GENERATE)).len(), 6);
    let mut garbage = Fake::with_fault("garbage");
    garbage.send(HELLO);
    let line = garbage.line();
    assert!(line.starts_with(b"{") && serde_json::from_slice::<Value>(&line).is_err());
}

#[test]
fn a_hanging_engine_reports_the_request_and_keeps_running() {
    let hanging = [
        ("never_answers", "before hello"),
        ("hangs_in_hello", "in hello"),
        ("hangs_in_load", "in load"),
        ("hangs_in_generate", "in generate"),
        ("ignores_shutdown", "after shutdown"),
    ];
    for (fault, moment) in hanging {
        let mut fake = Fake::with_fault(fault);
        for line in [HELLO, LOAD, GENERATE, SHUTDOWN] {
            fake.send(line);
        }
        assert_eq!(fake.stderr_line(), format!("fake: hangs {moment}\n"));
        // `hangs_in_hello` affects only hello, so that engine has obeyed `shutdown` and ended.
        if fault != "hangs_in_hello" {
            fake.stdin = None;
            assert!(fake.is_alive(), "{fault}");
        }
    }
    let mut fake = Fake::with_fault("ignores_shutdown");
    fake.stdin = None;
    assert_eq!(fake.stderr_line(), "fake: hangs after the end of stdin\n");
}

#[test]
fn sigterm_is_ignored_if_the_script_has_this_fault() {
    let mut fake = Fake::with_fault("ignores_sigterm");
    assert_eq!(fake.ask(HELLO)["type"], "hello");
    let status = std::fs::read_to_string(format!("/proc/{}/status", fake.child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    // Bit 14 is signal 15, SIGTERM.
    assert_ne!(u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << 14), 0, "{ignored}");
    fake.stdin = None;
    assert_eq!(fake.stderr_line(), "fake: hangs after the end of stdin\n");
}

#[test]
fn a_load_can_fail_exit_or_be_slow() {
    assert_eq!(Fake::with_fault("fails_in_load").ask(LOAD)["kind"], "model");
    let mut exits = Fake::with_fault("exits_in_load");
    exits.send(LOAD);
    assert_eq!((exits.line(), exits.child.wait().unwrap().code()), (Vec::new(), Some(3)));
    // The engine reports a load of two seconds with progress every 50 ms; without `real_sleep` it does not wait.
    let mut slow = Fake::start(&json!({ "fault": "slow_progress", "real_sleep": false }));
    slow.send(LOAD);
    for _ in 0..40 {
        assert_eq!(slow.message()["type"], "progress");
    }
    assert_eq!(slow.message()["load_ns"], 2_000_000_000_u64);
}

#[test]
fn the_engine_exits_at_the_requested_sample() {
    let cases = [
        (json!({ "fault": "exits_at_sample", "at": 2 }), Some(3), None),
        (json!({ "fault": "killed_at_sample", "at": 2 }), None, Some(11)),
        (json!({ "fault": "killed_at_sample", "at": 2, "signal": "KILL" }), None, Some(9)),
        (json!({ "fault": "aborts_at_sample", "at": 2 }), None, Some(6)),
    ];
    for (settings, code, signal) in cases {
        let mut fake = Fake::start(&settings);
        for _ in 0..2 {
            assert_eq!(ids(&fake.ask(GENERATE)).len(), 6, "{settings}");
        }
        fake.send(GENERATE);
        assert_eq!(fake.line(), b"", "{settings}");
        let status = fake.child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{settings}");
    }
}

#[test]
fn a_truncated_line_is_written_without_its_end() {
    let mut exits = Fake::with_fault("half_line_then_exits");
    exits.send(GENERATE);
    let line = exits.line();
    assert!(
        line.starts_with(b"{") && !line.ends_with(b"\n") && serde_json::from_slice::<Value>(&line).is_err()
    );
    assert_eq!(exits.child.wait().unwrap().code(), Some(3));
    let mut hangs = Fake::with_fault("half_line_then_hangs");
    hangs.send(GENERATE);
    assert_eq!(hangs.stderr_line(), "fake: hangs after half a line\n");
    let mut half = vec![0; line.len()];
    hangs.stdout.read_exact(&mut half).unwrap();
    assert!(half == line && hangs.is_alive());
}

#[test]
fn an_engine_that_closes_stdout_keeps_running() {
    let mut fake = Fake::with_fault("closes_stdout");
    fake.send(GENERATE);
    assert_eq!(fake.line(), b"");
    assert!(fake.is_alive());
}

#[test]
fn stray_output_precedes_the_answer_and_does_not_replace_it() {
    let mut fake = Fake::with_fault("stray_lines");
    fake.send(HELLO);
    let stray: Vec<Vec<u8>> = (0..3).map(|_| fake.line()).collect();
    assert!(stray.iter().all(|line| !line.starts_with(b"{")), "{stray:?}");
    assert_eq!(fake.message()["type"], "hello");

    let mut flood = Fake::start(&json!({ "fault": "many_stray_lines", "amount": 3 }));
    flood.send(GENERATE);
    assert!((0..3).all(|_| flood.line().starts_with(b"step ")));
    assert_eq!(ids(&flood.message()).len(), 6);

    let mut errors = Fake::start(&json!({ "fault": "stderr_flood", "amount": 3 }));
    assert_eq!(ids(&errors.ask(GENERATE)).len(), 6);
    assert!((0..3).all(|_| errors.stderr_line().contains("warning")));

    let mut huge = Fake::with_fault("huge_line");
    huge.send(GENERATE);
    assert!(huge.line().len() > 16 * 1024 * 1024);
    assert_eq!(ids(&huge.message()).len(), 6);
}

#[test]
fn answers_can_have_unknown_ids_or_be_repeated_or_fail() {
    let mut twice = Fake::with_fault("duplicate_answer");
    assert_eq!(twice.ask(GENERATE), twice.message());
    assert_eq!(Fake::with_fault("wrong_id").ask(r#"{"id":"a","prompt":"x"}"#)["id"], "another");
    let failed = Fake::with_fault("out_of_memory").ask(r#"{"id":"a","prompt":"x"}"#);
    assert_eq!((&failed["kind"], &failed["id"]), (&json!("out_of_memory"), &json!("a")));
}

#[test]
fn facts_can_be_wrong_one_at_a_time() {
    let right = Fake::with_fault("").ask(GENERATE);
    let answer_with = |fault: &str| Fake::with_fault(fault).ask(GENERATE);
    assert_eq!(ids(&answer_with("wrong_token_count")).len(), 5);
    assert_eq!((ids(&answer_with("missing_time")).len(), times(&answer_with("missing_time")).len()), (6, 5));
    assert_eq!(iteration(&answer_with("wrong_prompt_tokens"))["sequences"][0]["prompt_tokens"], 4);
    let early = answer_with("ends_at_early_eos");
    assert_eq!((ids(&early).len(), ids(&early)[3]), (4, EOS));
    assert_eq!(iteration(&early)["sequences"][0]["finish"], "eos");
    let middle = ids(&answer_with("continues_after_eos"));
    assert_eq!((middle.len(), middle[3]), (6, EOS));
    assert_eq!(ids(&answer_with("id_beyond_vocabulary"))[5], 1000);
    let backwards = answer_with("times_backwards");
    assert_eq!(times(&backwards)[5] + 1, iteration(&backwards)["start_ns"]);
    assert_eq!(times(&answer_with("times_in_the_future"))[5], times(&right)[5] + 3_600_000_000_000);
    assert_eq!(iteration(&answer_with("negative_end_ns"))["end_ns"], -1);
    assert_eq!(iteration(&answer_with("missing_end_ns")).get("end_ns"), None);
    let scored = Fake::with_fault("wrong_scores").ask(r#"{"type":"score","sequences":[[1,2,3]]}"#);
    assert_eq!(scored["logprobs"][0].as_array().unwrap().len(), 1);
    let mut nan = Fake::with_fault("nan_end_ns");
    nan.send(GENERATE);
    assert!(String::from_utf8(nan.line()).unwrap().contains(r#""end_ns":NaN,"#));
}

#[test]
fn early_times_are_half_of_the_true_ones_and_a_repeated_prompt_takes_a_twentieth_of_its_time() {
    let early = Fake::with_fault("early_times").ask(GENERATE);
    // The reported start, 2 us, is true: 1 us for the implicit load and 1 us of `start_ns`.
    assert_eq!(times(&early), [12_000, 13_000, 14_000, 15_000, 16_000, 17_000]);
    assert_eq!(iteration(&early)["end_ns"], 17_250);
    let early = Fake::with_fault("early_tokens").ask(GENERATE);
    assert_eq!((times(&early)[5], &iteration(&early)["end_ns"]), (17_000, &json!(32_500)));
    let mut cached = Fake::with_fault("repeats_at_once");
    let first_ns = [GENERATE, GENERATE, r#"{"prompt_ids":[9,9],"max_new_tokens":6}"#]
        .map(|line| times(&cached.ask(line))[0]);
    // Only the first answer includes the load of 1 us.
    assert_eq!(first_ns, [22_000, 2000, 21_000]);
}

#[test]
fn a_rate_can_be_reported_without_iterations() {
    let answer = Fake::with_fault("rate_without_facts").ask(GENERATE);
    assert_eq!((&answer["iterations"], answer["summary"].is_object()), (&json!([]), true));
}

#[test]
fn a_load_can_occupy_a_set_amount_of_memory() {
    let mut large = Fake::start(&json!({ "resident_bytes": 50_000_000 }));
    large.ask(LOAD);
    let status = std::fs::read_to_string(format!("/proc/{}/status", large.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(kilobytes > 48_000, "{resident}");
}

#[test]
fn a_nondeterministic_engine_changes_its_ids_for_the_same_request() {
    let mut fake = Fake::with_fault("nondeterministic");
    assert_ne!(ids(&fake.ask(GENERATE)), ids(&fake.ask(GENERATE)));
}

#[test]
fn the_grandchild_outlives_the_engine() {
    let mut fake = Fake::with_fault("leaves_grandchild");
    let orphan = fake.grandchild();
    assert!(fake.close_stdin_and_wait().success());
    assert_eq!(fake.line(), b"");
    assert!(orphan.is_alive());
}

#[test]
fn a_grandchild_with_stdout_keeps_the_pipe_open() {
    let mut fake = Fake::with_fault("grandchild_holds_stdout");
    let orphan = fake.grandchild();
    assert!(fake.close_stdin_and_wait().success());
    let stdout = std::fs::read_link(format!("/proc/{}/fd/1", orphan.0)).unwrap();
    assert!(stdout.to_string_lossy().starts_with("pipe:"), "{stdout:?}");
}
