use super::*;
use crate::analysis::compare::within::compare_within;
use crate::analysis::metric::named;
use crate::analysis::values::Measured;
use crate::plan::Selection;
use crate::record::RunRecord;
use crate::record::specimen::timed::{measured, noisy, selection};
use stats::{Blocks, Experiment, NoRatio, Rounds, Series, StoppedBy};

/// A comparison with this ratio. The blocks' log ratios differ from that of `ratio` by at most `spread`.
fn compared(metric: &'static str, ratio: f64, spread: f64, blocks: usize) -> Compared {
    let metric = named(metric).unwrap();
    let deviations = [-1.0, 1.0, -0.5, 0.5, 0.0];
    let blocks_of = |value: &dyn Fn(usize) -> f64| -> Blocks {
        (0..blocks).map(|block| (block as u32, Rounds::from([(0, value(block))]))).collect()
    };
    let values = blocks_of(&|block| ratio * (spread * deviations[block % 5]).exp());
    let series = Series {
        better: metric.better,
        gating: true,
        stopped_by: StoppedBy::Fixed,
        floors: Vec::new(),
        configurations: vec![blocks_of(&|_| 1.0), values],
    };
    let experiment = Experiment { interleaved: true, seed: Some(1), twins: Vec::new(), series: vec![series] };
    let comparison = experiment.compare(&[(1, 0)]).remove(0).result.unwrap();
    let workload = "decode".into();
    Compared { workload, metric, configuration: 1, against: 0, gating: true, result: Ok(comparison) }
}

fn plan() -> Plan {
    Plan::new(&selection(&["b", "a"], &["load", "ttft", "prefill", "decode"]))
}

fn sentence_of(metric: &'static str, workload: &str, ratio: f64, spread: f64) -> String {
    sentence(&plan(), &Compared { workload: workload.into(), ..compared(metric, ratio, spread, 5) })
}

#[test]
fn a_sentence_names_both_sides_of_a_difference() {
    for (metric, workload, ratio, spread, expected) in [
        ("decode_rate", "decode", 4.1, 0.05, "`a` decodes 4.1x as fast as `b` [3.9, 4.3]"),
        ("decode_rate", "decode", 1.14, 0.02, "`a` decodes 1.14x as fast as `b` [1.12, 1.16]"),
        ("prefill_rate", "prefill", 0.9, 0.01, "`a` prefills 1.11x slower than `b` [1.10, 1.12]"),
        ("cold_start", "load", 0.5, 0.02, "`a` starts cold 2.00x as fast as `b` [1.96, 2.04]"),
    ] {
        assert_eq!(sentence_of(metric, workload, ratio, spread), expected);
    }
}

#[test]
fn sentences_of_same_and_inconclusive_include_the_interval() {
    assert_eq!(
        sentence_of("decode_rate", "decode", 1.003, 0.008),
        "`a` decodes as fast as `b`, within 2 % (between 0.5 % slower and 1.1 % faster)"
    );
    assert_eq!(
        sentence_of("decode_rate", "decode", 1.01, 0.05),
        "`a`, decode: inconclusive against `b` (between 4 % slower and 6 % faster; a difference must exceed 2 %)"
    );
}

#[test]
fn the_workload_is_in_parentheses_unless_the_verb_implies_it() {
    assert_eq!(
        sentence_of("first_token", "ttft 16", 0.5, 0.02),
        "`a` reaches its first token (ttft 16) 2.00x as fast as `b` [1.96, 2.04]"
    );
    assert_eq!(
        sentence_of("inter_token", "decode", 0.5, 0.02),
        "`a` gives each next token (decode) 2.00x as fast as `b` [1.96, 2.04]"
    );
    // A single workload needs no name.
    let plan = Plan::new(&selection(&["b", "a"], &["decode"]));
    assert_eq!(
        sentence(&plan, &compared("throughput", 2.0, 0.02, 5)),
        "`a` generates 2.00x as fast as `b` [1.96, 2.04]"
    );
}

#[test]
fn a_sentence_about_memory_says_how_much_is_needed() {
    for (ratio, spread, expected) in [
        (1.8, 0.02, "`a` needs 1.80x as much memory (decode) as `b` [1.77, 1.84]"),
        (1.14, 0.02, "`a` needs 1.14x as much memory (decode) as `b` [1.12, 1.16]"),
        (1.0, 0.0, "`a` needs as much memory (decode) as `b`, within 2 % (no difference seen)"),
    ] {
        assert_eq!(sentence_of("peak_memory", "decode", ratio, spread), expected);
    }
    assert_eq!(
        sentence_of("peak_memory", "decode", 1.01, 0.05),
        "`a`, memory needed (decode): inconclusive against `b` (between 4 % less and 6 % more; a difference must exceed 2 %)"
    );
}

#[test]
fn a_sentence_without_a_verdict_includes_the_reason() {
    let plan = plan();
    let sentence_for = |blocks| sentence(&plan, &compared("decode_rate", 2.0, 0.02, blocks));
    assert_eq!(
        sentence_for(1),
        "`a` decodes 1.96x as fast as `b` [1.96, 1.96] (range only: 1 block, no verdict)"
    );
    assert!(sentence_for(3).ends_with("] (tentative: 3 blocks, no verdict)"), "{}", sentence_for(3));
    let selection = Selection { order: Order::Sequential, ..selection(&["b", "a"], &["decode"]) };
    let record: RunRecord = measured(&selection, 5, noisy(|it| if it == 1 { 5.0 } else { 10.0 }, 0.01, 1));
    let found = compare_within(&Measured::of(&record), &[(1, 0)]);
    let found = found.iter().find(|it| it.gating).unwrap();
    let sentence = sentence(&record.header.plan, found);
    assert!(sentence.ends_with("] (measured sequentially: no verdict)"), "{sentence}");
}

#[test]
fn equal_values_are_not_called_faster() {
    assert_eq!(
        sentence(&plan(), &compared("decode_rate", 1.0, 0.0, 3)),
        "`a`, decode: no difference seen against `b` (tentative: 3 blocks, no verdict)"
    );
}

#[test]
fn a_failed_comparison_includes_the_reason() {
    let refusal = NoRatio::UnusableValue { block: 2, round: 1, value: 0.0 };
    let compared = Compared { result: Err(refusal), ..compared("decode_rate", 1.0, 0.0, 5) };
    assert_eq!(
        sentence(&plan(), &compared),
        "`a`, decode: no comparison with `b`: block 2, round 1: `0` is not positive and finite, so there is no ratio"
    );
}

#[test]
fn every_metric_makes_a_sentence_of_every_verdict() {
    for metric in crate::analysis::metric::METRICS {
        for (ratio, spread) in [(4.0, 0.01), (0.9, 0.01), (1.0, 0.0), (1.0, 0.3)] {
            let sentence = sentence_of(metric.name(), "prefill", ratio, spread);
            assert!(
                sentence.starts_with("`a`") && sentence.contains("`b`") && !sentence.contains("  "),
                "{sentence}"
            );
        }
    }
}
