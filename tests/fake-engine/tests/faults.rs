//! Each fault does what its name says, and without one the engine is beyond reproach.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

const HELLO: &str = r#"{"type":"hello","protocol":1}"#;
const LOAD: &str = r#"{"type":"load","model":"m"}"#;
const GENERATE: &str = r#"{"prompt_ids":[1,5,7],"max_new_tokens":6,"ignore_eos":true}"#;
const SHUTDOWN: &str = r#"{"type":"shutdown"}"#;

struct Fake {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(program: &str) -> Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "these tests are about the process, and kill it when they are done"
    )]
    let mut command = Command::new(program);
    command.env_remove("FAKE_ENGINE");
    command
}

impl Fake {
    fn start(settings: &Value) -> Self {
        let mut command = run(env!("CARGO_BIN_EXE_fake-engine"));
        command.env("FAKE_ENGINE", settings.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
        }
    }

    fn with(fault: &str) -> Self {
        Self::start(&json!({ "fault": fault }))
    }

    fn send(&mut self, line: &str) {
        let _ = self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes());
    }

    /// The next line of stdout as it is; empty at its end.
    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stdout.read_until(b'\n', &mut line).unwrap();
        line
    }

    /// The next line of stdout, which the protocol's own crate must understand.
    fn sound_message(&mut self) -> Value {
        let line = self.line();
        protocol::parse_message(&line).unwrap_or_else(|refused| panic!("{}", refused.message));
        serde_json::from_slice(&line).unwrap()
    }

    fn message(&mut self) -> Value {
        let line = self.line();
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
    }

    fn ask(&mut self, line: &str) -> Value {
        self.send(line);
        self.message()
    }

    fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    fn end(&mut self) -> ExitStatus {
        self.stdin = None;
        self.child.wait().unwrap()
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The last number of the next line on stderr, which announces a grandchild.
    fn grandchild(&mut self) -> Orphan {
        let line = self.error_line();
        assert!(line.contains("grandchild"), "{line}");
        Orphan(line.split_whitespace().last().unwrap().to_owned())
    }
}

/// A process that outlives its parent, and not this test.
struct Orphan(String);

impl Orphan {
    fn is_alive(&self) -> bool {
        Path::new("/proc").join(&self.0).exists()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = run("kill").args(["-KILL", &self.0]).status();
    }
}

fn iteration(generated: &Value) -> &Value {
    assert_eq!(generated["type"], "generated", "{generated}");
    &generated["iterations"][0]
}

