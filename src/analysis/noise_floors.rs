//! Computes noise floors from a calibration, and finds the known floors that hold for a plan. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::analysis::metric::{METRICS, MetricId};
use crate::analysis::values::Measured;
use crate::machine::Device;
use crate::plan::axes::Shape;
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Plan, Prompt, Selection, Verification, Workload};
use crate::record::{CalibratedFloor, RunRecord};
use stats::{NoiseFloor, Ratios, levels};

/// The least number of blocks of a noise floor that is stored for other runs. A floor from fewer blocks is only shown.
pub use stats::MIN_VERDICT_BLOCKS as MIN_STORED_BLOCKS;
/// The number of blocks of a calibration: a 95th percentile needs twenty values.
pub const CALIBRATION_BLOCKS: u32 = 20;

/// The key of a noise floor: one metric of one case, in any plan. A new build of a program keeps its key, because the
/// noise comes from the machine and this kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The identity of the weights, or the path of weights without an identity.
    pub model: String,
    pub device: Device,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    pub threads: u32,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    pub mode: Mode,
    /// The workload's label.
    pub workload: String,
    pub prompt: Prompt,
    pub max_new_tokens: u32,
    #[serde(flatten)]
    pub shape: Shape,
    pub metric: MetricId,
}

/// The noise floors of one metric of one case, from a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownFloor {
    #[serde(flatten)]
    pub key: Key,
    /// The noise floor of interleaved measurements.
    pub paired: NoiseFloor,
    /// The noise floor between two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<NoiseFloor>,
    /// The time of the calibration, in RFC 3339.
    pub since: String,
    /// The id of the calibration's run record.
    pub record: String,
    /// The index of the configuration in the plan of that record.
    #[serde(skip)]
    pub configuration: usize,
}

/// The plan of a calibration: every engine with its twin, for as many blocks as a noise floor needs or the user requests. Scored
/// texts are left out, because a score has no noise.
pub fn plan_of(selection: &Selection) -> Plan {
    let mut selection = selection.clone();
    selection.scenarios.retain(|it| it.kind != Kind::Score);
    selection.extent.blocks.get_or_insert(CALIBRATION_BLOCKS);
    // A calibration measures noise, which does not depend on correct output.
    (selection.verifier, selection.verification) = (None, Verification::Off);
    Plan::new(&selection).with_twins_of_all()
}

/// The noise floors of each configuration with a twin, by workload and metric. `paired` comes from the differences between
/// configuration and twin in each block, and `between` from the differences between the blocks of the configuration itself.
pub fn floors_of(record: &RunRecord) -> Vec<KnownFloor> {
    let plan = &record.header.plan;
    let measured = Measured::of(record);
    let twins = (0..plan.configurations.len()).filter_map(|it| Some((it, plan.twin_of(it)?)));
    let mut floors = Vec::new();
    for (configuration, twin) in twins {
        for (workload_index, workload) in measured.workloads.iter().enumerate() {
            for (metric_index, metric) in METRICS.iter().enumerate() {
                let blocks = |configuration| measured.blocks(workload_index, metric_index, configuration);
                let (Some(original), Some(repeated)) = (blocks(configuration), blocks(twin)) else {
                    continue;
                };
                // A value without a logarithm is an error that the report of the record shows.
                let Ok(ratios) = Ratios::paired(original, repeated) else { continue };
                let Some(paired) = NoiseFloor::of(ratios.blocks()) else { continue };
                floors.push(KnownFloor {
                    key: Key::of(plan, &plan.configurations[configuration], workload, metric.id),
                    paired,
                    between: NoiseFloor::between_blocks(&levels(original)),
                    since: record.header.started.clone(),
                    record: record.header.id.clone(),
                    configuration,
                });
            }
        }
    }
    floors
}

/// The known noise floors that hold for a plan, in the form of a record's header.
pub fn known_for(plan: &Plan, known: &[KnownFloor]) -> Vec<CalibratedFloor> {
    let mut floors = Vec::new();
    for case in &plan.cases {
        let configuration = &plan.configurations[case.configuration];
        // A twin or baseline uses the noise floor of its row, so it has none of its own.
        for metric in METRICS.iter().filter(|_| configuration.role.is_none()) {
            let key = Key::of(plan, configuration, &case.workload, metric.id);
            let Some(known) = known.iter().find(|it| it.key == key) else { continue };
            floors.push(CalibratedFloor {
                configuration: case.configuration,
                workload: case.workload.label.clone(),
                metric: metric.id,
                paired: known.paired,
                between: known.between,
                since: known.since.clone(),
            });
        }
    }
    floors
}

