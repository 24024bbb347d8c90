use protocol::{HelloFacts, Iteration, Loaded, Sequence, Stamp};

use super::*;
use crate::plan::scenario::Kind;
use crate::plan::{Case, Configuration, Prompt, Workload};
use crate::record::Launch;

const MS: u64 = 1_000_000;

fn plan(mode: Mode) -> Plan {
    let workload = Workload {
        scenario: "decode".into(),
        label: "decode".into(),
        kind: Kind::Warm,
        headline: crate::plan::MetricId::DECODE_RATE,
        prompt: Prompt::Tokens(8),
        shortened_from: None,
        max_new_tokens: 3,
        shape: Default::default(),
        ignore_eos: true,
        sampling: None,
        warmup: None,
        rounds: 2,
        scored_text: None,
    };
    let configurations = vec![Configuration::default()];
    Plan { mode, configurations, cases: vec![Case { configuration: 0, workload }], ..Plan::default() }
}

/// A launch: spawned in 20 ms, loaded after 100 ms, with these phases.
fn launch(phases: &[(&str, u64)]) -> Launch {
    let phases = phases.iter().map(|(name, ms)| Phase { name: name.to_string(), ns: ms * MS });
    Launch {
        hello: Some(HelloFacts::default()),
        hello_ns: Some(20 * MS),
        loaded: Some(Loaded { phases: phases.collect(), ..Loaded::default() }),
        loaded_ns: Some(100 * MS),
        ..Launch::default()
    }
}

/// A request that is sent 200 ms after the launch and answered `answer_ms` later. On the engine's clock it starts at 1 ms, and
/// its tokens come at `token_ms`.
fn sample(answer_ms: u64, token_ms: &[u64]) -> Sample {
    let times: Vec<u64> = token_ms.iter().map(|ms| ms * MS).collect();
    let end_ns = times.last().copied().unwrap_or(0);
    let sequence = Sequence { token_ns: Some(times), ..Sequence::default() };
    Sample {
        sent_ns: 200 * MS,
        answered_ns: (200 + answer_ms) * MS,
        iteration: Iteration { start_ns: MS, end_ns, sequences: vec![sequence] },
        ..Sample::default()
    }
}

fn requests<'a>(launch: &'a Launch, samples: &'a [Sample]) -> LaunchRequests<'a> {
    LaunchRequests {
        launch,
        first_of_launch: &samples[0],
        first: &samples[0],
        measured: samples.iter().collect(),
    }
}

fn account(mode: Mode, launch: &Launch, samples: &[Sample]) -> WallTime {
    WallTime::of(&plan(mode), &[requests(launch, samples)]).unwrap()
}

fn adds_up(wall_time: &WallTime) -> bool {
    wall_time.parts.iter().flatten().sum::<u64>() + wall_time.unattributed_ns == wall_time.total_ns
}

fn milliseconds(wall_time: &WallTime) -> [Option<f64>; PARTS.len()] {
    wall_time.parts.map(|part| part.map(|ns| ns as f64 / MS as f64))
}

#[test]
fn parts_are_the_reported_times_and_the_remainder_is_unattributed() {
    let phases =
        [("import torch", 30), ("weights", 25), ("compile kernels", 5), ("tokenizer", 3), ("device", 2)];
    let wall_time = account(Mode::Warm, &launch(&phases), &[sample(10, &[3, 4, 8]), sample(12, &[5, 6, 10])]);
    let expected = [20.0, 30.0, 25.0, 5.0, 5.0, 3.0, 5.0].map(Some);
    assert_eq!(milliseconds(&wall_time), expected);
    // 15 ms of the load without a phase, and 3 ms of each request outside its tokens.
    assert_eq!((wall_time.total_ns, wall_time.unattributed_ns), (111 * MS, 18 * MS));
    assert!(adds_up(&wall_time));
    assert_eq!((wall_time.launches, wall_time.requests, wall_time.shortened), (1, 2, 0));
    assert_eq!(wall_time.phases[3], Phase { name: "tokenizer".into(), ns: 3 * MS });
}

#[test]
fn mean_times_with_fractions_add_up_to_the_total() {
    for extra_ns in 0..7 {
        let mut samples = [sample(10, &[3, 4, 8]), sample(12, &[5, 6, 10]), sample(11, &[4, 6, 9])];
        samples[1].answered_ns += extra_ns;
        samples[2].iteration.start_ns += extra_ns;
        samples[0].iteration.sequences[0].token_ns.as_mut().unwrap()[0] += 2 * extra_ns;
        let wall_time = account(Mode::Warm, &launch(&[("weights", 50)]), &samples);
        assert!(adds_up(&wall_time), "{wall_time:?}");
    }
}

#[test]
fn reported_times_beyond_the_elapsed_time_are_scaled_down_and_counted() {
    // The phases overlap: they claim 160 ms of the 80 ms after `hello`.
    let overlapping = launch(&[("import", 80), ("weights", 80)]);
    let wall_time = account(Mode::Warm, &overlapping, &[sample(10, &[3, 4, 8])]);
    assert!(adds_up(&wall_time));
    assert_eq!(wall_time.shortened, 1);
    assert_eq!(wall_time.part(TimePart::Import), wall_time.part(TimePart::Weights));
    // The engine's clock counts 19 ms of a request that took 10.
    let wall_time = account(Mode::Warm, &launch(&[]), &[sample(10, &[11, 15, 20])]);
    assert!(adds_up(&wall_time));
    assert_eq!((wall_time.shortened, wall_time.total_ns), (1, 110 * MS));
}

#[test]
fn unreported_parts_are_unknown_and_their_time_is_unattributed() {
    let mut silent = launch(&[]);
    let only_the_end = HelloFacts { stamp: Stamp::End, ..HelloFacts::default() };
    (silent.hello, silent.hello_ns) = (Some(only_the_end), None);
    let wall_time = account(Mode::Warm, &silent, &[sample(10, &[8, 8, 8])]);
    assert_eq!(wall_time.parts, [None; PARTS.len()]);
    assert_eq!((wall_time.total_ns, wall_time.unattributed_ns), (110 * MS, 110 * MS));
}

#[test]
fn a_load_within_the_first_request_is_not_counted_twice() {
    let mut minimal = launch(&[("weights", 150)]);
    (minimal.hello_ns, minimal.loaded_ns) = (None, None);
    // The request waited in the pipe from the start. It was answered after 210 ms, and the engine counts 7 ms.
    let mut first = sample(10, &[3, 4, 8]);
    first.sent_ns = MS;
    for mode in [Mode::Warm, Mode::OneShot] {
        let wall_time = account(mode, &minimal, std::slice::from_ref(&first));
        assert_eq!(wall_time.total_ns, first.answered_ns, "{mode:?}");
        assert_eq!(wall_time.part(TimePart::Weights), Some(150 * MS));
        assert!(adds_up(&wall_time));
    }
}

#[test]
fn without_a_measured_request_there_is_no_account() {
    let (launch, first) = (launch(&[]), sample(10, &[3]));
    let requests =
        LaunchRequests { launch: &launch, first_of_launch: &first, first: &first, measured: vec![] };
    assert_eq!(WallTime::of(&plan(Mode::Warm), &[requests]), None);
}