fn ids(generated: &Value) -> Vec<u64> {
    let ids = iteration(generated)["sequences"][0]["output_ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

fn times(generated: &Value) -> Vec<u64> {
    let times = iteration(generated)["sequences"][0]["token_ns"].as_array().unwrap();
    times.iter().map(|ns| ns.as_u64().unwrap()).collect()
}

#[test]
fn a_conversation_without_a_fault_has_nothing_wrong_in_it() {
    let mut fake = Fake::start(&json!({}));
    for line in
        [HELLO, LOAD, GENERATE, r#"{"type":"score","sequences":[[1,2]]}"#, r#"{"type":"facts"}"#, "{}"]
    {
        fake.send(line);
        fake.sound_message();
    }
    let generated = fake.ask(GENERATE);
    assert_eq!(times(&generated), [21_000, 23_000, 25_000, 27_000, 29_000, 31_000]);
    assert_eq!(
        (&iteration(&generated)["start_ns"], &iteration(&generated)["end_ns"]),
        (&json!(1000), &json!(31_500))
    );
    assert!(ids(&generated).iter().all(|&id| (3..1000).contains(&id)), "{generated}");
    assert_eq!(generated.get("loaded"), None);
    assert_eq!(ids(&fake.ask(GENERATE)), ids(&generated));
    let batch =
        fake.ask(r#"{"id":"x","prompts_ids":[[1,5,7],[9]],"max_new_tokens":6,"iterations":2,"warmup":1}"#);
    assert_eq!((&batch["id"], ids(&batch)), (&json!("x"), ids(&generated)));
    assert_eq!(batch["iterations"][1]["sequences"][1]["prompt_tokens"], 1);
    assert_eq!(batch["warmup_iterations"].as_array().unwrap().len(), 1);
    let scored = fake.ask(r#"{"type":"score","sequences":[[1,2,3],[4,5]]}"#);
    assert_eq!((scored["logprobs"][0].as_array().unwrap().len(), &scored["type"]), (2, &json!("scored")));
    assert_eq!(fake.ask(r#"{"type":"facts"}"#)["vocabulary_size"], 1000);
    fake.send(SHUTDOWN);
    assert_eq!(fake.sound_message(), json!({ "type": "bye" }));
    assert!(fake.end().success());
}

#[test]
fn a_broken_line_is_answered_and_outlived() {
    let mut fake = Fake::start(&json!({}));
    for line in
        ["<", "", "[1]", r#"{"type":"dance"}"#, r#"{"type":5}"#, "{}", r#"{"prompt":"a","iterations":-1}"#]
    {
        assert_eq!(fake.ask(line)["kind"], "bad_request", "{line}");
    }
    assert_eq!(fake.ask(r#"{"id":3,"prompt":"a","max_new_tokens":9999}"#)["kind"], "context");
    assert_eq!(
        fake.ask(r#"{"type":"load","model":"m","options":{"mood":1}}"#)["message"],
        "unknown option `mood`"
    );
    let first = fake.ask(GENERATE);
    assert_eq!(first["loaded"]["load_ns"], 1000);
    assert!(fake.end().success());
}

#[test]
fn streamed_ids_are_the_final_ids_unless_the_fault_says_otherwise() {
    for (fault, same) in [("", true), ("wrong_streamed_ids", false)] {
        let mut fake = Fake::with(fault);
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
fn a_cancelled_request_is_answered_with_what_it_had() {
    let mut fake = Fake::start(&json!({ "per_token_ns": 10_000_000_000_u64 }));
    fake.send(r#"{"id":"long","prompt":"a","stream":true}"#);
    assert_eq!(fake.message()["type"], "token");
    let generated = fake.ask(r#"{"type":"cancel","id":"long"}"#);
    assert_eq!(iteration(&generated)["sequences"][0]["finish"], "cancelled");
    assert_eq!(ids(&generated).len(), 1);
}

#[test]
fn requests_with_ids_overlap_where_the_script_allows_it() {
    let mut fake =
        Fake::start(&json!({ "capabilities": { "concurrency": 2 }, "per_token_ns": 10_000_000_000_u64 }));
    fake.send(r#"{"id":1,"prompt":"a","max_new_tokens":2,"stream":true}"#);
    assert_eq!(fake.message()["id"], 1);
    assert_eq!(fake.ask(r#"{"id":2,"prompt":"b","max_new_tokens":1}"#)["id"], 2);
    assert_eq!(fake.ask(r#"{"type":"cancel","id":1}"#)["id"], 1);
}

#[test]
fn settings_come_from_the_command_line_and_from_load_too() {
    let output = run(env!("CARGO_BIN_EXE_fake-engine"))
        .args(["--fault", "exits_before_hello", "--exit-code", "9"])
        .output();
    assert_eq!(output.unwrap().status.code(), Some(9));
    let output = run(env!("CARGO_BIN_EXE_fake-engine")).args(["--fault", "hangs_in_bed"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown fault `hangs_in_bed`"));
    let mut fake = Fake::start(&json!({ "version": "7" }));
    assert_eq!(fake.ask(HELLO)["version"], "7");
    let load =
        r#"{"type":"load","model":"m","threads":3,"options":{"fault":"wrong_id","vocabulary_size":5}}"#;
    let loaded = fake.ask(load);
    assert_eq!((&loaded["threads"], &loaded["vocabulary_size"]), (&json!(3), &json!(5)));
    assert_eq!(fake.ask(GENERATE)["id"], 999_999);
}

#[test]
fn engine_that_exits_before_hello_leaves_words_on_stderr() {
    let mut fake = Fake::with("exits_before_hello");
    let mut said = String::new();
    fake.stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("libfake.so.4"), "{said}");
    assert_eq!((fake.line(), fake.end().code()), (Vec::new(), Some(3)));
}

#[test]
fn hello_can_be_wrong_in_every_way() {
    assert_eq!(Fake::with("wrong_version").ask(HELLO)["protocol"], 999);
    let unavailable = Fake::with("says_unavailable").ask(HELLO);
    assert_eq!((&unavailable["kind"], unavailable["hint"].is_string()), (&json!("unavailable"), true));
    let mut minimal = Fake::with("says_bad_request_to_hello");
    assert_eq!(
        (&minimal.ask(HELLO)["kind"], &minimal.ask(LOAD)["kind"]),
        (&json!("bad_request"), &json!("bad_request"))
    );
    assert_eq!(ids(&minimal.ask(GENERATE)).len(), 6);
    let mut garbage = Fake::with("garbage");
    garbage.send(HELLO);
    let line = garbage.line();
    assert!(line.starts_with(b"{") && serde_json::from_slice::<Value>(&line).is_err());
}

#[test]
fn engine_that_hangs_says_where_and_is_alive_until_it_is_killed() {
    let hanging = [
        ("never_answers", "before hello"),
        ("hangs_in_hello", "in hello"),
        ("hangs_in_load", "in load"),
        ("hangs_in_generate", "in generate"),
        ("ignores_shutdown", "after shutdown"),
    ];
    for (fault, moment) in hanging {
        let mut fake = Fake::with(fault);
        for line in [HELLO, LOAD, GENERATE, SHUTDOWN] {
            fake.send(line);
        }
        assert_eq!(fake.error_line(), format!("fake: hangs {moment}\n"));
        if fault != "hangs_in_hello" {
            fake.stdin = None;
            assert!(fake.is_alive(), "{fault}");
        }
    }
    let mut fake = Fake::with("ignores_shutdown");
    fake.stdin = None;
    assert_eq!(fake.error_line(), "fake: hangs after the end of stdin\n");
}

#[test]
fn engine_that_ignores_sigterm_has_it_ignored() {
    let mut fake = Fake::with("ignores_sigterm");
    assert_eq!(fake.ask(HELLO)["type"], "hello");
    let status = std::fs::read_to_string(format!("/proc/{}/status", fake.child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_ne!(u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << 14), 0, "{ignored}");
    fake.stdin = None;
    assert_eq!(fake.error_line(), "fake: hangs after the end of stdin\n");
}

#[test]
fn load_can_fail_exit_and_take_its_time() {
    assert_eq!(Fake::with("fails_in_load").ask(LOAD)["kind"], "model");
    let mut exits = Fake::with("exits_in_load");
    exits.send(LOAD);
    assert_eq!((exits.line(), exits.child.wait().unwrap().code()), (Vec::new(), Some(3)));
    // With sleeping off, the two seconds are only claimed.
    let mut slow = Fake::start(&json!({ "fault": "slow_progress", "real_sleep": false }));
    slow.send(LOAD);
    for _ in 0..40 {
        assert_eq!(slow.message()["type"], "progress");
    }
    assert_eq!(slow.message()["load_ns"], 2_000_000_000_u64);
}

#[test]
fn death_comes_at_the_sample_that_was_asked_for() {
    let deaths = [
        (json!({ "fault": "exits_at_sample", "at": 2 }), Some(3), None),
        (json!({ "fault": "killed_at_sample", "at": 2 }), None, Some(11)),
        (json!({ "fault": "killed_at_sample", "at": 2, "signal": "KILL" }), None, Some(9)),
        (json!({ "fault": "aborts_at_sample", "at": 2 }), None, Some(6)),
    ];
    for (settings, code, signal) in deaths {
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
fn half_a_line_is_half_a_line() {
    let mut exits = Fake::with("half_line_then_exits");
    exits.send(GENERATE);
    let line = exits.line();
    assert!(
        line.starts_with(b"{") && !line.ends_with(b"\n") && serde_json::from_slice::<Value>(&line).is_err()
    );
    assert_eq!(exits.child.wait().unwrap().code(), Some(3));
    let mut hangs = Fake::with("half_line_then_hangs");
    hangs.send(GENERATE);
    assert_eq!(hangs.error_line(), "fake: hangs after half a line\n");
    let mut half = vec![0; line.len()];
    hangs.stdout.read_exact(&mut half).unwrap();
    assert!(half == line && hangs.is_alive());
}

#[test]
fn engine_that_closes_stdout_lives_on() {
    let mut fake = Fake::with("closes_stdout");
    fake.send(GENERATE);
    assert_eq!(fake.line(), b"");
    assert!(fake.is_alive());
}

#[test]
fn noise_comes_before_the_answer_and_does_not_replace_it() {
    let mut chatter = Fake::with("chatter");
    chatter.send(HELLO);
    let stray: Vec<Vec<u8>> = (0..3).map(|_| chatter.line()).collect();
    assert!(stray.iter().all(|line| !line.starts_with(b"{")), "{stray:?}");
    assert_eq!(chatter.message()["type"], "hello");

    let mut flood = Fake::start(&json!({ "fault": "chatter_flood", "amount": 3 }));
    flood.send(GENERATE);
    assert!((0..3).all(|_| flood.line().starts_with(b"step ")));
    assert_eq!(ids(&flood.message()).len(), 6);

    let mut errors = Fake::start(&json!({ "fault": "stderr_flood", "amount": 3 }));
    assert_eq!(ids(&errors.ask(GENERATE)).len(), 6);
    assert!((0..3).all(|_| errors.error_line().contains("warning")));

    let mut huge = Fake::with("huge_line");
    huge.send(GENERATE);
    assert!(huge.line().len() > 16 * 1024 * 1024);
    assert_eq!(ids(&huge.message()).len(), 6);
}

#[test]
fn answers_can_be_for_nobody_or_come_twice_or_say_no() {
    let mut twice = Fake::with("duplicate_answer");
    assert_eq!(twice.ask(GENERATE), twice.message());
    assert_eq!(Fake::with("wrong_id").ask(r#"{"id":"a","prompt":"x"}"#)["id"], "somebody-else");
    let failed = Fake::with("out_of_memory").ask(r#"{"id":"a","prompt":"x"}"#);
    assert_eq!((&failed["kind"], &failed["id"]), (&json!("out_of_memory"), &json!("a")));
}

#[test]
fn facts_can_be_wrong_one_at_a_time() {
    let right = Fake::with("").ask(GENERATE);
    let with = |fault: &str| Fake::with(fault).ask(GENERATE);
    assert_eq!(ids(&with("wrong_token_count")).len(), 5);
    assert_eq!((ids(&with("missing_time")).len(), times(&with("missing_time")).len()), (6, 5));
    assert_eq!(iteration(&with("wrong_prompt_tokens"))["sequences"][0]["prompt_tokens"], 4);
    let early = with("eos_early");
    assert_eq!((ids(&early).len(), ids(&early)[3]), (4, 2));
    assert_eq!(iteration(&early)["sequences"][0]["finish"], "eos");
    let middle = ids(&with("eos_in_the_middle"));
    assert_eq!((middle.len(), middle[3]), (6, 2));
    assert_eq!(ids(&with("id_beyond_vocabulary"))[5], 1000);
    let backwards = with("times_backwards");
    assert_eq!(times(&backwards)[5] + 1, iteration(&backwards)["start_ns"]);
    assert_eq!(times(&with("times_in_the_future"))[5], times(&right)[5] + 3_600_000_000_000);
    assert_eq!(iteration(&with("negative_fact"))["end_ns"], -1);
    assert_eq!(iteration(&with("missing_fact")).get("end_ns"), None);
    let scored = Fake::with("wrong_scores").ask(r#"{"type":"score","sequences":[[1,2,3]]}"#);
    assert_eq!(scored["logprobs"][0].as_array().unwrap().len(), 1);
    let mut nan = Fake::with("nan_fact");
    nan.send(GENERATE);
    assert!(String::from_utf8(nan.line()).unwrap().contains(r#""end_ns":NaN,"#));
}

#[test]
fn lies_about_time_are_half_of_the_truth_and_a_repeated_prompt_takes_a_twentieth() {
    let early = Fake::with("early_times").ask(GENERATE);
    // A load in passing takes the first microsecond, and the start is true.
    assert_eq!(times(&early), [12_000, 13_000, 14_000, 15_000, 16_000, 17_000]);
    assert_eq!(iteration(&early)["end_ns"], 17_250);
    let early = Fake::with("early_tokens").ask(GENERATE);
    assert_eq!((times(&early)[5], &iteration(&early)["end_ns"]), (17_000, &json!(32_500)));
    let mut parrot = Fake::with("repeats_at_once");
    let first_ns = [GENERATE, GENERATE, r#"{"prompt_ids":[9,9],"max_new_tokens":6}"#]
        .map(|line| times(&parrot.ask(line))[0]);
    assert_eq!(first_ns, [22_000, 2000, 21_000]);
}

#[test]
fn a_rate_without_facts_has_no_iteration_and_memory_that_is_asked_for_is_held() {
    let boast = Fake::with("rate_without_facts").ask(GENERATE);
    assert_eq!((&boast["iterations"], boast["summary"].is_object()), (&json!([]), true));
    let mut fat = Fake::start(&json!({ "resident_bytes": 50_000_000 }));
    fat.ask(LOAD);
    let status = std::fs::read_to_string(format!("/proc/{}/status", fat.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(kilobytes > 48_000, "{resident}");
}

#[test]
fn the_nondeterministic_engine_gives_other_ids_to_the_same_request() {
    let mut fake = Fake::with("nondeterministic");
    assert_ne!(ids(&fake.ask(GENERATE)), ids(&fake.ask(GENERATE)));
}

#[test]
fn the_grandchild_outlives_the_engine() {
    let mut fake = Fake::with("leaves_grandchild");
    let orphan = fake.grandchild();
    assert!(fake.end().success());
    assert_eq!(fake.line(), b"");
    assert!(orphan.is_alive());
}

#[test]
fn the_grandchild_that_holds_stdout_keeps_the_pipe_open() {
    let mut fake = Fake::with("grandchild_holds_stdout");
    let orphan = fake.grandchild();
    assert!(fake.end().success());
    let held = std::fs::read_link(format!("/proc/{}/fd/1", orphan.0)).unwrap();
    assert!(held.to_string_lossy().starts_with("pipe:"), "{held:?}");
}

#[test]
fn a_text_engine_gives_chunks_and_no_ids() {
    let generated = Fake::start(&json!({ "output": "text" })).ask(GENERATE);
    let sequence = &iteration(&generated)["sequences"][0];
    assert_eq!((sequence["chunks"].as_array().unwrap().len(), &sequence["output_tokens"]), (6, &json!(6)));
    assert_eq!(sequence.get("output_ids"), None);
}

#[test]
fn what_goes_on_from_a_part_of_an_output_goes_on_as_the_output_did() {
    let whole = ids(&Fake::with("").ask(GENERATE));
    for place in 0..6 {
        let prompt = [&[1, 5, 7], &whole[..place]].concat();
        let request = json!({ "prompt_ids": prompt, "max_new_tokens": 6 - place, "ignore_eos": true });
        // Another process, with the same weights.
        assert_eq!(ids(&Fake::with("").ask(&request.to_string())), whole[place..], "{place}");
    }
}

#[test]
fn the_greedy_token_is_the_likeliest_by_far() {
    let mut fake = Fake::with("");
    let all = [&[1, 5, 7], &ids(&fake.ask(GENERATE))[..]].concat();
    let score = |fake: &mut Fake, sequences: &[Vec<u64>]| -> Vec<Vec<f64>> {
        let scored = fake.ask(&json!({ "type": "score", "sequences": sequences }).to_string());
        serde_json::from_value(scored["logprobs"].clone()).unwrap()
    };
    let logprobs = score(&mut fake, std::slice::from_ref(&all));
    let (prompt, output) = logprobs[0].split_at(2);
    assert!(prompt.iter().all(|&it| it < -7.0) && output == [-0.05; 6], "{logprobs:?}");
    // All ids together are no more than certain.
    let ends: Vec<Vec<u64>> = (0..1000).map(|id| [&all[..3], &[id]].concat()).collect();
    let sum: f64 = score(&mut fake, &ends).iter().map(|values| values[2].exp()).sum();
    assert!(0.95 < sum && sum <= 1.0, "{sum}");
    let noisy = || score(&mut Fake::start(&json!({ "score_noise": 0.1 })), std::slice::from_ref(&all));
    assert!(noisy() != logprobs && noisy() == noisy());
}

#[test]
fn wrong_tokens_begin_where_and_when_they_are_asked_to() {
    let right = ids(&Fake::with("").ask(GENERATE));
    let mut wrong = Fake::start(&json!({ "wrong_from": 4, "at": 1 }));
    assert_eq!(ids(&wrong.ask(GENERATE)), right);
    let later = ids(&wrong.ask(GENERATE));
    assert_eq!(later[..4], right[..4]);
    assert!(later[4] != right[4] && later.iter().all(|&id| id > 2), "{later:?}");
}
