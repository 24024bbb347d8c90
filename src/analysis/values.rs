//! Gathers the values of a run record for tables, comparisons, interim analyses and claims. `RunRecord::measured` and this file
//! decide which requests count: the measured ones, without those of launches for output checks. If a block has several requests
//! of one round, the first counts.
//!
//! ```text
//! RunRecord --Values::of--> the measured requests of each case, by launch
//!           --of_metric(case, metric)--> values of each request --launches--> the table's summaries
//!                                                               --blocks--> the comparison's ratios
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::analysis::metric::{self, METRICS, Metric, MetricId, Observation, Per, RecordContext};
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Plan, Workload};
use crate::record::{Launch, RunRecord, Sample};
use stats::{Blocks, Rounds, Summary, median};

/// The largest number of requests from which the headline metric of a running launch is computed.
const MAX_LATEST_REQUESTS: usize = 100;

/// The measured requests of a record. All metrics in a report are computed from these and from the data of their launches.
#[derive(Debug)]
pub struct Values<'a> {
    pub record: &'a RunRecord,
    pub plan: &'a Plan,
    /// For each case of the plan, its launches in the order of their numbers.
    cases: Vec<Vec<LaunchRequests<'a>>>,
    context: RecordContext<'a>,
}

/// The measured requests of a case in one launch. There is at least one.
#[derive(Debug, Clone)]
pub struct LaunchRequests<'a> {
    pub launch: &'a Launch,
    /// The first request of the launch, of any case and kind.
    pub first_of_launch: &'a Sample,
    /// The first request of the case in this launch, of any kind.
    pub first: &'a Sample,
    /// The measured requests in the order of sending.
    pub measured: Vec<&'a Sample>,
}

/// The values of one metric over a case's measured requests, by launch.
#[derive(Debug, Clone)]
pub struct CaseValues {
    per: Per,
    launches: Vec<LaunchValues>,
}

#[derive(Debug, Clone)]
struct LaunchValues {
    block: u32,
    /// The number of each round, with the values of its request: none, one or many.
    rounds: Vec<(u32, Vec<f64>)>,
}

impl<'a> Values<'a> {
    pub fn of(record: &'a RunRecord) -> Self {
        let plan = &record.header.plan;
        let launches: HashMap<u32, &Launch> = record.launches.iter().map(|it| (it.launch, it)).collect();
        let (mut firsts, mut firsts_of_cases) = (HashMap::new(), HashMap::new());
        // A record has its samples in the order of time.
        for sample in &record.samples {
            firsts.entry(sample.launch).or_insert(sample);
            firsts_of_cases.entry((sample.launch, sample.case)).or_insert(sample);
        }
        let mut cases = vec![BTreeMap::<u32, LaunchRequests>::new(); plan.cases.len()];
        for sample in record.measured() {
            let Some(&launch) = launches.get(&sample.launch) else { continue };
            let requests = cases[sample.case].entry(sample.launch).or_insert_with(|| LaunchRequests {
                launch,
                first_of_launch: firsts[&sample.launch],
                first: firsts_of_cases[&(sample.launch, sample.case)],
                measured: Vec::new(),
            });
            requests.measured.push(sample);
        }
        let cases =
            cases.into_iter().map(|launches| each_round_once(launches.into_values().collect())).collect();
        Self { record, plan, cases, context: RecordContext::of(record) }
    }

    /// The launches in which a case was measured.
    pub fn launches(&self, case: usize) -> &[LaunchRequests<'a>] {
        &self.cases[case]
    }

    pub fn is_measured(&self, case: usize) -> bool {
        !self.cases[case].is_empty()
    }

