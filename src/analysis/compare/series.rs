//! A record, sorted into the series that statistics are about: for each workload, metric and configuration the value of
//! every round of every block.

use std::collections::{BTreeMap, HashMap};

use crate::analysis::metric::{METRICS, Metric, Observation, Per, Surroundings};
use crate::plan::scenario::Kind;
use crate::plan::{Plan, Workload};
use crate::record::{Launch, Role, RunRecord, Sample};
use stats::{Blocks, Rounds, median};

/// The workloads of a plan, each once, in the order in which it first names them.
pub fn workloads(plan: &Plan) -> Vec<&Workload> {
    let mut found: Vec<&Workload> = Vec::new();
    for case in &plan.cases {
        if !found.iter().any(|it| it.label == case.workload.label) {
            found.push(&case.workload);
        }
    }
    found
}

/// What was measured in a record, by workload, metric and configuration.
#[derive(Debug, Clone)]
pub struct Measured<'a> {
    pub workloads: Vec<&'a Workload>,
    configurations: usize,
    /// One for each workload, metric and configuration, in that order.
    blocks: Vec<Blocks>,
}

impl<'a> Measured<'a> {
    pub fn of(record: &'a RunRecord) -> Self {
        Self::only(record, |_, _| true)
    }

    /// What `wanted` says of each workload and metric; a run looks at little after every few blocks.
    pub fn only(record: &'a RunRecord, wanted: impl Fn(&Workload, &'static Metric) -> bool) -> Self {
        let plan = &record.header.plan;
        let (workloads, around) = (workloads(plan), Surroundings::of(record));
        let launches: HashMap<u32, &Launch> = record.launches.iter().map(|it| (it.launch, it)).collect();
        let wanted: Vec<Vec<bool>> = workloads
            .iter()
            .map(|workload| {
                METRICS.iter().map(|it| belongs(plan, workload, it) && wanted(workload, it)).collect()
            })
            .collect();
        let place = |label: &str| workloads.iter().position(|it| it.label == label);
        let places: Vec<Option<usize>> = plan.cases.iter().map(|case| place(&case.workload.label)).collect();
        let mut firsts: HashMap<(u32, usize), &Sample> = HashMap::new();
        let mut gathered = Gathered::new(workloads.len() * METRICS.len() * plan.configurations.len());
        for sample in &record.samples {
            // The record has them in the order in which they were asked.
            let first = *firsts.entry((sample.launch, sample.case)).or_insert(sample);
            if sample.role != Role::Measured {
                continue;
            }
            let (Some(case), Some(Some(workload))) = (plan.cases.get(sample.case), places.get(sample.case))
            else {
                continue;
            };
            let Some(&launch) = launches.get(&sample.launch) else { continue };
            let Some(observation) = Observation::of(&around, launch, sample) else { continue };
            let observation = observation.with_first(Some(first));
            for (index, metric) in METRICS.iter().enumerate().filter(|(index, _)| wanted[*workload][*index]) {
                let series =
                    (workload * METRICS.len() + index) * plan.configurations.len() + case.configuration;
                gathered.take(series, metric, launch, sample, (metric.of)(&observation));
            }
        }
        Self { configurations: plan.configurations.len(), blocks: gathered.finish(), workloads }
    }

    /// What a configuration gave; `None` where it gave nothing.
    pub fn blocks(&self, workload: usize, metric: usize, configuration: usize) -> Option<&Blocks> {
        let of_metric = workload * METRICS.len() + metric;
        self.blocks.get(of_metric * self.configurations + configuration).filter(|blocks| !blocks.is_empty())
    }

    /// What all configurations gave, in their order.
    pub fn configurations(&self, workload: usize, metric: usize) -> Vec<Blocks> {
        let of = |configuration| self.blocks(workload, metric, configuration).cloned().unwrap_or_default();
        (0..self.configurations).map(of).collect()
    }
}

/// The time to load is the launch's: where a workload is about launches, the others need not repeat it. A share of a limit
/// differs as its rate does.
fn belongs(plan: &Plan, workload: &Workload, metric: &Metric) -> bool {
    let repeats = metric.name == "load" && workload.kind == Kind::Warm;
    if metric.is_share() {
        return false;
    }
    !repeats || plan.cases.iter().all(|case| case.workload.kind != Kind::Launch)
}

/// What a record is sorted into, sample by sample.
struct Gathered {
    blocks: Vec<Blocks>,
    /// Of metrics of which a launch gives one number: by block, then by launch.
    of_launches: Vec<BTreeMap<u32, BTreeMap<u32, f64>>>,
}

impl Gathered {
    fn new(series: usize) -> Self {
        Self { blocks: vec![Blocks::new(); series], of_launches: vec![BTreeMap::new(); series] }
    }

    fn take(&mut self, series: usize, metric: &Metric, launch: &Launch, sample: &Sample, values: Vec<f64>) {
        let value = match metric.per {
            Per::Sample => median(&values),
            Per::Launch => values.into_iter().reduce(f64::max),
        };
        let (Some(value), true) = (value, series < self.blocks.len()) else { return };
        match metric.per {
            // Where a launch was replaced within a block and began anew, the round that was measured beside the others
            // of its number holds.
            Per::Sample => {
                self.blocks[series].entry(launch.block).or_default().entry(sample.index).or_insert(value);
            }
            Per::Launch => {
                let launches = self.of_launches[series].entry(launch.block).or_default();
                let largest = launches.entry(launch.launch).or_insert(value);
                *largest = largest.max(value);
            }
        }
    }

    /// Launches of one block (one was replaced, or each request has its own) give one number together.
    fn finish(mut self) -> Vec<Blocks> {
        for (blocks, of_launches) in self.blocks.iter_mut().zip(self.of_launches) {
            blocks.extend(of_launches.into_iter().filter_map(|(block, launches)| {
                let values: Vec<f64> = launches.into_values().collect();
                Some((block, Rounds::from([(0, median(&values)?)])))
            }));
        }
        self.blocks
    }
}

#[cfg(test)]
mod tests;
