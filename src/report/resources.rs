//! The resources of a case apart from time: memory in its parts, cores, energy, a GPU. An unknown value is absent, never zero.

pub mod facts;

use serde::Serialize;

use crate::analysis::cores::CoresBusy;
use crate::analysis::metric::{self, Known, MetricId, Observation, OnGpus};
use crate::analysis::values::Values;
use crate::record::RunRecord;
use crate::text::line;
use stats::median;

/// The resources of a case. JSON has these names: add, never rename. Units are bytes, cores, joules, watts and per cent.
/// The metrics among them are estimates.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Resources {
    pub peak_bytes: Option<f64>,
    pub anonymous_bytes: Option<f64>,
    pub file_bytes: Option<f64>,
    pub device_bytes: Option<f64>,
    /// The source of that value.
    pub device_bytes_from: Option<Known>,
    pub device_stated_bytes: Option<f64>,
    pub device_process_bytes: Option<f64>,
    pub device_growth_bytes: Option<f64>,
    pub device_whole_bytes: Option<f64>,
    /// The size that the engine states.
    pub weights_bytes: Option<f64>,
    pub over_weights_bytes: Option<f64>,
    /// CPU time of the process tree, divided by the time of the measured requests.
    pub cores_busy: Option<f64>,
    pub joules_per_token: Option<f64>,
    /// By the counters of its GPUs alone.
    pub gpu_joules_per_token: Option<f64>,
    /// Power of the whole idle machine.
    pub idle_watts: Option<f64>,
    /// NVML's indices of the GPUs that the engine computed on. The fields below are about them, and absent for a CPU.
    pub gpus: Vec<u32>,
    /// Utilisation of the busiest GPU.
    pub gpu_percent: Option<f64>,
    pub gpu_memory_percent: Option<f64>,
    pub gpu_watts: Option<f64>,
    /// The lowest and the highest clock.
    pub gpu_clock_mhz: Option<(u32, u32)>,
    pub gpu_memory_clock_mhz: Option<(u32, u32)>,
    pub gpu_celsius: Option<u32>,
    /// The share of samples in which the GPU was slowed down.
    pub gpu_slowed_share: Option<f64>,
    /// The driver's reasons.
    pub gpu_slowed_by: Vec<String>,
}

impl Resources {
    /// `estimate` gives the estimate of each metric that the case has.
    pub fn of(
        values: &Values,
        record: &RunRecord,
        case: usize,
        estimate: impl Fn(MetricId) -> Option<f64>,
    ) -> Self {
        let busy = CoresBusy::of(values.samples(case));
        let observed: Vec<Observation> = values.observed(case).collect();
        let weights: Vec<f64> = observed.iter().filter_map(metric::weights_bytes).collect();
        let on_device = || observed.iter().filter(|it| it.on_device());
        let stated = on_device().filter_map(metric::stated_device_bytes);
        let known = on_device().filter_map(metric::device_memory_known);
        let known = known.reduce(|one, other| if other.0 > one.0 { other } else { one });
        // One pass stands for the case.
        let gpus = on_device().find_map(OnGpus::of).unwrap_or_default();
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        Self {
            peak_bytes: estimate(MetricId::PEAK_MEMORY),
            anonymous_bytes: estimate(MetricId::MEMORY_ANONYMOUS),
            file_bytes: estimate(MetricId::MEMORY_FILE),
            device_bytes: estimate(MetricId::DEVICE_MEMORY),
            device_bytes_from: known.map(|(_, whose)| whose),
            device_stated_bytes: stated.reduce(f64::max).filter(|&bytes| bytes > 0.0),
            device_process_bytes: bytes(gpus.process_bytes),
            device_growth_bytes: bytes(gpus.growth_bytes),
            device_whole_bytes: bytes(gpus.whole_bytes),
            weights_bytes: median(&weights),
            over_weights_bytes: estimate(MetricId::MEMORY_OVERHEAD),
            cores_busy: busy.map(|it| it.cores).filter(|&cores| cores > 0.0),
            joules_per_token: estimate(MetricId::JOULES_PER_TOKEN),
            gpu_joules_per_token: observed.iter().find_map(metric::gpu_joules_per_token),
            idle_watts: metric::idle_watts(&record.idle),
            gpus: gpus.indices,
            gpu_percent: gpus.busy_percent,
            gpu_memory_percent: gpus.memory_busy_percent,
            gpu_watts: gpus.watts,
            gpu_clock_mhz: gpus.clock_mhz,
            gpu_memory_clock_mhz: gpus.memory_clock_mhz,
            gpu_celsius: gpus.celsius,
            gpu_slowed_share: gpus.slowed_share,
            gpu_slowed_by: gpus.slowed_by.iter().map(|word| line(word)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
