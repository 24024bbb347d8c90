//! The part of the failure matrix (`failures.rs`) with wrong answers: to another request, with other work, or with
//! impossible facts. The rules for every answer are in `verify.rs`.

use crate::support::failures::{SECOND_SAMPLE, fails, measured, run};

// Answers to another request.

#[test]
fn a_repeated_answer_is_refused_whenever_it_arrives() {
    let run = run("duplicate_answer", &[], &[]);
    let (kind, when) = (&run.failure()["kind"], run.failure()["when"].as_str().unwrap());
    assert_eq!(kind, "protocol", "{}", run.failure());
    // With its original, or as the answer to the next request.
    let whens = ["warm-up 1", "warm-up 2"];
    assert!(whens.contains(&when), "{}", run.failure());
    run.agree("protocol", when).kept(0);
}

#[test]
fn an_answer_with_another_request_id_is_refused() {
    fails("wrong_id", SECOND_SAMPLE, "protocol", "sample 2", "`generated` has id `999999`").kept(1);
}

// Wrong work.

#[test]
fn an_engine_that_gives_fewer_tokens_fails_with_wrong_output() {
    fails("wrong_token_count", SECOND_SAMPLE, "wrong_output", "sample 2", "expected 64 tokens, got 63")
        .kept(1);
}

#[test]
fn an_engine_that_stops_at_eos_despite_ignore_eos_fails_with_wrong_output() {
    fails("eos_early", SECOND_SAMPLE, "wrong_output", "sample 2", "expected 64 tokens, got 33").kept(1);
}

#[test]
fn an_ignored_eos_in_the_middle_is_an_ordinary_token() {
    measured("eos_in_the_middle", &[]).without_warning();
}

#[test]
fn an_engine_that_cannot_ignore_eos_is_a_row_without_requests() {
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
        "`prompt_tokens` 33 is not the number of ids sent, 32",
    )
    .kept(1);
}

#[test]
fn a_token_id_outside_the_vocabulary_is_refused() {
    fails("id_beyond_vocabulary", SECOND_SAMPLE, "wrong_output", "sample 2", "token id 1000 lies outside")
        .kept(1);
}

#[test]
fn a_deterministic_engine_fails_when_equal_requests_give_other_ids() {
    let run = run("nondeterministic", &[], &["--warmup", "2"]);
    run.agree("wrong_output", "warm-up 2").kept(0);
    assert!(run.failure()["message"].as_str().unwrap().contains("other ids the second time"));
}

#[test]
fn an_engine_that_is_not_deterministic_may_give_other_ids() {
    measured("nondeterministic", &["--deterministic", "false"]).without_warning();
}

#[test]
fn streamed_ids_must_be_those_of_the_answer() {
    fails("wrong_streamed_ids", &[], "protocol", "warm-up 2", "the streamed ids are not the final ids")
        .kept(0);
}

#[test]
fn a_fault_in_an_unused_request_fails_no_run() {
    measured("wrong_scores", &[]).without_warning();
}

// Wrong facts.

#[test]
fn a_missing_time_is_refused() {
    fails("missing_time", SECOND_SAMPLE, "protocol", "sample 2", "token_ns").kept(1);
}

#[test]
fn decreasing_token_times_are_refused() {
    fails("times_backwards", SECOND_SAMPLE, "protocol", "sample 2", "`token_ns[63]` 999 lies outside ")
        .kept(1);
}

#[test]
fn token_times_after_the_answer_are_refused() {
    fails("times_in_the_future", SECOND_SAMPLE, "protocol", "sample 2", "lies after the answer arrived")
        .kept(1);
}

#[test]
fn invalid_or_missing_facts_are_refused_by_name() {
    fails("nan_fact", SECOND_SAMPLE, "protocol", "sample 2", "end_ns").kept(1);
    fails("negative_fact", SECOND_SAMPLE, "protocol", "sample 2", "end_ns").kept(1);
    fails("missing_fact", SECOND_SAMPLE, "protocol", "sample 2", "end_ns").kept(1);
}
