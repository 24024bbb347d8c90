use super::*;
use crate::plan::{Configuration, Selection};
use crate::record::specimen::timed::{measured, noisy, selection};
use crate::record::{CalibratedFloor, Closed};
use stats::Verdict;

/// A record of `reference`, `other` and the reference's twin. A token takes `token_ms` in `other` and ten milliseconds
/// elsewhere. `deviation` is the standard deviation of the logarithms of a block's times.
fn record(token_ms: f64, deviation: f64, blocks: u32) -> RunRecord {
    let token_ms_of = move |configuration| if configuration == 1 { token_ms } else { 10.0 };
    measured(&selection(&["reference", "other"], &["decode"]), blocks, noisy(token_ms_of, deviation, 3))
}

fn headline(compared: &[Compared]) -> &Comparison {
    let gating: Vec<&Compared> = compared.iter().filter(|it| it.gating).collect();
    assert_eq!(gating.len(), 1, "{compared:?}");
    gating[0].result.as_ref().unwrap()
}

fn verdict(record: &RunRecord) -> Option<Verdict> {
    headline(&compare_within(&Measured::of(record), &record.header.plan.pairs())).decision.verdict
}

#[test]
fn configurations_are_compared_by_every_shared_metric_and_the_headline_gates() {
    let record = record(5.0, 0.01, 5);
    let found = compare_within(&Measured::of(&record), &record.header.plan.pairs());
    let metrics: Vec<(&str, bool)> = found.iter().map(|it| (it.metric.name(), it.gating)).collect();
    let measured = Measured::of(&record);
    let both_have = |metric: usize| [0, 1].iter().all(|&it| measured.blocks(0, metric, it).is_some());
    let expected = METRICS.iter().enumerate().filter(|(index, _)| both_have(*index));
    let expected: Vec<_> = expected.map(|(_, it)| (it.name(), it.name() == "decode_rate")).collect();
    assert_eq!(metrics, expected);
    for expected in ["load", "first_token", "decode_rate", "peak_memory"] {
        assert!(metrics.iter().any(|(name, _)| *name == expected), "{expected}: {metrics:?}");
    }
    assert!(found.iter().all(|it| (it.configuration, it.against) == (1, 0) && it.workload == "decode"));
    let decode = headline(&found);
    assert_eq!(
        (decode.decision.verdict, decode.blocks, decode.stopped_by),
        (Some(Verdict::Faster), 5, StoppedBy::Time)
    );
    // The simulated machine slows some blocks by up to a half, with the same effect on both configurations.
    assert!((decode.evidence.estimate() - 2f64.ln()).abs() < 0.02);
}

#[test]
fn sequential_runs_have_evidence_but_no_verdict() {
    let mut record = record(5.0, 0.01, 5);
    record.header.plan.order = Order::Sequential;
    let found = compare_within(&Measured::of(&record), &[(1, 0)]);
    assert!(
        headline(&found).decision.verdict.is_none()
            && headline(&found).evidence.interval_of_enough_blocks().is_some()
    );
}

#[test]
fn fewer_than_five_blocks_have_no_verdict() {
    assert_eq!(verdict(&record(5.0, 0.01, 4)), None);
}

#[test]
fn a_difference_below_the_calibrated_floor_of_either_side_is_inconclusive() {
    for configuration in [0, 1] {
        let mut record = record(9.0, 0.005, 8);
        assert_eq!(verdict(&record), Some(Verdict::Faster));
        record.header.noise_floors.push(CalibratedFloor {
            configuration,
            workload: "decode".into(),
            metric: crate::plan::MetricId::DECODE_RATE,
            paired: NoiseFloor::of(&[0.2; 20]).unwrap(),
            between: None,
            since: String::new(),
        });
        assert_eq!(verdict(&record), Some(Verdict::Inconclusive));
    }
}

#[test]
fn the_twin_of_the_reference_gives_a_noise_floor() {
    let token_ms = |configuration| if configuration == 1 { 9.0 } else { 10.0 };
    let mut quiet_noise = noisy(token_ms, 0.005, 3);
    let mut loud_noise = noisy(|_| 10.0, 0.3, 4);
    let record = measured(&selection(&["reference", "other"], &["decode"]), 8, |at| {
        if at.configuration == 2 { loud_noise(at) } else { quiet_noise(at) }
    });
    assert_eq!(record.header.plan.twin_of(0), Some(2));
    assert_eq!(verdict(&record), Some(Verdict::Inconclusive));
}

#[test]
fn a_case_that_failed_midway_is_compared_by_the_rounds_that_both_have() {
    let mut noise = noisy(|configuration| if configuration == 1 { 5.0 } else { 10.0 }, 0.005, 3);
    let record = measured(&selection(&["reference", "other"], &["decode"]), 8, |at| {
        let failed = at.configuration == 1 && (at.block == 3 && at.round == 2 || at.block == 6);
        noise(at).filter(|_| !failed)
    });
    let found = compare_within(&Measured::of(&record), &[(1, 0)]);
    let decode = headline(&found);
    assert_eq!((decode.decision.verdict, decode.blocks, decode.unpaired), (Some(Verdict::Faster), 7, 1));
}

