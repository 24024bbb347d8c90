//! The share of whole experiments, with all engines and scenarios, that report any false difference.

use super::noise::{Machine, Noise};
use crate::Better;
use crate::{
    Analysis, Blocks, Epsilon, Evidence, Experiment, NoiseFloor, Rounds, Rule, Series, StoppedBy, Twin,
};
use crate::{Design, INTERIM_ANALYSES, Verdict};

const ENGINES: usize = 3;
const SCENARIOS: usize = 6;
const REFERENCE: usize = 0;

/// The share of experiments with a false verdict. All engines equal the reference, in several scenarios. Each scenario is
/// measured until its intervals are narrow, with a twin of the reference.
pub fn any_false_verdict(noise: Noise, scale: f64, experiments: u32) -> f64 {
    let rule = Rule::default();
    let mut machine = Machine::new(noise, scale * rule.half_width(), 7);
    let told_apart = (0..experiments).filter(|_| {
        let series = (0..SCENARIOS).map(|_| scenario(&mut machine, rule)).collect();
        let found = experiment(series).compare(&pairs());
        found.into_iter().flatten().any(|it| it.decision.verdict.is_some_and(Verdict::is_a_difference))
    });
    told_apart.count() as f64 / f64::from(experiments)
}

/// The share of comparisons between two runs of one program with a false verdict, without and with the noise floor of the
/// runs' own blocks. `apart` is the deviation between runs, divided by that between the blocks of one.
pub fn false_between_runs(apart: f64, experiments: u32) -> [f64; 2] {
    let mut machine = Machine::new(Noise::Normal, 0.02, 11);
    let mut told_apart = [0u32; 2];
    for _ in 0..experiments {
        let mut run = || -> Vec<f64> {
            let level = apart * machine.block();
            (0..INTERIM_ANALYSES[0]).map(|_| level + machine.block()).collect()
        };
        let (base, new) = (run(), run());
        let evidence = Evidence::of_difference(&new, &base, Design::Interim);
        let Some(interval) = evidence.and_then(|it| it.firm()) else { continue };
        let own = NoiseFloor::highest([&base, &new].map(|levels| NoiseFloor::between_blocks(levels)));
        for (count, floor) in told_apart.iter_mut().zip([None, own]) {
            *count += u32::from(Verdict::of(&interval, Epsilon::over(floor)).is_a_difference());
        }
    }
    told_apart.map(|count| f64::from(count) / f64::from(experiments))
}

fn scenario(machine: &mut Machine, rule: Rule) -> Series {
    let mut configurations = vec![Blocks::new(); ENGINES + 1];
    let mut blocks = 0;
    loop {
        for block in blocks..INTERIM_ANALYSES.into_iter().find(|look| *look > blocks).unwrap_or(blocks) {
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
fn a_whole_experiment_among_equals_has_any_false_verdict_no_more_often_than_is_stated() {
    for (noise, scale) in [(Noise::Normal, 1.7), (Noise::Plateaus, 1.0), (Noise::HitOnEitherSide, 1.0)] {
        let found = any_false_verdict(noise, scale, 300);
        assert!(found <= 0.05, "{noise:?} {scale}: {found}");
    }
}

#[test]
fn the_floor_between_blocks_prevents_false_differences_of_two_runs() {
    let [alone, with_floor] = false_between_runs(0.0, 2_000);
    assert!(alone < 0.05 && with_floor < 0.01, "{alone} {with_floor}");
    // The deviation between runs equals that between the blocks of one.
    let [alone, with_floor] = false_between_runs(1.0, 2_000);
    assert!(alone > 0.25 && with_floor < 0.04, "{alone} {with_floor}");
}
