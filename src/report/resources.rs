//! What a case needed beside time: memory in its parts, cores, energy, a GPU. What nobody knows is absent, never zero.

pub mod sheet;

use serde::Serialize;

use super::Figure;
use super::seen::Seen;
use crate::metric::{self, Observation};
use crate::record::{Pass, Sample};
use crate::stats::median;

/// JSON has it as it stands: add, never rename. Bytes, cores, joules, watts, per cent. Figures of the table of metrics are their estimates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Resources {
    pub peak_bytes: Option<f64>,
    pub anonymous_bytes: Option<f64>,
    pub file_bytes: Option<f64>,
    pub device_bytes: Option<f64>,
    /// As the engine states them.
    pub weights_bytes: Option<f64>,
    pub over_weights_bytes: Option<f64>,
    /// CPU time of the process tree over the time of the measured requests.
    pub cores_busy: Option<f64>,
    pub joules_per_token: Option<f64>,
    /// Of the whole machine, when nothing ran.
    pub idle_watts: Option<f64>,
    /// Of the GPU that was busiest; absent for an engine that computes on the CPU.
    pub gpu_percent: Option<f64>,
}

impl Resources {
    pub fn of(seen: &Seen, case: usize, figures: &[Figure]) -> Self {
        let estimate = |name: &str| {
            let figure = figures.iter().find(|figure| figure.metric.name == name);
            figure.map(|figure| figure.summary.estimate)
        };
        let measured: Vec<&Sample> = seen.samples[case].values().flatten().copied().collect();
        let launches = seen.samples[case].keys().filter_map(|launch| seen.launches.get(launch).copied());
        let plan = seen.plan;
        let kind = plan.cases[case].workload.kind;
        let asked = plan.configurations.get(plan.cases[case].configuration);
        let observed: Vec<Observation> = launches
            .zip(&measured)
            .map(|(launch, sample)| Observation {
                configuration: asked,
                ..Observation::alone(sample, launch, kind, plan.mode)
            })
            .collect();
        let weights = observed.iter().filter_map(metric::weights_bytes);
        // Of an engine that computes on the CPU it is somebody else's GPU.
        let on_device = observed.iter().any(metric::on_device);
        let passes: Vec<&Pass> = seen.record.passes.iter().filter(|pass| pass.case == case).collect();
        let busiest = |pass: &&Pass| pass.gpus.iter().filter_map(|gpu| gpu.utilisation_percent).max();
        let gpu: Vec<f64> = passes.iter().filter(|_| on_device).filter_map(busiest).map(f64::from).collect();
        Self {
            peak_bytes: estimate("peak_memory"),
            anonymous_bytes: estimate("memory_anonymous"),
            file_bytes: estimate("memory_file"),
            device_bytes: estimate("device_memory"),
            weights_bytes: median(&weights.collect::<Vec<_>>()),
            over_weights_bytes: estimate("memory_overhead"),
            cores_busy: cores_busy(&measured),
            joules_per_token: estimate("joules_per_token"),
            idle_watts: metric::idle_watts(&seen.record.idle),
            gpu_percent: median(&gpu),
        }
    }

    /// What is no metric, for a table of one line for each figure: its name, unit and value.
    pub fn lines(&self) -> [(&'static str, &'static str, Option<f64>); 4] {
        [
            ("weights", "bytes", self.weights_bytes),
            ("cores_busy", "cores", self.cores_busy),
            ("idle_power", "W", self.idle_watts),
            ("gpu_utilisation", "%", self.gpu_percent),
        ]
    }
}

/// Of those requests whose CPU time is known.
fn cores_busy(samples: &[&Sample]) -> Option<f64> {
    let known = samples
        .iter()
        .filter_map(|sample| Some((sample.cpu_ns?, sample.answered_ns.saturating_sub(sample.sent_ns))));
    let (busy, elapsed) = known.fold((0u128, 0u128), |(busy, elapsed), (cpu_ns, ns)| {
        (busy + u128::from(cpu_ns), elapsed + u128::from(ns))
    });
    (busy > 0 && elapsed > 0).then(|| busy as f64 / elapsed as f64)
}

#[cfg(test)]
mod tests;
