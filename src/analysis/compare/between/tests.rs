use super::*;
use crate::analysis::compare::matching::matching;
use crate::plan::Selection;
use crate::record::CalibratedFloor;
use crate::record::specimen::timed::{measured, noisy, selection};
use stats::Verdict;
use stats::{INTERIM_ANALYSES, Random};

/// A run of eight blocks: the times of `steady`, each multiplied by `factor`. A `deviation` of 0.01 is noise of 1 %.
fn run(selection: &Selection, factor: f64, deviation: f64, seed: u64) -> RunRecord {
    let mut time_ms = steady(deviation, seed);
    measured(selection, 8, move |_| Some(factor * time_ms()))
}

/// Ten milliseconds a token with this deviation: no block is slower than another.
fn steady(deviation: f64, seed: u64) -> impl FnMut() -> f64 {
    let mut random = Random::seeded(seed);
    move || 10.0 * (deviation * random.normal()).exp()
}

fn compared(base: &RunRecord, new: &RunRecord) -> BTreeMap<Key, Result<MetricComparison, String>> {
    let matching = matching(&base.header.plan, &new.header.plan);
    compare_between(&ComparedRecord::of(&Values::of(base)), &ComparedRecord::of(&Values::of(new)), &matching)
}

fn by_metric(base: &RunRecord, new: &RunRecord, metric: &str, configuration: usize) -> MetricComparison {
    let index = METRICS.iter().position(|it| it.name() == metric).unwrap();
    compared(base, new)[&("decode".to_string(), index, (configuration, configuration))].clone().unwrap()
}

fn decode(base: &RunRecord, new: &RunRecord, configuration: usize) -> MetricComparison {
    by_metric(base, new, "decode_rate", configuration)
}

fn engine_a() -> Selection {
    selection(&["a"], &["decode"])
}

#[test]
fn a_slower_run_is_found_by_welchs_interval_and_by_mann_and_whitney() {
    let (base, new) = (run(&engine_a(), 1.0, 0.005, 1), run(&engine_a(), 1.2, 0.005, 2));
    let found = decode(&base, &new, 0);
    assert_eq!((found.decision.verdict, found.blocks), (Some(Verdict::Slower), (8, 8)));
    assert!((found.evidence.estimate() + 1.2f64.ln()).abs() < 0.01);
    assert!(found.decision.p.unwrap() < 1e-6 && found.p_mann_whitney.unwrap() < 0.01);
    assert_eq!(decode(&new, &base, 0).decision.verdict, Some(Verdict::Faster));
    assert_eq!(decode(&base, &run(&engine_a(), 1.0, 0.002, 3), 0).decision.verdict, Some(Verdict::Same));
}

#[test]
fn where_less_is_better_a_longer_time_is_worse() {
    let (base, new) = (run(&engine_a(), 1.0, 0.005, 1), run(&engine_a(), 1.2, 0.005, 2));
    assert_eq!(by_metric(&base, &new, "inter_token", 0).decision.verdict, Some(Verdict::Slower));
}

#[test]
fn a_wide_spread_of_one_runs_blocks_makes_the_verdict_inconclusive() {
    // Three of four blocks take 10 % more time than the fourth.
    let spread = || {
        let mut time_ms = steady(0.001, 5);
        measured(&engine_a(), 8, move |at| Some(time_ms() * if at.block % 4 == 0 { 1.0 } else { 1.1 }))
    };
    let quiet = run(&engine_a(), 1.0, 0.001, 1);
    let found = decode(&quiet, &spread(), 0);
    assert_eq!(
        (found.threshold_source, found.decision.verdict),
        ("blocks of the new run", Some(Verdict::Inconclusive))
    );
    // The interval alone would have shown a difference.
    assert!(found.decision.p.unwrap() < 0.05);
    assert_eq!(decode(&spread(), &quiet, 0).threshold_source, "blocks of the base");
}

#[test]
fn the_change_of_the_reference_is_a_noise_floor() {
    let both = selection(&["reference", "a"], &["decode"]);
    // All engines are a tenth slower.
    let (base, new) = (run(&both, 1.0, 0.002, 1), run(&both, 1.1, 0.002, 2));
    let found = decode(&base, &new, 1);
    assert_eq!(found.threshold_source, "change of the reference");
    assert!((found.decision.thresholds.difference() - 1.1f64.ln()).abs() < 0.005);
    // Another version of the reference may itself have changed.
    let mut updated = new.clone();
    updated.launches.iter_mut().for_each(|it| it.hello.as_mut().unwrap().version = "2.0".into());
    assert_eq!(decode(&base, &updated, 1).decision.verdict, Some(Verdict::Slower));
    // The reference gives no noise floor for itself.
    assert_eq!(decode(&base, &new, 0).decision.verdict, Some(Verdict::Slower));
}

