//! The rules for every answer: an engine that breaks one of them, and the resulting row. Engines that exit or hang are in
//! `failures.rs`, answers to another request in `failures_answers.rs`, false claims in `liars.rs`.

use serde_json::Value;

use crate::support::record::Record;
use crate::support::{Scratch, fake_engine, finish};

/// A fault, settings of the fake engine, and the failure: kind, time, words.
type Rule = (&'static str, &'static [&'static str], &'static str, &'static str, &'static str);

const TEXT: &[&str] = &["--output", "text"];

/// One or more cases for each rule, in the order of the rules. An answer without other faults has 64 tokens.
const RULES: &[Rule] = &[
    // One answer per id.
    ("no_id", &[], "protocol", "warm-up 1", "`generated` has id none, expected `0`"),
    ("two_iterations", &[], "wrong_output", "warm-up 1", "expected 1 iteration, got 2"),
    ("unasked_warmup", &[], "wrong_output", "warm-up 1", "expected no warm-up iterations, got 1"),
    ("no_sequence", &[], "wrong_output", "warm-up 1", "expected 1 sequences, got 0"),
    ("says_cancelled", &[], "protocol", "warm-up 1", "finished `cancelled`, and nothing was cancelled"),
    // As many times as ids.
    ("extra_time", &[], "protocol", "warm-up 1", "64 `output_ids` and 65 `token_ns`"),
    ("no_output", &[], "protocol", "warm-up 1", "neither `output_ids` with `token_ns` nor `chunks`"),
    ("miscounted_chunks", TEXT, "protocol", "warm-up 1", "`chunks` of 128 tokens and 64 `output_tokens`"),
    // start < first <= ... <= last <= end.
    ("first_token_at_start", &[], "protocol", "warm-up 1", "`token_ns[0]` 1000 lies outside 1000 to "),
    ("times_out_of_order", &[], "protocol", "warm-up 1", "`token_ns[2]` 21000 lies outside "),
    ("ends_before_start", &[], "protocol", "warm-up 1", "`end_ns` 999 lies before `start_ns` 1000"),
    ("ends_before_last_token", &[], "protocol", "warm-up 1", "`token_ns[63]` 147000 lies outside "),
    // Streamed ids are the final ids, with the final times, where a stream was requested.
    ("streams_half", &[], "protocol", "warm-up 2", "expected streamed token 1, got 2"),
    ("streams_to_nobody", &[], "protocol", "warm-up 2", "a streamed token of iteration 0, sequence 7"),
    ("streams_other_times", &[], "protocol", "warm-up 2", "was streamed with `ns`"),
    ("streams_unasked", &[], "protocol", "warm-up 1", "expected no `token` messages, got 64"),
    // The output has the requested length.
    ("too_many_tokens", &[], "wrong_output", "warm-up 1", "expected 64 tokens, got 65"),
    // Impossible numbers.
    (
        "more_cached_than_sent",
        &[],
        "protocol",
        "warm-up 1",
        "`cached_prompt_tokens` 33 of 32 `prompt_tokens`",
    ),
];

#[test]
fn an_invalid_answer_is_a_row_that_names_the_broken_rule() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    for (fault, settings, ..) in RULES {
        command.arg("-e").arg(scratch.faulty(fault, settings));
    }
    let asked = ["--scenario", "decode", "--blocks", "1", "--iterations", "1", "--warmup", "2"];
    command.arg("-e").arg(fake_engine()).args(asked).args(["--timeout", "20", "--json", "-"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    scratch.assert_nothing_lives();
    assert_eq!(outcome.code, Some(4), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let record = Record::only_one_in(&scratch.results());
    for (fault, _, kind, when, words) in RULES {
        let failure = &case_of(&report, fault)["failure"];
        assert_eq!(
            (&failure["kind"], &failure["when"]),
            (&(*kind).into(), &(*when).into()),
            "{fault}: {failure}"
        );
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains(words), "{fault}: `{message}` does not say `{words}`");
        assert_eq!(record.samples_of(fault).len(), 0, "{fault}");
    }
    assert_eq!(case_of(&report, "fake-engine")["samples"], 1);
}

/// With one token, a request does not ask to ignore EOS.
#[test]
fn an_output_that_finished_with_eos_must_end_with_an_eos_token() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.faulty("says_eos", &[])).args(["--scenario", "decode", "--blocks", "1"]);
    command.args(["--max-new-tokens", "1", "--json", "-", "--results"]).arg(scratch.results());
    let report: Value = serde_json::from_str(&finish(&mut command).stdout).unwrap();
    let failure = &case_of(&report, "says_eos")["failure"];
    assert_eq!(failure["kind"], "wrong_output", "{failure}");
    assert_eq!(failure["message"], "finished `eos` without an EOS token");
}

#[test]
fn the_overhead_is_measured_before_the_blocks_and_reported() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(fake_engine()).args(["--scenario", "ttft", "--blocks", "1", "--iterations", "1"]);
    let outcome = finish(command.args(["--warmup", "1", "--results"]).arg(scratch.results()));
    scratch.assert_nothing_lives();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.assert_stdout(&["\noverhead of orchestrate: "]);
    let record = Record::only_one_in(&scratch.results());
    let [overhead] = record.entries("overhead")[..] else { panic!("{record:?}") };
    assert!(overhead["request_ns"].as_u64().unwrap() > 0 && overhead["requests"] == 50, "{overhead}");
    let first = |kind: &str| record.0.iter().position(|entry| entry["entry"] == kind).unwrap();
    assert!(first("overhead") < first("launch"));
}

fn case_of<'a>(report: &'a Value, label: &str) -> &'a Value {
    let cases = report["cases"].as_array().unwrap();
    let case = cases.iter().find(|case| case["engine"]["label"] == label);
    case.unwrap_or_else(|| panic!("no row of `{label}` in {report}"))
}
