//! The times of earlier runs, by configuration and workload, and the times of a run's parts that follow from them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::analysis::values::Values;
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Plan, Role, Verification, Workload};
use crate::record::RunRecord;
use crate::run::{self, VerifierTimes};
use stats::median;

/// The size of the block that an estimate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockExtent {
    Usual,
    /// One round of each workload, after the shortest warm-up.
    Shortest,
}

/// The times of earlier runs. Times of later records replace those of earlier ones.
#[derive(Debug, Default)]
pub struct EarlierTimes {
    /// Nanoseconds of a launch, by `configuration_key`.
    launches: BTreeMap<String, f64>,
    /// Nanoseconds of a request, by `configuration_key` and `workload_key`.
    requests: BTreeMap<(String, String), f64>,
    /// Nanoseconds of the `score` requests of an output check, by `configuration_key`.
    scores: BTreeMap<String, f64>,
    /// By `configuration_key`.
    pub verifiers: BTreeMap<String, VerifierTimes>,
}

impl EarlierTimes {
    pub fn of(history: &[RunRecord]) -> Self {
        let mut times = Self::default();
        for record in history {
            let (plan, values) = (&record.header.plan, Values::of(record));
            for (index, configuration) in plan.configurations.iter().enumerate() {
                let key = configuration_key(configuration);
                let launch_ns = record.launches_of(index).filter_map(|it| Some(it.loaded_ns? as f64));
                let launch_ns = median(&launch_ns.collect::<Vec<_>>());
                times.launches.extend(launch_ns.map(|ns| (key.clone(), ns)));
                let scored = record.scored.iter().filter(|it| it.configuration == index);
                let scores_ns: f64 = scored.map(|it| it.elapsed_ns as f64).sum();
                times.scores.extend((scores_ns > 0.0).then(|| (key.clone(), scores_ns)));
                let verifier = VerifierTimes::of(record, index).filter(|_| configuration.verifies);
                times.verifiers.extend(verifier.map(|it| (key.clone(), it)));
                for case in plan.cases_of(index) {
                    let requests: Vec<f64> = values.samples(case).map(|it| it.elapsed_ns() as f64).collect();
                    let key = (key.clone(), workload_key(&plan.cases[case].workload));
                    times.requests.extend(median(&requests).map(|ns| (key, ns)));
                }
            }
        }
        times
    }

    pub fn of_verifier(&self, plan: &Plan, verifier: usize) -> Option<VerifierTimes> {
        self.verifiers.get(&configuration_key(&plan.configurations[verifier])).copied()
    }

    /// The weight and the time of each output check before the first block, as far as the times are known.
    pub fn first_checks(&self, plan: &Plan) -> Vec<(u32, Duration)> {
        let check = |it: &Configuration| {
            let key = configuration_key(it);
            let scores_ns = self.scores.get(&key).copied();
            let verifier = self.verifiers.get(&key);
            match it.role {
                _ if it.unavailable.is_some() => None,
                Some(Role::Twin { .. } | Role::NullEngine) => None,
                // Stored answers replace those of a verifier that scored no text.
                Some(Role::Verifier) => {
                    let launch = verifier?.launch;
                    Some((run::check_weight(it.verifies), launch + duration(scores_ns?)))
                }
                Some(Role::Baseline { .. }) | None => {
                    let launch_ns = self.launches.get(&key).copied().unwrap_or(0.0);
                    let ns = launch_ns + scores_ns.unwrap_or(0.0);
                    Some((run::check_weight(it.verifies), duration(ns)))
                }
            }
        };
        let is_off = plan.verification == Verification::Off;
        plan.configurations.iter().filter(|_| !is_off).filter_map(check).collect()
    }

    /// The time in which a configuration scores its texts, with the launch for it; `None` where a part is not known.
    pub fn scoring_ns(&self, plan: &Plan, configuration: &Configuration) -> Option<f64> {
        let (key, index) = (configuration_key(configuration), index_of(plan, configuration)?);
        let workloads = plan.workloads_of(index).into_iter().filter(|it| it.kind == Kind::Score);
        let requests: Option<Vec<f64>> =
            workloads.map(|it| self.requests.get(&(key.clone(), workload_key(&it))).copied()).collect();
        let requests = requests?;
        let launch_ns = if requests.is_empty() { 0.0 } else { *self.launches.get(&key)? };
        Some(launch_ns + requests.iter().sum::<f64>())
    }

    /// The time of a configuration's launch, warm-up and rounds in one block; `None` where a part is not known.
    pub fn block_ns(&self, plan: &Plan, configuration: &Configuration, extent: BlockExtent) -> Option<f64> {
        let key = configuration_key(configuration);
        let mut ns = *self.launches.get(&key)?;
        let index = index_of(plan, configuration)?;
        let is_of_blocks = |case: &usize| plan.cases[*case].workload.kind != Kind::Score;
        for case in plan.cases_of(index).into_iter().filter(is_of_blocks) {
            let workload = &plan.cases[case].workload;
            let request_ns = *self.requests.get(&(key.clone(), workload_key(workload)))?;
            ns += request_ns * f64::from(requests_of(plan, case, duration(request_ns), extent));
            ns += workload.time_in_use().map_or(0.0, |time| time.as_nanos() as f64);
        }
        Some(ns)
    }
}

