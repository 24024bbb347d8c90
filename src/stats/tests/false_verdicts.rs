//! The share of false differences between equal engines, in single comparisons and in whole experiments, and the share of real
//! differences that are found.

use super::noise::{ALL, Machine, Noise};
use crate::interval::CONFIDENCE;
use crate::{
    Analysis, Better, Blocks, Design, Evidence, Experiment, INTERIM_ANALYSES, NoiseFloor, VerdictThresholds,
};
use crate::{Ratios, Rounds, Rule, Series, StoppedBy, Twin, Verdict};

/// The reference and two others. The twin of the reference has the next index.
const ENGINES: usize = 3;
const REFERENCE: usize = 0;
const WORKLOADS: usize = 6;

/// The measurements that give the noise floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FloorSource {
    /// No noise floor, so a difference above 2 % counts.
    Nothing,
    /// The twin of the reference, in the same blocks.
    Twin,
    /// The twin, and a calibration of 40 blocks.
    Calibration,
}

/// The highest of the known noise floors, as an experiment and a comparison of records select it.
fn highest(floors: [Option<NoiseFloor>; 2]) -> Option<NoiseFloor> {
    floors.into_iter().flatten().max_by(|a, b| a.log_ratio().total_cmp(&b.log_ratio()))
}

/// The share of experiments with each verdict: faster, slower, same, inconclusive. `scale` is the deviation of a block, divided
/// by the half width that the rule demands; `shift` is the true log ratio.
pub fn verdicts(noise: Noise, scale: f64, source: FloorSource, shift: f64, experiments: u32) -> [f64; 4] {
    let rule = Rule::default();
    verdicts_under(rule, Machine::new(noise, scale * rule.half_width(), 99), source, shift, experiments)
}

pub fn verdicts_under(
    rule: Rule,
    mut machine: Machine,
    source: FloorSource,
    shift: f64,
    experiments: u32,
) -> [f64; 4] {
    let mut counts = [0u32; 4];
    for _ in 0..experiments {
        let (interval, blocks) = machine.experiment(rule, Design::Interim, shift);
        let mut more_blocks = |blocks: usize| -> Vec<f64> { (0..blocks).map(|_| machine.block()).collect() };
        let twin_floor = NoiseFloor::of_twin(&Ratios::of_blocks(&more_blocks(blocks)))
            .filter(|_| source != FloorSource::Nothing);
        let stored_floor =
            if source == FloorSource::Calibration { NoiseFloor::of(&more_blocks(40)) } else { None };
        let verdict =
            Verdict::of(&interval, VerdictThresholds::above_floor(highest([stored_floor, twin_floor])));
        counts[verdict as usize] += 1;
    }
    counts.map(|count| f64::from(count) / f64::from(experiments))
}

/// The share of experiments with a false verdict. All engines equal the reference, in several workloads. Each workload is
/// measured, with a twin of the reference, until the rule ends it.
pub fn any_false_verdict(noise: Noise, scale: f64, experiments: u32) -> f64 {
    let rule = Rule::default();
    let mut machine = Machine::new(noise, scale * rule.half_width(), 7);
    let false_verdicts = (0..experiments).filter(|_| {
        let series = (0..WORKLOADS).map(|_| simulate_workload(&mut machine, rule)).collect();
        let results = experiment(series).compare(&pairs());
        let verdicts = results.into_iter().filter_map(|it| it.result.ok()?.decision.verdict);
        verdicts.into_iter().any(Verdict::is_a_difference)
    });
    false_verdicts.count() as f64 / f64::from(experiments)
}

/// The share of false verdicts in comparisons of two runs of one program: without a noise floor, and with the noise floor
/// between the blocks of each run. `deviation_ratio` is the deviation between runs, divided by the deviation between the blocks
/// of one run.
pub fn false_between_runs(deviation_ratio: f64, experiments: u32) -> [f64; 2] {
    let mut machine = Machine::new(Noise::Normal, 0.02, 11);
    let mut false_verdicts = [0u32; 2];
    for _ in 0..experiments {
        let mut run = || -> Vec<f64> {
            let level = deviation_ratio * machine.block();
            (0..INTERIM_ANALYSES[0]).map(|_| level + machine.block()).collect()
        };
        let (earlier, later) = (run(), run());
        let evidence = Evidence::of_difference(&later, &earlier, Design::Interim);
        let Some(interval) = evidence.and_then(|it| it.interval_of_enough_blocks()) else { continue };
        let floor_of_runs = highest([&earlier, &later].map(|levels| NoiseFloor::between_blocks(levels)));
        for (count, floor) in false_verdicts.iter_mut().zip([None, floor_of_runs]) {
            *count +=
                u32::from(Verdict::of(&interval, VerdictThresholds::above_floor(floor)).is_a_difference());
        }
    }
    false_verdicts.map(|count| f64::from(count) / f64::from(experiments))
}