#[test]
fn the_twins_of_either_run_and_a_calibration_raise_the_threshold() {
    let both = selection(&["reference", "a"], &["decode"]);
    let quiet = |factor: f64, seed| run(&both, factor, 0.002, seed);
    // Configuration 2 is the twin of the reference.
    let (mut loud_noise, mut quiet_noise) = (noisy(|_| 10.0, 0.2, 4), steady(0.002, 6));
    let base =
        measured(&both, 8, |at| if at.configuration == 2 { loud_noise(at) } else { Some(quiet_noise()) });
    assert_eq!(decode(&base, &quiet(1.0, 2), 1).threshold_source, "twin");

    let floor = NoiseFloor::of(&[0.3; 20]).unwrap();
    // `between` is the floor for two runs at different times, `paired` for rows of one run.
    for (between, source) in
        [(None, "calibration"), (Some(NoiseFloor::of(&[0.4]).unwrap()), "calibration at two times")]
    {
        let mut calibrated = quiet(1.2, 3);
        calibrated.header.noise_floors.push(CalibratedFloor {
            configuration: 1,
            workload: "decode".into(),
            metric: crate::plan::MetricId::DECODE_RATE,
            paired: floor,
            between,
            since: String::new(),
        });
        let found = decode(&quiet(1.0, 1), &calibrated, 1);
        assert_eq!((found.threshold_source, found.decision.verdict), (source, Some(Verdict::Inconclusive)));
    }
}

#[test]
fn on_a_quiet_machine_a_difference_above_two_percent_counts() {
    let found = decode(&run(&engine_a(), 1.0, 0.001, 1), &run(&engine_a(), 1.03, 0.001, 2), 0);
    assert_eq!(
        (found.threshold_source, found.decision.verdict),
        ("smallest threshold", Some(Verdict::Slower))
    );
}

#[test]
fn a_verdict_needs_five_interleaved_blocks_on_both_sides() {
    let short = |record: RunRecord, blocks: u32| {
        let launches = record.launches.iter().filter(|it| it.block < blocks).map(|it| it.launch);
        let launches: Vec<u32> = launches.collect();
        let samples = record.samples.iter().filter(|it| launches.contains(&it.launch)).cloned().collect();
        RunRecord { samples, ..record }
    };
    let (base, new) = (run(&engine_a(), 1.0, 0.005, 1), run(&engine_a(), 1.2, 0.005, 2));
    let few = decode(&base, &short(new.clone(), 4), 0);
    assert_eq!((few.decision.verdict, few.decision.p, few.blocks), (None, None, (8, 4)));
    assert!(matches!(decode(&short(base.clone(), 1), &new, 0).evidence, Evidence::RangeOnly { .. }));
    let mut sequential = new.clone();
    sequential.header.plan.order = Order::Sequential;
    assert_eq!(decode(&base, &sequential, 0).decision.verdict, None);
}

#[test]
fn only_gating_comparisons_share_the_correction() {
    let selection = selection(&["a", "b"], &["decode", "ttft"]);
    let (base, new) = (run(&selection, 1.0, 0.005, 1), run(&selection, 1.2, 0.005, 2));
    let found = compared(&base, &new);
    let of_gating = |gating: bool| -> Vec<Decision> {
        let headline = |workload: &str| if workload == "decode" { "decode_rate" } else { "first_token" };
        let all = found.iter().filter(|((workload, index, _), _)| {
            (METRICS[*index].name() == headline(workload.split(' ').next().unwrap())) == gating
        });
        all.map(|(_, found)| found.as_ref().unwrap().decision).collect()
    };
    let gating = of_gating(true);
    // Holm's method multiplies the smallest p value by the number of comparisons.
    let least = gating.iter().min_by(|a, b| a.p.partial_cmp(&b.p).unwrap()).unwrap();
    assert_eq!(least.p_adjusted.unwrap(), least.p.unwrap() * gating.len() as f64);
    assert!(gating.len() > 3 && gating.iter().all(|it| it.p_adjusted >= it.p), "{gating:?}");
    let others = of_gating(false);
    assert!(others.iter().all(|it| it.p_adjusted.is_none()) && others.iter().any(|it| it.p.is_some()));
}

/// The worst case for interim analyses: each run ends as soon as its own interval is narrow. Still 95 % of the intervals of a
/// difference contain the true difference.
#[test]
fn intervals_between_two_runs_under_the_stopping_rule_cover_95_percent() {
    for deviation in [0.5, 1.7, 5.0] {
        // The half-width of the interval at which a run ends, and the unit of `deviation`.
        let target = 0.02f64.ln_1p();
        let mut random = Random::seeded(31);
        let mut run = || {
            let mut block_logs: Vec<f64> = Vec::new();
            for blocks in INTERIM_ANALYSES {
                block_logs.extend((block_logs.len()..blocks).map(|_| deviation * target * random.normal()));
                // The run's own interval, as if each block were a ratio to 1.
                let evidence = Evidence::of(&Ratios::of_blocks(&block_logs), Design::Interim);
                if evidence.interval_of_enough_blocks().unwrap().half_width() <= target {
                    break;
                }
            }
            block_logs
        };
        let experiments = 2_000;
        let covered = (0..experiments).filter(|_| {
            let evidence = Evidence::of_difference(&run(), &run(), Design::Interim).unwrap();
            !evidence.interval_of_enough_blocks().unwrap().excludes_zero()
        });
        let share = covered.count() as f64 / f64::from(experiments);
        assert!((0.935..0.98).contains(&share), "{deviation}: {share}");
    }
}
