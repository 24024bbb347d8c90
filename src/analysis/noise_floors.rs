//! Noise floors: those that engines show against themselves, and those that hold for another plan. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::analysis::metric::{METRICS, MetricId};
use crate::analysis::values::Measured;
use crate::machine::Device;
use crate::plan::{Configuration, Mode, Plan, Prompt, Selection, Verification, Workload};
use crate::record::{CalibratedFloor, RunRecord};
use stats::{NoiseFloor, Ratios, levels};

/// The least number of blocks of a noise floor that is kept for other runs; with fewer, it is only shown.
pub use stats::FIRM as KEPT_FROM;
/// The number of blocks of a calibration: a 95th percentile needs twenty values.
const BLOCKS: u32 = 20;

/// One metric of one case, as it may occur in any plan. Programs may be built anew: the noise is that of the machine with this
/// kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The identity of the weights, or the path where they have none.
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
    pub metric: MetricId,
}

/// The noise floor of a configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    #[serde(flatten)]
    pub key: Key,
    /// For measurements side by side.
    pub paired: NoiseFloor,
    /// For measurements at two times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<NoiseFloor>,
    /// The time of the calibration, in RFC 3339.
    pub since: String,
    /// The run record that it comes from.
    pub record: String,
    /// Its index in that record's plan.
    #[serde(skip)]
    pub configuration: usize,
}

/// The plan of a calibration: every engine with its twin, for as many blocks as a noise floor needs or the user requests.
pub fn plan_of(selection: &Selection) -> Plan {
    let mut selection = selection.clone();
    selection.extent.blocks.get_or_insert(BLOCKS);
    // Calibration measures noise, and wrong output does not change it.
    (selection.verifier, selection.verification) = (None, Verification::Off);
    Plan::new(&selection).with_twins_of_all()
}

/// The noise floors for each configuration with a twin, workload and metric. One is from the differences of the two in each
/// block, the other from the differences between blocks of the configuration itself.
pub fn floors_of(record: &RunRecord) -> Vec<Known> {
    let plan = &record.header.plan;
    let measured = Measured::of(record);
    let twins = (0..plan.configurations.len()).filter_map(|it| Some((it, plan.twin_of(it)?)));
    let mut found = Vec::new();
    for (configuration, twin) in twins {
        for (number, workload) in measured.workloads.iter().enumerate() {
            for (index, metric) in METRICS.iter().enumerate() {
                let blocks = |configuration| measured.blocks(number, index, configuration);
                let (Some(own), Some(other)) = (blocks(configuration), blocks(twin)) else { continue };
                // A value without a logarithm is an error that the report of the record shows.
                let Ok(ratios) = Ratios::paired(own, other) else { continue };
                let Some(paired) = NoiseFloor::of(ratios.blocks()) else { continue };
                found.push(Known {
                    key: Key::of(plan, &plan.configurations[configuration], workload, metric.id),
                    paired,
                    between: NoiseFloor::between_blocks(&levels(own)),
                    since: record.header.started.clone(),
                    record: record.header.id.clone(),
                    configuration,
                });
            }
        }
    }
    found
}