impl Key {
    fn of(plan: &Plan, configuration: &Configuration, workload: &Workload, metric: MetricId) -> Self {
        let Configuration { engine, preset, model, device, dtype, threads, options, .. } =
            configuration.clone();
        Self {
            engine,
            preset,
            model: model.identity.unwrap_or(model.path),
            device,
            dtype,
            threads,
            options,
            mode: plan.mode,
            workload: workload.label.clone(),
            prompt: workload.prompt.clone(),
            max_new_tokens: workload.max_new_tokens,
            shape: workload.shape,
            metric,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Role;
    use crate::plan::axes::AxisValues;
    use crate::record::specimen::planned;
    use crate::record::specimen::timed::{self, selection};
    use stats::{Random, VerdictThresholds};

    /// A calibration of two engines. The second one is much noisier. Both have slow blocks.
    fn calibrated(blocks: u32) -> RunRecord {
        let selection = selection(&["calm", "wild"], &["decode"]);
        let mut record = planned(&selection);
        record.header.plan = plan_of(&selection);
        let mut random = Random::seeded(5);
        for block in 0..blocks {
            // The noise of the machine, which affects the whole block.
            let slowdown = if block % 4 == 3 { 1.5 } else { 1.0 };
            for configuration in 0..record.header.plan.configurations.len() {
                let noise = if configuration % 2 == 0 { 0.001 } else { 0.1 };
                let launch = timed::launch(&mut record, configuration, block, "x");
                let case = record.header.plan.cases_of(configuration)[0];
                let launch_factor = slowdown * (noise * (2.0 * random.unit() - 1.0)).exp();
                for round in 0..3 {
                    timed::answer(&mut record, launch, case, round, 2.0 * launch_factor);
                }
            }
        }
        record
    }

    fn floor<'a>(known: &'a [KnownFloor], engine: &str, metric: &str) -> &'a KnownFloor {
        known.iter().find(|it| it.key.engine == engine && it.key.metric.as_str() == metric).unwrap()
    }

    #[test]
    fn calibration_plans_each_engine_with_its_twin_for_twenty_blocks_by_default() {
        let plan = plan_of(&selection(&["a", "b"], &["decode", "load"]));
        let roles: Vec<_> = plan.configurations.iter().map(|it| it.role).collect();
        assert_eq!(roles, [None, None, Some(Role::Twin { of: 0 }), Some(Role::Twin { of: 1 })]);
        assert_eq!((plan.extent.blocks, plan.cases.len()), (Some(20), 8));
        let mut single = selection(&["a"], &["decode"]);
        single.extent.blocks = Some(3);
        let plan = plan_of(&single);
        assert_eq!((plan.configurations.len(), plan.extent.blocks), (2, Some(3)));
    }

    #[test]
    fn a_floor_is_the_difference_of_an_engine_and_its_twin_without_common_noise() {
        let known = floors_of(&calibrated(20));
        let (calm, wild) = (floor(&known, "calm", "decode_rate"), floor(&known, "wild", "decode_rate"));
        assert!(calm.paired.log_ratio() < 0.002, "{calm:?}");
        assert!((0.05..0.2).contains(&wild.paired.log_ratio()), "{wild:?}");
        assert_eq!((calm.paired.blocks(), calm.record.as_str()), (20, "2026-01-02T03-04-05Z-123"));
        // Between two runs the slow blocks count, because a whole run may be slow.
        let between = calm.between.unwrap();
        assert!((1.5f64.ln()..2f64.ln()).contains(&between.log_ratio()), "{calm:?}");
        assert_eq!(between.blocks(), 20);
    }

    #[test]
    fn a_calibration_holds_only_for_the_same_work() {
        let known = floors_of(&calibrated(5));
        let run = selection(&["wild", "calm", "new"], &["decode", "prefill"]);
        let plan = Plan::new(&run);
        let found = known_for(&plan, &known);
        let floors = |configuration: usize| found.iter().filter(move |it| it.configuration == configuration);
        assert!(floors(0).any(|it| it.metric == MetricId::DECODE_RATE
            && it.paired == floor(&known, "wild", "decode_rate").paired));
        assert!(floors(1).count() > 3 && floors(2).count() == 0);
        assert!(found.iter().all(|it| it.workload == "decode"));
        // Twins have no floors of their own.
        assert!(found.iter().all(|it| plan.configurations[it.configuration].role.is_none()));
        let one_thread = Selection { threads: vec![1], ..run.clone() };
        assert_eq!(known_for(&Plan::new(&one_thread), &known), []);
        let shorter = Selection { axes: AxisValues::with_new_tokens(7), ..run.clone() };
        assert_eq!(known_for(&Plan::new(&shorter), &known), []);
        let mut longer = run;
        (longer.rounds, longer.seed) = (Some(9), 7);
        assert_eq!(known_for(&Plan::new(&longer), &known).len(), found.len());
    }

    #[test]
    fn a_record_without_twins_or_values_has_no_floors() {
        assert_eq!(floors_of(&RunRecord::default()), []);
        assert_eq!(floors_of(&calibrated(0)), []);
        let of_one_block = floors_of(&calibrated(1));
        assert!(!of_one_block.is_empty() && of_one_block.iter().all(|it| it.between.is_none()));
        // The smallest difference that can count is 2 %: the logarithm of 1.02 is 0.0198.
        assert!(VerdictThresholds::above_floor(Some(of_one_block[0].paired)).difference() >= 0.0198);
    }
}
