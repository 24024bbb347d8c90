use super::*;
use crate::analysis::claims::specimen::{BEACONS, decoding, samples, with_busy_cores};
use crate::analysis::values::Measured;
use crate::report::Report;
use stats::Summary;

/// The default suite: five blocks, each with one launch of every configuration.
const DEFAULT_SUITE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/records/default-suite.jsonl"));

#[test]
fn a_table_summarises_the_values_that_a_comparison_pairs() {
    let record = RunRecord::parse(DEFAULT_SUITE).unwrap();
    let seen = RunData::of(&record);
    let measured = Measured::from(&seen.values);
    let mut compared = 0;
    for (index, case) in record.header.plan.cases.iter().enumerate() {
        let workload = measured.workloads.iter().position(|it| it.label == case.workload.label).unwrap();
        for (place, metric) in METRICS.iter().enumerate().filter(|(_, metric)| !metric.is_share()) {
            let blocks = measured.blocks(workload, place, case.configuration);
            let figure = seen.figure(index, metric);
            assert_eq!(figure.is_some(), blocks.is_some(), "{} of case {index}", metric.name());
            let (Some(figure), Some(blocks)) = (figure, blocks) else { continue };
            let rounds: Vec<Vec<f64>> = blocks.values().map(|of| of.values().copied().collect()).collect();
            let summary = Summary::of(&rounds).unwrap();
            if metric.id == MetricId::INTER_TOKEN {
                // A request has many inter-token gaps. The table uses all of them, a comparison uses the median of each request.
                assert!((figure.summary.min..=figure.summary.max).contains(&summary.estimate));
            } else {
                assert_eq!(figure.summary, summary, "{} of case {index}", metric.name());
            }
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn a_warning_of_an_older_record_that_repeats_a_claim_is_shown_once() {
    let mut record = decoding(|record| samples(record).for_each(|it| it.answered_ns += 100_000_000));
    let recorded = |message: &str| Warning { configuration: Some(BEACONS), message: message.into() };
    record.warnings =
        vec![recorded("decode: its clock leaves out 100 ms of each request"), recorded("noisy")];
    record = with_busy_cores(record);
    let warnings = Report::of(&record).warnings;
    assert_eq!(warnings.iter().filter(|it| it.contains("leaves out")).count(), 1, "{warnings:?}");
    assert!(warnings.contains(&"beacon: noisy".to_string()), "{warnings:?}");
}