/// Simulates one workload of an experiment until the rule ends it.
fn simulate_workload(machine: &mut Machine, rule: Rule) -> Series {
    let mut configurations = vec![Blocks::new(); ENGINES + 1];
    let mut blocks = 0;
    loop {
        for block in blocks..INTERIM_ANALYSES.into_iter().find(|next| *next > blocks).unwrap_or(blocks) {
            for (index, configuration) in configurations.iter_mut().enumerate() {
                let value = if index == REFERENCE { 1.0 } else { machine.block().exp() };
                configuration.insert(block as u32, Rounds::from([(0, value)]));
            }
        }
        blocks = configurations[REFERENCE].len();
        let (better, stopped_by) = (Better::Higher, StoppedBy::Width);
        let series = Series { better, gating: true, stopped_by, floors: Vec::new(), configurations };
        match experiment(vec![series.clone()]).analyse(rule, blocks, &pairs()) {
            Analysis::Stop(stopped_by) => return Series { stopped_by, ..series },
            Analysis::GoOn { .. } => configurations = series.configurations,
        }
    }
}

fn experiment(series: Vec<Series>) -> Experiment {
    let twins = vec![Twin { twin: ENGINES, of: REFERENCE }];
    Experiment { interleaved: true, seed: None, twins, series }
}

fn pairs() -> Vec<(usize, usize)> {
    (1..ENGINES).map(|engine| (engine, REFERENCE)).collect()
}

#[test]
fn equal_pairs_have_no_more_false_verdicts_than_claimed() {
    for noise in ALL {
        for scale in [0.8, 1.7] {
            for source in [FloorSource::Nothing, FloorSource::Twin, FloorSource::Calibration] {
                // Under skew, or noise that always hits the same engine, only a calibrated noise floor keeps the claim.
                let is_one_sided = matches!(noise, Noise::Skewed(_) | Noise::HitOnOneSide);
                if !is_one_sided || source == FloorSource::Calibration {
                    let [faster, slower, ..] = verdicts(noise, scale, source, 0.0, 1_000);
                    assert!(
                        faster + slower <= 1.0 - CONFIDENCE,
                        "{noise:?} {scale} {source:?}: {faster} {slower}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_real_difference_of_five_percent_is_found_unless_noise_hides_it() {
    let shift = 0.95f64.ln();
    let [faster, slower, same, _] = verdicts(Noise::Normal, 0.5, FloorSource::Twin, shift, 500);
    assert!(slower > 0.97 && faster == 0.0 && same == 0.0, "{slower}");
    let [faster, slower, same, inconclusive] = verdicts(Noise::Normal, 5.0, FloorSource::Twin, shift, 500);
    assert!(inconclusive > 0.9 && faster == 0.0, "{faster} {slower} {same} {inconclusive}");
}

#[test]
fn equal_engines_rarely_have_any_false_verdict_in_a_whole_experiment() {
    for (noise, scale) in [(Noise::Normal, 1.7), (Noise::Plateaus, 1.0), (Noise::HitOnEitherSide, 1.0)] {
        let share = any_false_verdict(noise, scale, 300);
        assert!(share <= 1.0 - CONFIDENCE, "{noise:?} {scale}: {share}");
    }
}

#[test]
fn the_floor_between_blocks_prevents_false_differences_of_two_runs() {
    let [without_floor, with_floor] = false_between_runs(0.0, 2_000);
    assert!(without_floor < 0.05 && with_floor < 0.01, "{without_floor} {with_floor}");
    // The deviation between runs equals the deviation between the blocks of one run.
    let [without_floor, with_floor] = false_between_runs(1.0, 2_000);
    assert!(without_floor > 0.25 && with_floor < 0.04, "{without_floor} {with_floor}");
}
