use super::*;
use crate::random::Random;
use crate::verdict::Verdict;

const REFERENCE: usize = 0;

/// A configuration of this speed, in blocks of three rounds. The machine changes the speed of a round by up to a half, equally
/// for all configurations. `noise` is the standard deviation of the logarithm of the configuration's own noise.
fn measured(speed: f64, blocks: u32, noise: f64, seed: u64) -> Blocks {
    let mut machine = Random::seeded(1);
    let mut engine = Random::seeded(seed);
    let mut value = || speed * (0.5 + machine.unit()) * (noise * engine.normal()).exp();
    (0..blocks).map(|block| (block, (0..3).map(|round| (round, value())).collect())).collect()
}

fn series(configurations: Vec<Blocks>) -> Series {
    let stopped_by = StoppedBy::Width;
    Series { better: Better::Higher, gating: true, stopped_by, floors: Vec::new(), configurations }
}

fn experiment(series: Vec<Series>) -> Experiment {
    Experiment { interleaved: true, seed: Some(1), twins: Vec::new(), series }
}

fn single_comparison(experiment: &Experiment) -> Comparison {
    let mut results = experiment.compare(&[(1, REFERENCE)]);
    assert_eq!(results.len(), 1, "{results:?}");
    results.remove(0).result.unwrap()
}

/// An experiment with two configurations, of which the second has this speed relative to the first.
fn of_relative_speed(speed: f64, noise: f64) -> Experiment {
    experiment(vec![series(vec![measured(100.0, 8, noise, 2), measured(100.0 * speed, 8, noise, 3)])])
}

#[test]
fn a_difference_is_found_through_noise_that_both_sides_share() {
    let comparison = single_comparison(&of_relative_speed(1.1, 0.005));
    assert_eq!(comparison.decision.verdict, Some(Verdict::Faster));
    assert_eq!((comparison.blocks, comparison.stopped_by), (8, StoppedBy::Width));
    let interval = comparison.evidence.interval_of_enough_blocks().unwrap();
    assert!(interval.low() < 1.1f64.ln() && 1.1f64.ln() < interval.high(), "{interval:?}");
    // Tests without pairing do not find the difference.
    let Probabilities { paired, welch, mann_whitney, .. } = comparison.p;
    assert!(paired.unwrap() < 1e-4 && welch.unwrap() > 0.2 && mann_whitney.unwrap() > 0.2);
    assert_eq!(single_comparison(&of_relative_speed(0.9, 0.005)).decision.verdict, Some(Verdict::Slower));
    assert_eq!(single_comparison(&of_relative_speed(1.0, 0.005)).decision.verdict, Some(Verdict::Same));
    assert_eq!(single_comparison(&of_relative_speed(1.0, 0.1)).decision.verdict, Some(Verdict::Inconclusive));
}

#[test]
fn where_lower_is_better_a_smaller_number_is_faster() {
    let mut experiment = of_relative_speed(0.5, 0.005);
    experiment.series[0].better = Better::Lower;
    let comparison = single_comparison(&experiment);
    assert_eq!(comparison.decision.verdict, Some(Verdict::Faster));
    assert!((comparison.evidence.estimate() - 2f64.ln()).abs() < 0.02);
}

#[test]
fn a_difference_below_one_of_the_noise_floors_is_inconclusive() {
    for floors in [vec![NoiseFloor::of(&[0.12; 20])], vec![None, NoiseFloor::of(&[0.12; 20])]] {
        let mut experiment = of_relative_speed(1.1, 0.005);
        experiment.series[0].floors = floors;
        assert_eq!(single_comparison(&experiment).decision.verdict, Some(Verdict::Inconclusive));
    }

    let mut experiment = of_relative_speed(1.1, 0.005);
    experiment.series[0].configurations.push(measured(100.0, 8, 0.2, 4));
    // The twin of either side counts, and the twin of another configuration does not.
    for of in [0, 1] {
        experiment.twins = vec![Twin { twin: 2, of }];
        let comparison = single_comparison(&experiment);
        assert!(comparison.decision.thresholds.difference() > 0.1, "{:?}", comparison.decision.thresholds);
        assert_eq!(comparison.decision.verdict, Some(Verdict::Inconclusive));
    }
    experiment.twins = vec![Twin { twin: 2, of: 7 }];
    assert_eq!(single_comparison(&experiment).decision.verdict, Some(Verdict::Faster));
}

#[test]
fn few_blocks_have_evidence_and_no_verdict() {
    for (blocks, tentative) in [(1, false), (2, false), (3, true), (4, true)] {
        let sides = vec![measured(100.0, blocks, 0.01, 2), measured(400.0, blocks, 0.01, 3)];
        let comparison = single_comparison(&experiment(vec![series(sides)]));
        assert_eq!(comparison.decision.verdict, None);
        assert_eq!((comparison.p.paired, comparison.p.welch), (None, None));
        assert_eq!(matches!(comparison.evidence, Evidence::Tentative(_)), tentative);
    }
}

