use protocol::{Chunk, HelloFacts, Iteration, Sequence, Stamp};

use super::*;
use crate::record::{Launch, Sample};

pub const MS: u64 = 1_000_000;
pub const NO_VALUES: &[f64] = &[];

/// A sequence of an engine that gives ids. Its tokens come at these milliseconds of the engine's clock.
pub fn sequence(prompt_tokens: u32, token_ms: &[u64]) -> Sequence {
    Sequence {
        prompt_tokens,
        output_ids: Some(vec![7; token_ms.len()]),
        token_ns: Some(token_ms.iter().map(|ms| ms * MS).collect()),
        ..Sequence::default()
    }
}

fn chunk(ms: u64, tokens: Option<u32>) -> Chunk {
    Chunk { ns: ms * MS, text: "x".into(), tokens }
}

/// A request from 1 ms to 51 ms on the engine's clock. It was sent 2,000 ms after the start of the process and answered 60 ms
/// later.
fn sample(sequences: Vec<Sequence>) -> Sample {
    Sample {
        sent_ns: 2000 * MS,
        answered_ns: 2060 * MS,
        iteration: Iteration { start_ns: MS, end_ns: 51 * MS, sequences },
        peak_resident_bytes: Some(123),
        ..Sample::default()
    }
}

fn launch(stamp: Stamp) -> Launch {
    Launch {
        hello: Some(HelloFacts { stamp, ..HelloFacts::default() }),
        loaded_ns: Some(1500 * MS),
        ..Launch::default()
    }
}

fn values(name: &str, sample: &Sample, launch: &Launch, kind: Kind, mode: Mode) -> Vec<f64> {
    (named(name).unwrap().of)(
        &Observation::without_record(sample, launch, kind, mode).with_first(Some(sample)),
    )
}

fn warm_values(name: &str, sequences: Vec<Sequence>) -> Vec<f64> {
    values(name, &sample(sequences), &launch(Stamp::Token), Kind::Warm, Mode::Warm)
}

#[test]
fn every_scenario_is_compared_by_a_metric_of_the_table() {
    for scenario in crate::plan::scenario::SCENARIOS {
        assert_eq!(by_id(scenario.headline).id, scenario.headline, "{}", scenario.name);
    }
}

#[test]
fn every_metric_constant_is_in_the_table_and_no_name_is_there_twice() {
    for &id in MetricId::NAMED {
        assert_eq!(by_id(id).id, id);
    }
    for (index, metric) in METRICS.iter().enumerate() {
        assert_eq!(metric.index(), Some(index), "`{}` is in METRICS twice", metric.name());
    }
}

#[test]
fn the_first_run_is_the_time_of_the_first_request() {
    let (later, launch) = (sample(vec![sequence(100, &[11])]), launch(Stamp::Token));
    let first = Sample { sent_ns: 1600 * MS, answered_ns: 1900 * MS, ..later.clone() };
    let first_run = |first, mode| {
        let observed = Observation::without_record(&later, &launch, Kind::Warm, mode).with_first(first);
        (named("first_run").unwrap().of)(&observed)
    };
    assert_eq!(first_run(Some(&first), Mode::Warm), [300e6]);
    assert_eq!(first_run(Some(&first), Mode::OneShot), [1900e6]);
    assert_eq!(first_run(None, Mode::Warm), NO_VALUES);
}

#[test]
fn one_sequence_gives_the_values_computed_by_hand() {
    // 100 prompt tokens from 1 ms, the start, to 11 ms; then gaps of 10, 10 and 20 ms.
    let observed = || vec![sequence(100, &[11, 21, 31, 51])];
    assert_eq!(warm_values("first_token", observed()), [10e6]);
    assert_eq!(warm_values("inter_token", observed()), [10e6, 10e6, 20e6]);
    assert_eq!(warm_values("prefill_rate", observed()), [10_000.0]);
    assert_eq!(warm_values("decode_rate", observed()), [75.0]);
    assert_eq!(warm_values("throughput", observed()), [80.0]);
    assert_eq!(warm_values("total", observed()), [60e6]);
    assert_eq!(warm_values("load", observed()), [1500e6]);
    assert_eq!(warm_values("peak_memory", observed()), [123.0]);
}

