//! Tests of wrong answers, the second part of the failure matrix in `failures.rs`: answers that break a rule, answers to
//! another request, answers with other work than requested, and impossible facts. Tests of false claims are in
//! `tests/machine/false_claims.rs`.

use crate::support::run::{FaultCase, assert_faults, run_with_healthy};

/// Faults that break a rule for answers, with one or more faults for each rule. A correct answer has 64 tokens.
const RULES: &[FaultCase] = &[
    // Each request gets one answer, with the request's id.
    ("no_id", "", "protocol", "warm-up 1", "`generated` has id none, expected `0`"),
    ("two_iterations", "", "wrong_output", "warm-up 1", "expected 1 iteration, got 2"),
    ("unrequested_warmup", "", "wrong_output", "warm-up 1", "expected no warm-up iterations, got 1"),
    ("no_sequence", "", "wrong_output", "warm-up 1", "expected 1 sequences, got 0"),
    ("says_cancelled", "", "protocol", "warm-up 1", "finished `cancelled`, and nothing was cancelled"),
    // Each id has one time.
    (
        "extra_time",
        "",
        "protocol",
        "warm-up 1",
        "expected 64 `token_ns`, one for each of `output_ids`, got 65",
    ),
    ("no_output", "", "protocol", "warm-up 1", "neither `output_ids` with `token_ns` nor `chunks`"),
    ("miscounted_chunks", "--output text", "protocol", "warm-up 1", "128 tokens, but `output_tokens` is 64"),
    // Times are in order: start < first token <= ... <= last token <= end.
    ("first_token_at_start", "", "protocol", "warm-up 1", "`token_ns[0]` 1000 lies outside 1000 to "),
    ("times_out_of_order", "", "protocol", "warm-up 1", "`token_ns[2]` 21000 lies outside "),
    ("ends_before_start", "", "protocol", "warm-up 1", "`end_ns` 999 lies before `start_ns` 1000"),
    ("ends_before_last_token", "", "protocol", "warm-up 1", "`token_ns[63]` 147000 lies outside "),
    // Streamed ids and times are those of the final answer. Only a requested stream is sent.
    ("streams_half", "", "protocol", "warm-up 2", "expected streamed token 1, got 2"),
    ("streams_unknown_sequence", "", "protocol", "warm-up 2", "a streamed token of iteration 0, sequence 7"),
    ("streams_other_times", "", "protocol", "warm-up 2", "was streamed with `ns`"),
    ("streams_unrequested", "", "protocol", "warm-up 1", "expected no `token` messages, got 64"),
    ("wrong_streamed_ids", "", "protocol", "warm-up 2", "the streamed ids are not the final ids"),
    // The output has the requested length.
    ("too_many_tokens", "", "wrong_output", "warm-up 1", "expected 64 tokens, got 65"),
    // Impossible numbers.
    (
        "more_cached_than_sent",
        "",
        "protocol",
        "warm-up 1",
        "`cached_prompt_tokens` 33 exceeds `prompt_tokens` 32",
    ),
    // Equal requests to a deterministic engine have equal answers.
    ("nondeterministic", "", "wrong_output", "warm-up 2", "other ids the second time"),
];

/// Faults in request 6 of a launch, counted from 0. It is the second sample, and the first sample is kept.
const LATER: &[FaultCase] = &[
    ("wrong_id", "--at 6", "protocol", "sample 2", "`generated` has id `999999`"),
    ("wrong_token_count", "--at 6", "wrong_output", "sample 2", "expected 64 tokens, got 63"),
    ("ends_at_early_eos", "--at 6", "wrong_output", "sample 2", "expected 64 tokens, got 33"),
    ("wrong_prompt_tokens", "--at 6", "wrong_output", "sample 2", "33, but 32 ids were sent"),
    ("id_beyond_vocabulary", "--at 6", "wrong_output", "sample 2", "token id 1000 lies outside"),
    ("missing_time", "--at 6", "protocol", "sample 2", "token_ns"),
    ("times_backwards", "--at 6", "protocol", "sample 2", "`token_ns[63]` 999 lies outside "),
    ("times_in_the_future", "--at 6", "protocol", "sample 2", "lies after the answer arrived"),
    ("nan_end_ns", "--at 6", "protocol", "sample 2", "end_ns"),
    ("negative_end_ns", "--at 6", "protocol", "sample 2", "end_ns"),
    ("missing_end_ns", "--at 6", "protocol", "sample 2", "end_ns"),
    // This engine does not support `ignore_eos`, which the scenario needs. So it gets no request.
    (
        "continues_after_eos",
        r#"--capabilities '{"ignore_eos":false}'"#,
        "unsupported",
        "load",
        "needs `ignore_eos`",
    ),
];

#[test]
fn an_answer_that_breaks_a_rule_is_a_row_that_names_the_rule() {
    assert_faults(RULES, &[]);
}

#[test]
fn a_wrong_answer_to_a_later_request_keeps_the_samples_before_it() {
    assert_faults(LATER, &[]);
}

/// A request for one token does not set `ignore_eos`, so the engine may report `eos`.
#[test]
fn an_output_that_finished_with_eos_must_end_with_an_eos_token() {
    let rule = ("says_eos", "", "wrong_output", "warm-up 1", "finished `eos` without an EOS token");
    assert_faults(&[rule], &["--new-tokens", "1"]);
}

#[test]
fn a_repeated_answer_is_refused_whenever_it_arrives() {
    let run = run_with_healthy(&[("twice", "--fault duplicate_answer")], &[]);
    // The copy arrives with the original answer, or as the answer to the next request.
    let when = run.record.failure_of("twice")["when"].as_str().unwrap();
    assert!(["warm-up 1", "warm-up 2"].contains(&when), "{when}");
    run.assert_samples("twice", 0).assert_failed("twice", "protocol", when);
}
