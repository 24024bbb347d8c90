//! Tests of the checks of an engine's clock: time that the clock leaves out, stamps that are too early, late
//! tokens, and groups.

use super::*;
use crate::record::Pass;
use protocol::{Speculation, Stamp};

#[test]
fn a_clock_that_leaves_time_out_is_reported_with_both_times() {
    let record = decode_record(|record| samples(record).for_each(|sample| sample.answered_ns += 100_000_000));
    let record = with_busy_cores(record);
    assert_excluded(&record, About::Clock, "leaves out 100 ms of a request in `decode`: it reports 1");
    let message = single_contradiction(&record).message;
    assert!(message.contains("bound 20.0 ms"), "{message}");
}

#[test]
fn delays_of_half_of_the_requests_are_not_reported() {
    let record = decode_record(|record| {
        for sample in samples(record).filter(|sample| sample.index % 2 == 0) {
            sample.answered_ns += 100_000_000;
        }
    });
    assert_eq!(contradictions_of(&with_busy_cores(record)), []);
}

/// A record of beacon with early times: `token_share` multiplies the times of tokens since the start of the request, `end_share`
/// the time of its end.
fn with_early_stamps(token_share: f64, end_share: f64, change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    with_busy_cores(decode_record(|record| {
        change(record);
        for sample in samples(record) {
            let iteration = &mut sample.iteration;
            let start_ns = iteration.start_ns;
            let earlier = |ns: u64, share: f64| start_ns + ((ns - start_ns) as f64 * share) as u64;
            let times = iteration.sequences[0].token_ns.as_mut().unwrap();
            times.iter_mut().for_each(|ns| *ns = earlier(*ns, token_share));
            iteration.end_ns = earlier(iteration.end_ns, end_share);
        }
    }))
}

#[test]
fn stamps_at_half_the_true_times_are_reported_with_and_without_an_early_end() {
    assert_excluded(&with_early_stamps(0.5, 1.0, |_| {}), About::Clock, "its stamps are too early");
    assert_excluded(&with_early_stamps(0.5, 0.5, |_| {}), About::Clock, "its clock leaves out");
    assert_eq!(contradictions_of(&with_early_stamps(0.99, 0.99, |_| {})), []);
}

#[test]
fn a_clock_that_leaves_out_half_of_short_requests_is_reported_if_another_engine_is_correct() {
    // Requests of about 6 ms: half of a request is below the fixed bounds.
    let shorter = |record: &mut RunRecord| {
        for sample in &mut record.samples {
            let iteration = &mut sample.iteration;
            let times = iteration.sequences[0].token_ns.as_mut().unwrap();
            times.iter_mut().for_each(|ns| *ns = iteration.start_ns + (*ns - iteration.start_ns) / 20);
            iteration.end_ns = times[times.len() - 1] + 5_000;
            sample.answered_ns = sample.sent_ns + iteration.end_ns + 50_000;
        }
    };
    assert_excluded(&with_early_stamps(0.5, 0.5, shorter), About::Clock, "its clock leaves out 3");
    assert_eq!(contradictions_of(&with_early_stamps(1.0, 1.0, shorter)), []);
    // One request without missing time shows that the clock can be correct.
    let one_correct = with_early_stamps(0.5, 0.5, |record| {
        shorter(record);
        samples(record).take(1).for_each(|it| it.answered_ns = it.sent_ns + it.iteration.end_ns / 2 + 50_000);
    });
    assert_eq!(contradictions_of(&one_correct), []);
    // If the machine delays every engine, no claim is false.
    let slow = with_early_stamps(0.5, 0.5, |record| {
        shorter(record);
        record.samples.iter_mut().for_each(|sample| sample.answered_ns += 3_000_000);
    });
    assert_eq!(contradictions_of(&slow), []);
}

#[test]
fn an_overhead_of_every_request_is_reported_unless_correct_engines_have_as_much() {
    let with_overheads = |own_ms: u64, other_ms: u64| {
        with_busy_cores(record_of_blocks(5, &["ttft", "decode"], |record| {
            record.samples.iter_mut().for_each(|sample| sample.answered_ns += other_ms * 1_000_000);
            samples(record).for_each(|sample| sample.answered_ns += (own_ms - other_ms) * 1_000_000);
        }))
    };
    assert_excluded(
        &with_overheads(10, 0),
        About::Clock,
        "its clock leaves out at least 10.1 ms of every request",
    );
    assert_eq!(contradictions_of(&with_overheads(4, 0)), []);
    // The machine delays every engine.
    assert_eq!(contradictions_of(&with_overheads(10, 4)), []);
}