#[test]
fn twenty_blocks_have_a_bootstrap_that_agrees_with_t_on_normal_noise() {
    let sides = |blocks| vec![measured(100.0, blocks, 0.02, 2), measured(110.0, blocks, 0.02, 3)];
    assert_eq!(single_comparison(&experiment(vec![series(sides(19))])).bootstrap, None);
    let comparison = single_comparison(&experiment(vec![series(sides(20))]));
    let (interval, (low, high)) =
        (comparison.evidence.interval_of_enough_blocks().unwrap(), comparison.bootstrap.unwrap());
    let are_close = |a: f64, b: f64| (a - b).abs() < 0.3 * interval.half_width();
    assert!(are_close(low, interval.low()) && are_close(high, interval.high()), "{interval:?} {low} {high}");
}

/// Compares a series with a small difference, among `others` series without a difference.
fn compare_among(others: usize, gating: bool) -> Comparison {
    let mut different = of_relative_speed(1.03, 0.03).series.remove(0);
    different.gating = gating;
    let equal = (0..others)
        .map(|seed| series(vec![measured(100.0, 8, 0.03, 2), measured(100.0, 8, 0.03, 90 + seed as u64)]));
    let series = std::iter::once(different).chain(equal).collect();
    experiment(series).compare(&[(1, REFERENCE)]).remove(0).result.unwrap()
}

#[test]
fn a_gating_difference_must_be_significant_among_all_gating_series() {
    let alone = compare_among(0, true);
    let p = alone.p.paired.unwrap();
    assert!((0.005..0.05).contains(&p), "choose seeds with a barely significant difference: p is {p}");
    assert_eq!((alone.decision.verdict, alone.p.adjusted), (Some(Verdict::Faster), Some(p)));
    assert!(!alone.decision.lost_to_correction);
    let among_many = compare_among(20, true);
    assert_eq!(among_many.decision.verdict, Some(Verdict::Inconclusive));
    assert!(among_many.decision.lost_to_correction);
    assert!(among_many.p.adjusted.unwrap() > 0.05 && among_many.p.paired == Some(p));
    let not_gating = compare_among(20, false);
    assert_eq!((not_gating.decision.verdict, not_gating.p.adjusted), (Some(Verdict::Faster), None));
}

#[test]
fn a_value_without_a_logarithm_gives_a_reason_and_other_pairs_are_compared() {
    let mut broken = measured(100.0, 5, 0.01, 3);
    broken.insert(2, Rounds::from([(0, 1.0), (1, 0.0), (2, 1.0)]));
    let configurations =
        vec![measured(100.0, 5, 0.01, 2), broken, measured(200.0, 5, 0.01, 4), Blocks::new()];
    let results =
        experiment(vec![series(configurations)]).compare(&[(1, REFERENCE), (2, REFERENCE), (3, REFERENCE)]);
    // The fourth configuration has no values, so it has no result.
    assert_eq!(results.len(), 2);
    let refusal = NoRatio::UnusableValue { block: 2, round: 1, value: 0.0 };
    assert_eq!(
        results[0],
        PairResult { series: 0, configuration: 1, against: REFERENCE, result: Err(refusal) }
    );
    assert_eq!(results[1].result.as_ref().unwrap().decision.verdict, Some(Verdict::Faster));
}

#[test]
fn blocks_without_values_of_one_side_are_counted() {
    let mut configuration = measured(200.0, 8, 0.01, 3);
    configuration.remove(&6);
    let comparison =
        single_comparison(&experiment(vec![series(vec![measured(100.0, 8, 0.01, 2), configuration])]));
    assert_eq!((comparison.blocks, comparison.unpaired), (7, 1));
}

#[test]
fn sequential_measurements_have_evidence_but_no_verdict() {
    let comparison = single_comparison(&Experiment { interleaved: false, ..of_relative_speed(1.1, 0.005) });
    assert_eq!((comparison.decision.verdict, comparison.p.paired, comparison.p.adjusted), (None, None, None));
    assert!(comparison.evidence.interval_of_enough_blocks().is_some());
}

#[test]
fn a_fixed_number_of_blocks_gives_a_workload_narrower_intervals() {
    let mut experiment = of_relative_speed(1.1, 0.01);
    experiment.series.push(Series { stopped_by: StoppedBy::Fixed, ..experiment.series[0].clone() });
    let results = experiment.compare(&[(1, REFERENCE)]);
    let [interim, fixed] = [0, 1].map(|index| results[index].result.as_ref().unwrap());
    assert_eq!((interim.stopped_by, fixed.stopped_by), (StoppedBy::Width, StoppedBy::Fixed));
    let width = |it: &Comparison| it.evidence.interval_of_enough_blocks().unwrap().half_width();
    assert!(width(fixed) < 0.9 * width(interim));
}