#[test]
fn a_configuration_without_values_is_not_compared() {
    let record = measured(&selection(&["reference", "other"], &["decode"]), 5, |at| {
        (at.configuration != 1).then_some(10.0)
    });
    let found = compare_within(&Measured::of(&record), &[(1, 0)]);
    assert!(found.iter().all(|it| !it.gating && it.metric.name() != "decode_rate"));
}

#[test]
fn each_number_of_threads_has_its_own_reference_and_twin() {
    let selection = Selection { threads: vec![1, 2], ..selection(&["reference", "other"], &["decode"]) };
    // `other` is faster with one thread, and a tenth slower with two threads.
    let token_ms = |configuration| [10.0, 6.0, 5.0, 5.5, 10.0, 5.0][configuration];
    let record = measured(&selection, 5, noisy(token_ms, 0.003, 3));
    let plan = &record.header.plan;
    assert_eq!((plan.pairs(), plan.twin_of(0), plan.twin_of(2)), (vec![(1, 0), (3, 2)], Some(4), Some(5)));
    let found = compare_within(&Measured::of(&record), &plan.pairs());
    let verdicts: Vec<_> = found
        .iter()
        .filter(|it| it.gating)
        .map(|it| (it.configuration, it.against, it.result.as_ref().unwrap().decision.verdict.unwrap()))
        .collect();
    assert_eq!(verdicts, [(1, 0, Verdict::Faster), (3, 2, Verdict::Slower)]);
}

#[test]
fn all_pairs_are_on_one_model_with_the_reference_second() {
    let mut selection = selection(&["a", "b", "c"], &["decode"]);
    selection.reference = "b".into();
    let mut record = measured(&selection, 1, |_| Some(1.0));
    assert_eq!(all_pairs(&record.header.plan), [(0, 1), (0, 2), (2, 1)]);
    record.header.plan.configurations[2].model.name = "another".into();
    assert_eq!(all_pairs(&record.header.plan), [(0, 1)]);
}

#[test]
fn the_program_of_a_baseline_is_compared_with_its_row() {
    let mut record = record(5.0, 0.01, 5);
    let plan = &mut record.header.plan;
    plan.configurations[2].role = Some(Role::Baseline { of: 1 });
    assert_eq!(rerun_pairs(plan), [(1, 2)]);
    let found = compare_within(&Measured::of(&record), &rerun_pairs(&record.header.plan));
    assert_eq!(headline(&found).decision.verdict, Some(Verdict::Faster));
}

#[test]
fn each_workload_has_its_own_reason_to_stop() {
    let mut record = record(5.0, 0.01, 5);
    assert_eq!(stopped_by(&record, "decode"), StoppedBy::Time);
    record.header.plan.extent.blocks = Some(5);
    assert_eq!(stopped_by(&record, "decode"), StoppedBy::Fixed);
    record.closed.push(Closed {
        workload: "decode".into(),
        blocks: 5,
        by: StoppedBy::Width,
        needs_budget: None,
    });
    assert_eq!(
        (stopped_by(&record, "decode"), stopped_by(&record, "load")),
        (StoppedBy::Width, StoppedBy::Fixed)
    );
}

#[test]
fn a_run_continues_while_the_headline_of_a_pair_has_a_wide_interval() {
    let analysis = |record: &RunRecord| interim_analysis(record, "decode", 5, Rule::default());
    assert_eq!(analysis(&record(5.0, 0.002, 5)), Analysis::Stop(StoppedBy::Width));
    assert_eq!(analysis(&record(5.0, 0.2, 5)), Analysis::GoOn { until: 8 });
    // Metrics that do not gate have no effect: here each request needs more memory than the one before.
    let mut growing = record(5.0, 0.002, 5);
    growing.samples.iter_mut().zip(1..).for_each(|(it, n)| it.peak_resident_bytes = Some(n * 1_000_000));
    assert_eq!(analysis(&growing), Analysis::Stop(StoppedBy::Width));
}

#[test]
fn a_single_engine_runs_until_its_headline_metric_is_precise() {
    let alone = |noise| measured(&selection(&["reference"], &["decode"]), 5, noisy(|_| 10.0, noise, 1));
    assert_eq!(interim_analysis(&alone(0.3), "decode", 5, Rule::default()), Analysis::GoOn { until: 8 });
    // A pair does not count if one of its two engines has no values.
    let mut noise = noisy(|_| 10.0, 0.3, 1);
    let failed = measured(&selection(&["reference", "other"], &["decode"]), 5, |at| {
        noise(at).filter(|_| at.configuration != 1)
    });
    assert_eq!(interim_analysis(&failed, "decode", 5, Rule::default()), Analysis::Stop(StoppedBy::Width));
}

#[test]
fn a_plan_with_invalid_indices_causes_no_panic() {
    let mut record = record(5.0, 0.01, 5);
    let twin = Configuration { role: Some(Role::Twin { of: 99 }), ..Configuration::default() };
    record.header.plan.configurations.push(twin);
    let found = compare_within(&Measured::of(&record), &[(1, 0), (1, 42), (3, 1)]);
    assert_eq!(found.iter().filter(|it| it.gating).count(), 1);
}
