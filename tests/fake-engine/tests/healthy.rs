//! Tests that the engine without faults follows the protocol and its settings. Tests of faults are in `faults.rs`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod support;

use serde_json::json;

use support::{EOS, Fake, GENERATE, HELLO, LOAD, SHUTDOWN, command_of, ids, iteration, times};

#[test]
fn a_conversation_without_faults_is_valid() {
    let mut fake = Fake::start(&json!({}));
    for line in
        [HELLO, LOAD, GENERATE, r#"{"type":"score","sequences":[[1,2]]}"#, r#"{"type":"facts"}"#, "{}"]
    {
        fake.send(line);
        fake.valid_message();
    }
    let generated = fake.ask(GENERATE);
    // From the defaults of `start_ns`, `first_token_ns`, `per_token_ns` and `end_ns`.
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
    assert_eq!(fake.valid_message(), json!({ "type": "bye" }));
    assert!(fake.close_stdin_and_wait().success());
}

#[test]
fn an_invalid_line_is_answered_and_the_engine_continues() {
    let mut fake = Fake::start(&json!({}));
    for line in
        ["<", "", "[1]", r#"{"type":"dance"}"#, r#"{"type":5}"#, "{}", r#"{"prompt":"a","iterations":-1}"#]
    {
        assert_eq!(fake.ask(line)["kind"], "bad_request", "{line}");
    }
    assert_eq!(fake.ask(r#"{"id":3,"prompt":"a","max_new_tokens":99999}"#)["kind"], "context");
    let refused = fake.ask(r#"{"type":"load","model":"m","options":{"mood":1}}"#);
    assert_eq!(refused["message"], "unknown option `mood`");
    let first = fake.ask(GENERATE);
    assert_eq!(first["loaded"]["load_ns"], 1000);
    assert!(fake.close_stdin_and_wait().success());
}

#[test]
fn a_cancelled_request_is_answered_with_its_tokens_so_far() {
    let mut fake = Fake::start(&json!({ "per_token_ns": 10_000_000_000_u64 }));
    fake.send(r#"{"id":"long","prompt":"a","stream":true}"#);
    assert_eq!(fake.message()["type"], "token");
    let generated = fake.ask(r#"{"type":"cancel","id":"long"}"#);
    assert_eq!(iteration(&generated)["sequences"][0]["finish"], "cancelled");
    assert_eq!(ids(&generated).len(), 1);
}

#[test]
fn requests_with_ids_overlap_if_the_script_allows_concurrency() {
    let mut fake =
        Fake::start(&json!({ "capabilities": { "concurrency": 2 }, "per_token_ns": 10_000_000_000_u64 }));
    fake.send(r#"{"id":1,"prompt":"a","max_new_tokens":2,"stream":true}"#);
    assert_eq!(fake.message()["id"], 1);
    assert_eq!(fake.ask(r#"{"id":2,"prompt":"b","max_new_tokens":1}"#)["id"], 2);
    assert_eq!(fake.ask(r#"{"type":"cancel","id":1}"#)["id"], 1);
}

#[test]
fn settings_come_from_the_command_line_and_from_load_too() {
    let output = command_of(env!("CARGO_BIN_EXE_fake-engine"))
        .args(["--fault", "exits_before_hello", "--exit-code", "9"])
        .output();
    assert_eq!(output.unwrap().status.code(), Some(9));
    let output =
        command_of(env!("CARGO_BIN_EXE_fake-engine")).args(["--fault", "no_such_fault"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown fault `no_such_fault`"));
    let mut fake = Fake::start(&json!({ "version": "7" }));
    assert_eq!(fake.ask(HELLO)["version"], "7");
    let load =
        r#"{"type":"load","model":"m","threads":3,"options":{"fault":"wrong_id","vocabulary_size":5}}"#;
    let loaded = fake.ask(load);
    assert_eq!((&loaded["threads"], &loaded["vocabulary_size"]), (&json!(3), &json!(5)));
    assert_eq!(fake.ask(GENERATE)["id"], 999_999);
}

#[test]
fn a_text_engine_gives_chunks_and_no_ids() {
    let generated = Fake::start(&json!({ "output": "text" })).ask(GENERATE);
    let sequence = &iteration(&generated)["sequences"][0];
    assert_eq!((sequence["chunks"].as_array().unwrap().len(), &sequence["output_tokens"]), (6, &json!(6)));
    assert_eq!(sequence.get("output_ids"), None);
}

#[test]
fn continuing_a_partial_output_gives_the_same_tokens() {
    let all = ids(&Fake::with_fault("").ask(GENERATE));
    for tokens in 0..6 {
        let prompt = [&[1, 5, 7], &all[..tokens]].concat();
        let request = json!({ "prompt_ids": prompt, "max_new_tokens": 6 - tokens, "ignore_eos": true });
        // Another process must continue the output in the same way.
        assert_eq!(ids(&Fake::with_fault("").ask(&request.to_string())), all[tokens..], "{tokens}");
    }
}

#[test]
fn the_greedy_token_has_the_highest_log_probability() {
    let mut fake = Fake::with_fault("");
    let all = [&[1, 5, 7], &ids(&fake.ask(GENERATE))[..]].concat();
    let score = |fake: &mut Fake, sequences: &[Vec<u64>]| -> Vec<Vec<f64>> {
        let scored = fake.ask(&json!({ "type": "score", "sequences": sequences }).to_string());
        serde_json::from_value(scored["logprobs"].clone()).unwrap()
    };
    let logprobs = score(&mut fake, std::slice::from_ref(&all));
    let (prompt, output) = logprobs[0].split_at(2);
    assert!(prompt.iter().all(|&it| it < -7.0) && output == [-0.05; 6], "{logprobs:?}");
    // The sum of all probabilities is at most 1.
    let ends: Vec<Vec<u64>> = (0..1000).map(|id| [&all[..3], &[id]].concat()).collect();
    let sum: f64 = score(&mut fake, &ends).iter().map(|values| values[2].exp()).sum();
    assert!(0.95 < sum && sum <= 1.0, "{sum}");
    let noisy = || score(&mut Fake::start(&json!({ "score_noise": 0.1 })), std::slice::from_ref(&all));
    assert!(noisy() != logprobs && noisy() == noisy());
}

#[test]
fn wrong_tokens_begin_at_the_requested_position_and_request() {
    let right = ids(&Fake::with_fault("").ask(GENERATE));
    let mut wrong = Fake::start(&json!({ "wrong_from": 4, "at": 1 }));
    assert_eq!(ids(&wrong.ask(GENERATE)), right);
    let later = ids(&wrong.ask(GENERATE));
    assert_eq!(later[..4], right[..4]);
    assert!(later[4] != right[4] && later.iter().all(|&id| id > EOS), "{later:?}");
}