#[test]
fn every_pair_can_be_compared_in_both_directions() {
    let experiment = of_relative_speed(1.1, 0.005);
    let results = experiment.compare(&[(1, 0), (0, 1), (0, 7)]);
    let verdicts: Vec<_> =
        results.iter().map(|it| it.result.as_ref().unwrap().decision.verdict.unwrap()).collect();
    assert_eq!(verdicts, [Verdict::Faster, Verdict::Slower]);
}

#[test]
fn only_gating_series_keep_an_experiment_going() {
    let quiet = of_relative_speed(1.1, 0.001).series.remove(0);
    let noisy = of_relative_speed(1.1, 0.2).series.remove(0);
    let analysis = |gating| {
        let series = vec![quiet.clone(), Series { gating, ..noisy.clone() }];
        experiment(series).analyse(Rule::default(), 8, &[(1, 0)])
    };
    assert_eq!(
        (analysis(false), analysis(true)),
        (Analysis::Stop(StoppedBy::Width), Analysis::GoOn { until: 12 })
    );
}

#[test]
fn a_pair_with_too_few_common_blocks_keeps_an_experiment_going() {
    let mut series = of_relative_speed(1.1, 0.001).series.remove(0);
    let analysis = |series: &Series| experiment(vec![series.clone()]).analyse(Rule::default(), 8, &[(1, 0)]);
    assert_eq!(analysis(&series), Analysis::Stop(StoppedBy::Width));
    series.configurations[0].retain(|block, _| *block < 1);
    assert_eq!(analysis(&series), Analysis::GoOn { until: 12 });
    series.configurations[0].clear();
    assert_eq!(analysis(&series), Analysis::Stop(StoppedBy::Width));
}

#[test]
fn a_comparison_names_the_source_of_its_noise_floor() {
    let column = |level: f64| -> Blocks { (0..5).map(|block| (block, Rounds::from([(0, level)]))).collect() };
    let experiment = |calibrated: Option<f64>, twin: f64| Experiment {
        interleaved: true,
        seed: None,
        twins: vec![Twin { twin: 2, of: 1 }],
        series: vec![Series {
            better: Better::Lower,
            gating: true,
            stopped_by: StoppedBy::Fixed,
            floors: vec![calibrated.and_then(|floor| NoiseFloor::of(&[floor; 20]))],
            configurations: vec![column(1.0), column(2.0), column(2.0 * f64::exp(twin))],
        }],
    };
    let floor = |calibrated, twin| {
        let compared = experiment(calibrated, twin).compare(&[(0, 1)]).remove(0);
        let floor = compared.result.unwrap().floor.unwrap();
        (floor.source, floor.of, (floor.floor.log_ratio() * 100.0).round())
    };
    assert_eq!(floor(None, 0.1), (FloorSource::Twin, 1, 10.0));
    assert_eq!(floor(Some(0.05), 0.1), (FloorSource::Twin, 1, 10.0));
    assert_eq!(floor(Some(0.2), 0.1), (FloorSource::Calibration, 0, 20.0));
}

#[test]
fn an_inverted_comparison_is_that_of_the_other_side() {
    let column = |level: f64| -> Blocks {
        (0..6).map(|block| (block, Rounds::from([(0, level * (1.0 + 0.01 * f64::from(block)))]))).collect()
    };
    let series = Series {
        better: Better::Higher,
        gating: true,
        stopped_by: StoppedBy::Fixed,
        floors: Vec::new(),
        configurations: vec![
            column(1.0),
            column(2.0)
                .into_iter()
                .map(|(block, rounds)| {
                    (block, rounds.into_values().map(|it| (0, it + 0.02 * f64::from(block % 3))).collect())
                })
                .collect(),
        ],
    };
    let experiment = Experiment { interleaved: true, seed: None, twins: Vec::new(), series: vec![series] };
    let compare = |pair| experiment.compare(&[pair]).remove(0).result.unwrap();
    let (forward, backward) = (compare((0, 1)), compare((1, 0)));
    assert_eq!(
        (forward.decision.verdict, backward.decision.verdict),
        (Some(Verdict::Slower), Some(Verdict::Faster))
    );
    let inverted = forward.inverted();
    assert_eq!(inverted.decision.verdict, backward.decision.verdict);
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    close(inverted.evidence.estimate(), backward.evidence.estimate());
    close(inverted.evidence.ends().0, backward.evidence.ends().0);
    close(inverted.evidence.ends().1, backward.evidence.ends().1);
}