#[test]
fn a_batch_has_one_first_token_for_each_sequence_and_one_rate_for_all() {
    let observed = || vec![sequence(30, &[11, 21, 31]), sequence(50, &[21, 31, 41])];
    assert_eq!(warm_values("first_token", observed()), [10e6, 20e6]);
    assert_eq!(warm_values("inter_token", observed()), [10e6; 4]);
    // 80 prompt tokens in the 20 ms until both sequences had a token; 4 later tokens between 11 and 41 ms.
    assert_eq!(warm_values("prefill_rate", observed()), [4000.0]);
    assert_eq!(warm_values("decode_rate", observed()), [4.0 * 1e9 / 30e6]);
    assert_eq!(warm_values("throughput", observed()), [120.0]);
}

#[test]
fn cold_start_belongs_to_the_first_request_of_a_launch() {
    let launch = launch(Stamp::Token);
    // The answer comes 2,060 ms after the start of the process, and 40 ms after the first token.
    let first = sample(vec![sequence(16, &[11])]);
    assert_eq!(values("cold_start", &first, &launch, Kind::Launch, Mode::Warm), [2020e6]);
    assert_eq!(values("cold_start", &first, &launch, Kind::Warm, Mode::Warm), NO_VALUES);
    assert_eq!(values("cold_start", &first, &launch, Kind::Warm, Mode::OneShot), [2020e6]);
    let of_files = Launch { files_bytes: Some(4_040_000_000), ..launch.clone() };
    assert_eq!(values("load_rate", &first, &of_files, Kind::Launch, Mode::Warm), [2e9]);
    assert_eq!(values("load_rate", &first, &launch, Kind::Launch, Mode::Warm), NO_VALUES);
    let second = Sample { index: 1, ..first };
    assert_eq!(values("cold_start", &second, &launch, Kind::Launch, Mode::Warm), NO_VALUES);
}

#[test]
fn a_cold_request_has_no_prefill_rate() {
    let first = sample(vec![sequence(16, &[11])]);
    assert_eq!(values("prefill_rate", &first, &launch(Stamp::Token), Kind::Launch, Mode::Warm), NO_VALUES);
    assert_eq!(values("first_token", &first, &launch(Stamp::Token), Kind::Launch, Mode::Warm), [10e6]);
}

#[test]
fn the_total_time_of_a_one_shot_request_starts_with_its_process() {
    let sample = sample(vec![sequence(16, &[11])]);
    assert_eq!(values("total", &sample, &launch(Stamp::Token), Kind::Warm, Mode::OneShot), [2060e6]);
}

#[test]
fn stamps_of_chunks_give_rates_but_no_inter_token_latency() {
    let sample = sample(vec![sequence(16, &[11, 11, 31, 31, 31])]);
    let values_of = |name| values(name, &sample, &launch(Stamp::Chunk), Kind::Warm, Mode::Warm);
    assert_eq!(values_of("inter_token"), NO_VALUES);
    assert_eq!(values_of("first_token"), [10e6]);
    // After the first stamp, three tokens came in 20 ms; the first chunk had two.
    assert_eq!(values_of("decode_rate"), [150.0]);
}

#[test]
fn stamps_at_the_end_give_only_values_of_the_whole_request() {
    let sample = sample(vec![sequence(16, &[51, 51, 51])]);
    let values_of = |name| values(name, &sample, &launch(Stamp::End), Kind::Launch, Mode::OneShot);
    for name in ["first_token", "inter_token", "prefill_rate", "decode_rate", "cold_start"] {
        assert_eq!(values_of(name), NO_VALUES, "{name}");
    }
    assert_eq!(values_of("throughput"), [60.0]);
    assert_eq!(values_of("total"), [2060e6]);
}

#[test]
fn an_engine_that_gives_text_is_measured_by_its_chunks() {
    let text = |chunks: Vec<Chunk>, output_tokens| Sequence {
        prompt_tokens: 100,
        chunks: Some(chunks),
        output_tokens,
        ..Sequence::default()
    };
    let uncounted = || vec![text(vec![chunk(11, None), chunk(51, None)], Some(9))];
    assert_eq!(warm_values("first_token", uncounted()), [10e6]);
    assert_eq!(warm_values("prefill_rate", uncounted()), [10_000.0]);
    assert_eq!(warm_values("decode_rate", uncounted()), [200.0]);
    assert_eq!(warm_values("inter_token", uncounted()), NO_VALUES);
    let counted = vec![text(vec![chunk(11, Some(3)), chunk(51, Some(6))], Some(9))];
    assert_eq!(warm_values("decode_rate", counted), [150.0]);
    let single = vec![text(vec![chunk(11, Some(1)), chunk(31, Some(1))], Some(2))];
    assert_eq!(warm_values("inter_token", single), [20e6]);
}