    /// Every measured request of a case, launch by launch.
    pub fn samples(&self, case: usize) -> impl Iterator<Item = &'a Sample> {
        self.cases[case].iter().flat_map(|requests| requests.measured.iter().copied())
    }

    /// Every measured request of a case, with all data that a metric may use.
    pub fn observations(&self, case: usize) -> impl Iterator<Item = Observation<'_>> {
        self.cases[case]
            .iter()
            .flat_map(|requests| self.observations_in(requests).map(|(_, observation)| observation))
    }

    /// The values of a metric in one request of any kind; empty if its launch has no measured request of its case.
    pub fn of_request(&self, sample: &'a Sample, metric: &Metric) -> Vec<f64> {
        let launches = &self.cases[sample.case];
        let index = launches.binary_search_by_key(&sample.launch, |requests| requests.launch.launch);
        index.map_or_else(|_| Vec::new(), |index| (metric.of)(&self.observation(&launches[index], sample)))
    }

    /// The values of a metric in a case; empty if another case shows them.
    pub fn of_metric(&self, case: usize, metric: &Metric) -> CaseValues {
        let is_shown = !is_shown_elsewhere(self.plan, &self.plan.cases[case].workload, metric);
        let launches = self.cases[case].iter().filter(|_| is_shown).map(|requests| LaunchValues {
            block: requests.launch.block,
            rounds: self.observations_in(requests).map(|(round, it)| (round, (metric.of)(&it))).collect(),
        });
        CaseValues { per: metric.per, launches: launches.collect() }
    }

    /// Each measured request with the number of its round.
    fn observations_in<'s>(
        &'s self,
        requests: &'s LaunchRequests<'a>,
    ) -> impl Iterator<Item = (u32, Observation<'s>)> + use<'s, 'a> {
        requests.measured.iter().map(|sample| (sample.index, self.observation(requests, sample)))
    }

    fn observation<'s>(&'s self, requests: &LaunchRequests<'a>, sample: &'a Sample) -> Observation<'s> {
        let observation = Observation::of(&self.context, requests.launch, sample);
        let [workload, of_launch] =
            [sample.case, requests.first_of_launch.case].map(|case| &self.plan.cases[case].workload);
        if workload.headline != MetricId::FIRST_RUN {
            return observation.with_first(Some(requests.first));
        }
        let request = |it: &Workload| (it.prompt.clone(), it.max_new_tokens, it.shape);
        let is_same = request(workload) == request(of_launch) && self.plan.mode == Mode::Warm;
        let cold = is_same.then_some(requests.first_of_launch);
        Observation { cold, ..observation.with_first(cold) }
    }
}

/// The launches of a case in order, with each round of a block once. If a launch was replaced within a block, the first
/// request of a round counts, in tables and in comparisons.
fn each_round_once(mut launches: Vec<LaunchRequests>) -> Vec<LaunchRequests> {
    let mut blocks = HashSet::new();
    if launches.iter().all(|it| blocks.insert(it.launch.block)) {
        return launches;
    }
    let mut rounds = HashSet::new();
    for requests in &mut launches {
        let block = requests.launch.block;
        requests.measured.retain(|sample| rounds.insert((block, sample.index)));
    }
    launches.retain(|requests| !requests.measured.is_empty());
    launches
}

impl CaseValues {
    /// The values for a table: every value of each launch, or only the launch's largest.
    pub fn launches(&self) -> Vec<Vec<f64>> {
        let values = self.launches.iter().map(|launch| match self.per {
            Per::Sample => launch.values().collect(),
            Per::Launch => launch.largest().into_iter().collect(),
        });
        values.collect()
    }

    /// `None` where no launch has a value.
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(&self.launches())
    }

    /// The values for a comparison: one for each round of each block, or one for each block (`Per::Launch`).
    pub fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::new();
        match self.per {
            Per::Sample => {
                for launch in &self.launches {
                    for (round, value) in launch.medians() {
                        blocks.entry(launch.block).or_default().insert(round, value);
                    }
                }
            }
            // A block may have several launches (a launch was replaced, or each request has a launch): the median of the
            // launches counts.
            Per::Launch => {
                let mut largest: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
                for launch in &self.launches {
                    if let Some(value) = launch.largest() {
                        largest.entry(launch.block).or_default().push(value);
                    }
                }
                let medians =
                    largest.into_iter().filter_map(|(block, values)| Some((block, median(&values)?)));
                blocks.extend(medians.map(|(block, median)| (block, Rounds::from([(0, median)]))));
            }
        }
        blocks
    }

    /// The values in the order of time: for each launch its block, and one value for each request.
    pub fn series(self) -> impl Iterator<Item = (u32, Vec<f64>)> {
        self.launches
            .into_iter()
            .map(|launch| (launch.block, launch.medians().map(|(_, value)| value).collect()))
    }
}