/// The known noise floors of a plan's measurements, as its record's header has them.
pub fn known_for(plan: &Plan, known: &[Known]) -> Vec<CalibratedFloor> {
    let mut found = Vec::new();
    for case in &plan.cases {
        let configuration = &plan.configurations[case.configuration];
        // A twin or baseline is as noisy as its row.
        for metric in METRICS.iter().filter(|_| configuration.role.is_none()) {
            let key = Key::of(plan, configuration, &case.workload, metric.id);
            let Some(known) = known.iter().find(|it| it.key == key) else { continue };
            found.push(CalibratedFloor {
                configuration: case.configuration,
                workload: case.workload.label.clone(),
                metric: metric.id,
                paired: known.paired,
                between: known.between,
                since: known.since.clone(),
            });
        }
    }
    found
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
            metric,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Role;
    use crate::record::specimen::planned;
    use crate::record::specimen::timed::{self, selection};
    use stats::{Epsilon, Random};

    /// A calibration of two engines, of which the second is much noisier. Both have slow blocks.
    fn calibrated(blocks: u32) -> RunRecord {
        let selection = selection(&["calm", "wild"], &["decode"]);
        let mut record = planned(&selection);
        record.header.plan = plan_of(&selection);
        let mut random = Random::seeded(5);
        for block in 0..blocks {
            // The machine's noise, on the whole block.
            let slow = if block % 4 == 3 { 1.5 } else { 1.0 };
            for configuration in 0..record.header.plan.configurations.len() {
                let noise = if configuration % 2 == 0 { 0.001 } else { 0.1 };
                let launch = timed::launch(&mut record, configuration, block, "x");
                let case = record.header.plan.cases_of(configuration)[0];
                let of_launch = slow * (noise * (2.0 * random.unit() - 1.0)).exp();
                for round in 0..3 {
                    timed::answer(&mut record, launch, case, round, 2.0 * of_launch);
                }
            }
        }
        record
    }

    fn floor<'a>(known: &'a [Known], engine: &str, metric: &str) -> &'a Known {
        known.iter().find(|it| it.key.engine == engine && it.key.metric.as_str() == metric).unwrap()
    }

    #[test]
    fn calibration_plans_each_engine_with_its_twin_for_twenty_blocks_by_default() {
        let plan = plan_of(&selection(&["a", "b"], &["decode", "load"]));
        let besides: Vec<_> = plan.configurations.iter().map(|it| it.role).collect();
        assert_eq!(besides, [None, None, Some(Role::Twin { of: 0 }), Some(Role::Twin { of: 1 })]);
        assert_eq!((plan.extent.blocks, plan.cases.len()), (Some(20), 8));
        let mut one = selection(&["a"], &["decode"]);
        one.extent.blocks = Some(3);
        let plan = plan_of(&one);
        assert_eq!((plan.configurations.len(), plan.extent.blocks), (2, Some(3)));
    }

    #[test]
    fn a_floor_is_the_difference_of_an_engine_and_its_twin_without_common_noise() {
        let known = floors_of(&calibrated(20));
        let (calm, wild) = (floor(&known, "calm", "decode_rate"), floor(&known, "wild", "decode_rate"));
        assert!(calm.paired.log_ratio() < 0.002, "{calm:?}");
        assert!((0.05..0.2).contains(&wild.paired.log_ratio()), "{wild:?}");
        assert_eq!((calm.paired.blocks(), calm.record.as_str()), (20, "2026-01-02T03-04-05Z-123"));
        // Of measurements at two times one may be slow, here by a half.
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
        let of = |configuration: usize| found.iter().filter(move |it| it.configuration == configuration);
        assert!(of(0).any(|it| it.metric == MetricId::DECODE_RATE
            && it.paired == floor(&known, "wild", "decode_rate").paired));
        assert!(of(1).count() > 3 && of(2).count() == 0 && found.iter().all(|it| it.workload == "decode"));
        // Twins have none: they are as noisy as their originals.
        assert!(found.iter().all(|it| plan.configurations[it.configuration].role.is_none()));
        let mut other = run.clone();
        other.threads = vec![1];
        assert_eq!(known_for(&Plan::new(&other), &known), []);
        let mut shorter = run.clone();
        shorter.max_new_tokens = Some(7);
        assert_eq!(known_for(&Plan::new(&shorter), &known), []);
        let mut longer = run;
        (longer.rounds, longer.seed) = (Some(9), 7);
        assert_eq!(known_for(&Plan::new(&longer), &known).len(), found.len());
    }

    #[test]
    fn a_record_without_twins_or_values_has_no_floors() {
        assert_eq!(floors_of(&RunRecord::default()), []);
        assert_eq!(floors_of(&calibrated(0)), []);
        let one = floors_of(&calibrated(1));
        assert!(!one.is_empty() && one.iter().all(|it| it.between.is_none()));
        assert!(Epsilon::over(Some(one[0].paired)).difference() >= 0.0198);
    }
}
