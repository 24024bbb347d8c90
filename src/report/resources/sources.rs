//! Everything that the resources of a case are computed from.

use std::collections::BTreeMap;

use crate::analysis::metric::{self, CoresBusy, Known, MetricId, Observation, OnGpus};
use crate::analysis::values::Values;
use crate::record::Idle;
use stats::median;

pub struct Sources<'a> {
    /// Of each metric.
    estimates: BTreeMap<MetricId, f64>,
    pub observed: Vec<Observation<'a>>,
    pub cores: Option<f64>,
    /// One pass stands for the case. Empty for a CPU.
    pub gpus: OnGpus,
    pub idle: &'a [Idle],
}

impl<'a> Sources<'a> {
    pub fn of(values: &'a Values, case: usize, estimates: BTreeMap<MetricId, f64>) -> Self {
        let observed: Vec<Observation> = values.observed(case).collect();
        let gpus = observed.iter().filter(|it| it.on_device()).find_map(OnGpus::of).unwrap_or_default();
        let cores = CoresBusy::of(values.samples(case)).map(|it| it.cores);
        Self { estimates, observed, cores, gpus, idle: &values.record.idle }
    }

    pub fn estimate(&self, id: MetricId) -> Option<f64> {
        self.estimates.get(&id).copied()
    }

    /// The source of the largest value of device memory.
    pub fn device_bytes_from(&self) -> Option<Known> {
        let known = self.on_device().filter_map(metric::device_memory_known);
        known.reduce(|one, other| if other.0 > one.0 { other } else { one }).map(|(_, whose)| whose)
    }

    pub fn device_stated_bytes(&self) -> Option<f64> {
        let stated = self.on_device().filter_map(metric::stated_device_bytes);
        stated.reduce(f64::max).filter(|&bytes| bytes > 0.0)
    }

    pub fn weights_bytes(&self) -> Option<f64> {
        median(&self.observed.iter().filter_map(metric::weights_bytes).collect::<Vec<_>>())
    }

    fn on_device(&self) -> impl Iterator<Item = &Observation<'a>> {
        self.observed.iter().filter(|it| it.on_device())
    }
}

pub fn bytes(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}