#[test]
fn late_streamed_tokens_are_reported_even_if_only_the_first_is_late() {
    let late = |first_ns, median_ns| {
        decode_record(|record| {
            for sample in samples(record).filter(|it| it.kind == RequestKind::Warmup && it.index == 1) {
                sample.late = Some(Late { first_ns, median_ns });
            }
        })
    };
    assert_excluded(&late(0, 60_000_000), About::Clock, "arrive 60.0 ms after their stamps in `decode`");
    assert_excluded(&late(60_000_000, 0), About::Clock, "tokens arrive 60.0 ms");
    assert_eq!(contradictions_of(&late(900_000, 500_000)), []);
    assert_eq!(contradictions_of(&late(-5, i64::MIN)), []);
    // One or two delayed streamed requests prove nothing about the engine.
    let mut few = late(60_000_000, 60_000_000);
    samples(&mut few).filter(|it| it.late.is_some()).skip(2).for_each(|it| it.late = None);
    assert_eq!(contradictions_of(&few), []);
}

/// Whether the check reports requests without time between their tokens. They take `longer_ns` longer than a request for one
/// token.
fn are_stamps_reported(longer_ns: u64, speculation: Speculation) -> bool {
    let record = decode_record(|record| {
        record.header.plan.cases.iter_mut().for_each(|case| case.workload.shape.speculation = speculation);
        let case = record.header.plan.cases_of(BEACON_INDEX)[0];
        let launch = record.launches.iter().find(|it| it.configuration == BEACON_INDEX).unwrap().launch;
        record.passes.push(Pass { launch, case, one_token_ns: Some(10_000_000), ..Pass::default() });
        for sample in measured_samples(record) {
            sample.answered_ns = sample.sent_ns + 10_000_000 + longer_ns;
            let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
            let last = times[times.len() - 1];
            times.fill(last);
        }
    });
    contradictions(&record).iter().any(|it| it.message.contains("the stamps are wrong"))
}

#[test]
fn tokens_stamped_together_are_reported_beyond_the_noise_of_a_machine() {
    assert!(are_stamps_reported(100_000_000, Speculation::Off));
    assert!(!are_stamps_reported(15_000_000, Speculation::Off));
    // All tokens may be accepted drafts of one step.
    assert!(!are_stamps_reported(100_000_000, Speculation::PromptLookup));
}

/// Whether the check reports beacon if it stamps its tokens in groups of `tokens`. A gap inside a group is `share` of the mean
/// gap.
fn are_groups_reported(tokens: usize, share: f64, stamp: Stamp, is_busy: bool) -> bool {
    let record = with_busy_cores(decode_record(|record| {
        launches(record).for_each(|launch| launch.hello.get_or_insert_default().stamp = stamp);
        for sample in samples(record) {
            sample.waited_ns = Some(if is_busy { sample.elapsed_ns() } else { 0 });
            let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
            let (first, count) = (times[0], times.len());
            let mean_ns = (times[count - 1] - first) as f64 / (count - 1) as f64;
            for (index, ns) in times.iter_mut().enumerate() {
                let (group, in_group) = (index / tokens, index % tokens);
                let since_first = (group * tokens) as f64 + in_group as f64 * share;
                *ns = first + (since_first * mean_ns) as u64;
            }
        }
    }));
    let contradictions = contradictions_of(&record);
    contradictions.iter().any(|it| it.message.contains("in groups"))
}

#[test]
fn tokens_stamped_in_groups_are_reported_unless_the_engine_stamps_chunks() {
    for tokens in [2, 3, 4, 8] {
        for is_busy in [false, true] {
            assert!(are_groups_reported(tokens, 0.0, Stamp::Token, is_busy), "{tokens}");
            assert!(are_groups_reported(tokens, 0.01, Stamp::Token, is_busy), "{tokens}");
            // Speculative decoding leaves the same times.
            assert!(!are_groups_reported(tokens, 0.0, Stamp::Chunk, is_busy), "{tokens}");
        }
    }
}

#[test]
fn tokens_in_groups_are_no_contradiction_in_requests_with_drafts() {
    let record = |speculation| {
        with_busy_cores(decode_record(|record| {
            record
                .header
                .plan
                .cases
                .iter_mut()
                .for_each(|case| case.workload.shape.speculation = speculation);
            for sample in samples(record) {
                let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
                let all = times.clone();
                times.iter_mut().enumerate().for_each(|(index, ns)| *ns = all[index / 4 * 4]);
            }
        }))
    };
    let groups =
        |kind| contradictions_of(&record(kind)).iter().filter(|it| it.message.contains("in groups")).count();
    assert_eq!((groups(Speculation::Off), groups(Speculation::PromptLookup)), (1, 0));
}

#[test]
fn an_engine_that_pauses_after_every_fourth_token_is_not_reported() {
    assert!(!are_groups_reported(4, 0.3, Stamp::Token, false));
    assert!(!are_groups_reported(1, 0.0, Stamp::Token, false));
    // On a busy machine, a scheduler pauses an engine too.
    assert_eq!(
        [false, true].map(|is_busy| are_groups_reported(4, 0.15, Stamp::Token, is_busy)),
        [true, false]
    );
}