#[test]
fn prompt_tokens_from_a_cache_are_not_counted_as_computed() {
    let mut cached = sequence(100, &[11]);
    cached.cached_prompt_tokens = Some(60);
    assert_eq!(warm_values("prefill_rate", vec![cached.clone()]), [4000.0]);
    cached.cached_prompt_tokens = Some(100);
    assert_eq!(warm_values("prefill_rate", vec![cached]), NO_VALUES);
}

#[test]
fn a_query_is_the_time_to_its_answer_beside_that_of_the_null_engine() {
    let sample = Sample { sent_ns: 5_000, answered_ns: 65_000, ..Sample::default() };
    let launch = launch(Stamp::Token);
    let values_of = |name, kind, null_query_ns| {
        let observed = Observation::without_record(&sample, &launch, kind, Mode::Warm);
        (named(name).unwrap().of)(&Observation { null_query_ns, ..observed })
    };
    assert_eq!(values_of("query", Kind::Query, None), [60e3]);
    assert_eq!(values_of("query", Kind::Warm, None), NO_VALUES);
    assert_eq!(values_of("null_query", Kind::Query, Some(20e3)), [20e3]);
    assert_eq!(values_of("null_query", Kind::Query, None), NO_VALUES);
    assert_eq!(values_of("null_query", Kind::Warm, Some(20e3)), NO_VALUES);
    assert!(!named("null_query").unwrap().is_compared() && named("query").unwrap().is_compared());
}

#[test]
fn drafted_tokens_have_a_rate_and_a_share_of_their_own() {
    let drafted =
        Sequence { drafted_tokens: Some(8), accepted_tokens: Some(6), ..sequence(10, &[11, 21, 21, 31]) };
    let sample = sample(vec![drafted]);
    let values_of = |name, kind| values(name, &sample, &launch(Stamp::Token), kind, Mode::Warm);
    assert_eq!(values_of("effective_rate", Kind::Speculative), [150.0]);
    assert_eq!(values_of("acceptance", Kind::Speculative), [0.75]);
    for name in ["decode_rate", "inter_token", "bandwidth_share"] {
        assert_eq!(values_of(name, Kind::Speculative), NO_VALUES, "{name}");
    }
    assert_eq!(values_of("decode_rate", Kind::Warm), [150.0]);
    assert_eq!(
        (values_of("effective_rate", Kind::Warm), values_of("acceptance", Kind::Warm)),
        (vec![], vec![])
    );
}

#[test]
fn values_that_the_facts_do_not_give_are_absent_and_never_infinite() {
    let unusual = [
        Vec::new(),
        vec![Sequence::default()],
        vec![sequence(0, &[])],
        vec![sequence(0, &[0])],
        vec![sequence(5, &[1])],
        vec![sequence(5, &[11, 11])],
        vec![sequence(5, &[21, 11])],
    ];
    for sequences in unusual {
        for (start_ns, end_ns) in [(MS, MS), (MS, 0), (0, u64::MAX)] {
            let mut sample = sample(sequences.clone());
            (sample.iteration.start_ns, sample.iteration.end_ns) = (start_ns, end_ns);
            (sample.sent_ns, sample.answered_ns, sample.peak_resident_bytes) = (5, 5, None);
            let empty_launch = Launch::default();
            for metric in METRICS {
                for mode in [Mode::Warm, Mode::OneShot] {
                    let values = values(metric.name(), &sample, &empty_launch, Kind::Launch, mode);
                    assert!(values.iter().all(|value| value.is_finite()), "{}: {values:?}", metric.name());
                }
            }
        }
    }
    assert_eq!(warm_values("decode_rate", vec![sequence(5, &[11])]), NO_VALUES);
    assert_eq!(warm_values("decode_rate", vec![sequence(5, &[11, 11])]), NO_VALUES);
    assert_eq!(warm_values("first_token", vec![sequence(5, &[1])]), NO_VALUES);
    assert_eq!(warm_values("throughput", vec![]), NO_VALUES);
}

#[test]
fn every_metric_has_a_description_of_whole_sentences() {
    for metric in METRICS {
        assert!(metric.about.ends_with('.') && metric.about.len() > 60, "{}", metric.name());
        assert!(!metric.about.contains("  "), "{}", metric.name());
    }
}