impl LaunchValues {
    fn values(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().flat_map(|(_, values)| values.iter().copied())
    }

    fn largest(&self) -> Option<f64> {
        self.values().reduce(f64::max)
    }

    fn medians(&self) -> impl Iterator<Item = (u32, f64)> {
        self.rounds.iter().filter_map(|(round, values)| Some((*round, median(values)?)))
    }
}

/// The values of a record by workload, metric and configuration, each as in `CaseValues::blocks`.
#[derive(Debug, Clone)]
pub struct Measured<'a> {
    pub record: &'a RunRecord,
    pub workloads: Vec<&'a Workload>,
    configurations: usize,
    /// The values of each workload, metric and configuration, in that order.
    blocks: Vec<Blocks>,
}

impl<'a> Measured<'a> {
    pub fn of(record: &'a RunRecord) -> Self {
        Self::from(&Values::of(record))
    }

    pub fn from(values: &Values<'a>) -> Self {
        Self::only(values, |_, _| true)
    }

    /// The values of the workloads and metrics that `is_wanted` accepts: an interim analysis needs only a headline metric.
    pub fn only(values: &Values<'a>, is_wanted: impl Fn(&Workload, &'static Metric) -> bool) -> Self {
        let plan = values.plan;
        let (workloads, configurations) = (workloads(plan), plan.configurations.len());
        let mut blocks = vec![Blocks::new(); workloads.len() * METRICS.len() * configurations];
        for (index, case) in plan.cases.iter().enumerate() {
            let label = &case.workload.label;
            let Some(workload) = workloads.iter().position(|it| it.label == *label) else { continue };
            for (metric_index, metric) in METRICS.iter().enumerate() {
                if metric.is_compared() && is_wanted(&case.workload, metric) {
                    let of_metric = workload * METRICS.len() + metric_index;
                    let series = of_metric * configurations + case.configuration;
                    blocks[series] = values.of_metric(index, metric).blocks();
                }
            }
        }
        Self { record: values.record, configurations, blocks, workloads }
    }

    /// The values of a configuration; `None` if there are none.
    pub fn blocks(&self, workload: usize, metric: usize, configuration: usize) -> Option<&Blocks> {
        let of_metric = workload * METRICS.len() + metric;
        self.blocks.get(of_metric * self.configurations + configuration).filter(|blocks| !blocks.is_empty())
    }

    /// The values of all configurations, in their order.
    pub fn blocks_by_configuration(&self, workload: usize, metric: usize) -> Vec<Blocks> {
        let blocks =
            |configuration| self.blocks(workload, metric, configuration).cloned().unwrap_or_default();
        (0..self.configurations).map(blocks).collect()
    }
}

/// The workloads of a plan, each once, in the order of first use.
pub fn workloads(plan: &Plan) -> Vec<&Workload> {
    let mut workloads: Vec<&Workload> = Vec::new();
    for case in &plan.cases {
        if !workloads.iter().any(|it| it.label == case.workload.label) {
            workloads.push(&case.workload);
        }
    }
    workloads
}

/// The headline metric of a case over the latest requests of a running launch, for a display. `None` without a value.
pub fn headline_so_far(record: &RunRecord, launch: u32, case: usize) -> Option<(&'static Metric, f64)> {
    let plan = &record.header.plan;
    let launch = record.launches.iter().rev().find(|it| it.launch == launch)?;
    let workload = &plan.cases[case].workload;
    let metric = metric::headline(plan, workload)?;
    let measured = record
        .latest_measured(launch, MAX_LATEST_REQUESTS)
        .filter(|it| it.case == case)
        .map(|sample| Observation::without_record(sample, launch, workload.kind, plan.mode));
    let values: Vec<f64> = measured.flat_map(|observation| (metric.of)(&observation)).collect();
    Some((metric, median(&values)?))
}

/// Whether another case shows this metric: if the plan has a workload about launches, only such workloads show the load time.
fn is_shown_elsewhere(plan: &Plan, workload: &Workload, metric: &Metric) -> bool {
    let is_load_in_warm = metric.id == MetricId::LOAD && workload.kind != Kind::Launch;
    is_load_in_warm && plan.cases.iter().any(|case| case.workload.kind == Kind::Launch)
}

#[cfg(test)]
mod tests;