fn index_of(plan: &Plan, configuration: &Configuration) -> Option<usize> {
    plan.configurations.iter().position(|it| it.label == configuration.label)
}

/// The number of requests of a case in one block, by the rules of a run.
fn requests_of(plan: &Plan, case: usize, request_time: Duration, extent: BlockExtent) -> u32 {
    let workload = &plan.cases[case].workload;
    let (warm_up, rounds) = match extent {
        BlockExtent::Usual => (run::usual_requests(workload.warmup, request_time), workload.rounds),
        BlockExtent::Shortest => (run::fewest_requests(workload.warmup), workload.rounds.min(1)),
    };
    match workload.kind {
        // A text is scored before the blocks.
        Kind::Score => return 0,
        Kind::Launch => return rounds,
        kind if Kind::IN_ROUNDS.contains(&kind) && plan.mode == Mode::OneShot => return rounds,
        // The time of the measured requests is that of the workload.
        Kind::Stress => return warm_up,
        Kind::Warm | Kind::Speculative | Kind::Serve | Kind::Query => {}
    }
    let discards = run::is_paused_between_requests(plan, case) && run::is_slowed_by_pause(request_time);
    warm_up.saturating_add(rounds.saturating_mul(if discards { 2 } else { 1 }))
}

/// The key of configurations with equal times: all settings, without the label and the role.
pub fn configuration_key(it: &Configuration) -> String {
    let options = serde_json::Value::Object(it.options.clone());
    let model = &it.model.path;
    format!("{}:{:?} {model} {} {:?} {} {options}", it.engine, it.preset, it.device, it.dtype, it.threads)
}

/// The key of workloads whose requests take equal times.
fn workload_key(workload: &Workload) -> String {
    format!("{} {:?} {} {:?}", workload.label, workload.prompt, workload.max_new_tokens, workload.shape)
}

/// A time in nanoseconds that an estimate computed; zero if it is below zero.
pub fn duration(ns: f64) -> Duration {
    Duration::from_nanos(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Order;
    use crate::plan::arrivals::RoundLength;
    use crate::record::specimen::{BEACON, ORIGINAL, measured, selection};

    #[test]
    fn the_estimate_counts_the_requests_that_a_run_makes() {
        let engines = selection(&["patient-original", "beacon"]);
        let mut record = measured(&engines, &[ORIGINAL, BEACON]);
        let case = record.header.plan.cases.iter().position(|it| it.workload.label == "decode").unwrap();
        record.header.plan.cases[case].workload.rounds = 4;
        let (fast, slow) = (Duration::from_millis(100), Duration::from_secs(20));
        let counted = |plan: &Plan, time| {
            [BlockExtent::Usual, BlockExtent::Shortest].map(|extent| requests_of(plan, case, time, extent))
        };
        let mut plan = record.header.plan.clone();
        assert_eq!(counted(&plan, fast), [3 + 2 * 4, 1 + 2], "one is discarded before each measured request");
        assert_eq!(counted(&plan, slow), [1 + 4, 1 + 1], "a pause does not slow down a long request");
        plan.order = Order::Sequential;
        assert_eq!(counted(&plan, fast), [3 + 4, 1 + 1], "engines that run alone are not paused");
        plan.cases[case].workload.warmup = Some(0);
        assert_eq!(counted(&plan, fast), [4, 1]);
        plan.mode = Mode::OneShot;
        assert_eq!(counted(&plan, fast), [4, 1]);
    }

    fn usual_requests(plan: &Plan, request_ns: f64) -> u32 {
        requests_of(plan, 0, duration(request_ns), BlockExtent::Usual)
    }

    #[test]
    fn the_estimate_of_a_block_has_its_launch_and_its_requests() {
        let engines = selection(&["patient-original", "beacon"]);
        let record = measured(&engines, &[ORIGINAL, BEACON]);
        let mut times = EarlierTimes::of(std::slice::from_ref(&record));
        let plan = &record.header.plan;
        let configuration = &plan.configurations[0];
        let decode = plan.cases.iter().find(|case| case.workload.label == "decode").unwrap();
        let request_ns = times.requests[&(configuration_key(configuration), workload_key(&decode.workload))];
        let one_case = Plan { cases: vec![decode.clone()], ..plan.clone() };
        let requests = usual_requests(&one_case, request_ns);
        let expected_ns =
            times.launches[&configuration_key(configuration)] + request_ns * f64::from(requests);
        let block_ns = times.block_ns(&one_case, configuration, BlockExtent::Usual).unwrap();
        assert!((block_ns - expected_ns).abs() < 1.0, "{block_ns}");
        // A set time replaces the requests after the warm-up.
        let mut stress = one_case.clone();
        let workload = &mut stress.cases[0].workload;
        (workload.kind, workload.shape.duration) = (Kind::Stress, Some(RoundLength::minutes(10)));
        workload.rounds = 1;
        times.requests.insert((configuration_key(configuration), workload_key(workload)), request_ns);
        let rounds_ns = request_ns * f64::from(requests - usual_requests(&stress, request_ns));
        let of_stress_ns = times.block_ns(&stress, configuration, BlockExtent::Usual).unwrap();
        assert!((of_stress_ns - (block_ns - rounds_ns + 6e11)).abs() < 1.0, "{of_stress_ns}");
    }
}
