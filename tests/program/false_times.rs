//! Engines whose time stamps are only a little wrong, in the default suite with its five blocks: short requests with early
//! times, and tokens that are stamped in groups. Their streamed requests have true stamps. Tests of larger errors are in
//! `tests/machine/false_claims.rs`.

use crate::support::run::{Run, run_default_suite};

const NAME: &str = "engine";
/// Requests of 1 to 22 ms.
const TIMES: &str = "--first-token-ns 1000000 --per-prompt-token-ns 20000 --per-token-ns 250000";

/// Measures one engine, with this fault, so no other engine shows how fast this machine is. A fixed number of warm-up requests
/// keeps the run short.
fn run_with_fault(fault: &str) -> Run {
    run_with(&format!("{TIMES} {fault}"))
}

fn run_with(settings: &str) -> Run {
    let run = run_default_suite(&[(NAME, settings)], &["--warmup", "4"]);
    assert_eq!(run.status(NAME), "exact");
    run
}

#[track_caller]
fn assert_contradicted(run: &Run, words: &str) {
    let contradictions = run.contradictions_of(NAME);
    assert!(contradictions.iter().any(|it| it.contains(words)), "{contradictions:?}");
}

#[test]
fn a_correct_engine_is_not_contradicted() {
    assert_eq!(run_with_fault("").contradictions_of(NAME), Vec::<&str>::new());
}

#[test]
fn times_halved_in_short_requests_are_found() {
    let run = run_with_fault("--fault halved_short_times");
    assert_contradicted(&run, "of its other requests: an overhead does not depend on the length");
}

#[test]
fn a_first_token_that_is_stamped_a_quarter_early_is_found() {
    assert_contradicted(&run_with_fault("--fault early_first_token"), "its last token is stamped");
}

#[test]
fn a_first_token_and_an_end_that_are_a_quarter_early_are_found() {
    assert_contradicted(&run_with_fault("--fault early_first_token_and_end"), "its clock leaves out");
}

#[test]
fn times_that_are_10_ms_early_in_every_request_are_found() {
    let times = "--first-token-ns 30000000 --per-token-ns 250000";
    let run = run_with(&format!("{times} --fault times_10_ms_early"));
    assert_contradicted(&run, "of every request");
    // An engine that begins 4 ms after the request leaves the same record as one whose times are 4 ms early.
    let run = run_with(&format!("{times} --start-ns 4000000"));
    assert_eq!(run.contradictions_of(NAME), Vec::<&str>::new());
}

#[test]
fn tokens_that_are_stamped_in_groups_of_four_are_found() {
    assert_contradicted(&run_with_fault("--fault grouped_times"), "stamps its tokens in `decode` in groups");
    // An engine with speculative decoding has the same times. It reports that only the times of chunks are exact.
    let run = run_with_fault("--fault grouped_times --stamp chunk");
    assert_eq!(run.contradictions_of(NAME), Vec::<&str>::new());
}
