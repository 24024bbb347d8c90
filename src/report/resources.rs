//! The resources of a case apart from time: memory in its parts, cores, energy, a GPU. Each resource is an entry of `resources!`,
//! with its value and its texts for the table, CSV and `orchestrate metrics`. An unknown value is absent, never zero.

use std::collections::BTreeMap;

use serde::Serialize;

use super::headings::Heading;
use crate::analysis::metric::{
    self, CoresBusy, MemorySource, MetricId, Observation, OnGpus, gpu_joules_per_token, idle_watts,
};
use crate::analysis::values::Values;
use crate::record::Idle;
use crate::text::line;
use stats::median;

/// Each entry makes a field of `Resources`, with its name in JSON and its function, and lines of RESOURCE_FACTS.
macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr, [$($fact:expr),* $(,)?];)+) => {
        /// The resources of a case. JSON has these names: add, never rename. The name of a value contains its unit.
        /// The metrics among them are estimates.
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        pub struct Resources {
            $($(#[$doc])* pub $name: $type,)+
        }

        impl Resources {
            pub fn of(sources: &Sources) -> Self {
                $(let $name: fn(&Sources) -> $type = $value;)+
                Self { $($name: $name(sources),)+ }
            }
        }

        pub const RESOURCE_FACTS: &[Fact] = &[$($($fact,)*)+];
    };
}

resources! {
    peak_bytes: Option<f64> = |it| it.estimate(MetricId::PEAK_MEMORY), [
        metric(MetricId::PEAK_MEMORY, "peak memory", Quantity::Bytes, |it| it.peak_bytes),
    ];
    anonymous_bytes: Option<f64> = |it| it.estimate(MetricId::MEMORY_ANONYMOUS), [
        metric(MetricId::MEMORY_ANONYMOUS, "memory anonymous", Quantity::Bytes, |it| it.anonymous_bytes),
    ];
    file_bytes: Option<f64> = |it| it.estimate(MetricId::MEMORY_FILE), [
        metric(MetricId::MEMORY_FILE, "memory file-backed", Quantity::Bytes, |it| it.file_bytes),
    ];
    device_bytes: Option<f64> = |it| it.estimate(MetricId::DEVICE_MEMORY), [
        metric(MetricId::DEVICE_MEMORY, "device memory", Quantity::GpuBytes, |it| it.device_bytes),
    ];
    /// The source of `device_bytes`.
    device_bytes_from: Option<MemorySource> = |it| it.device_bytes_from(), [];
    device_reported_bytes: Option<f64> = |it| it.device_reported_bytes(), [
        fact("device reported", Quantity::GpuBytes, |it| it.device_reported_bytes, "device_reported",
            "peak device memory that the engine's allocator reports, at load or after a request."),
    ];
    device_process_bytes: Option<f64> = |it| bytes(it.gpus.process_bytes), [
        fact_for_programs(Quantity::GpuBytes, |it| it.device_process_bytes, "device_processes",
            "peak device memory of the engine's processes in the sampled pass, as the driver counts it. Absent if the driver \
             names none of its processes."),
    ];
    device_growth_bytes: Option<f64> = |it| bytes(it.gpus.growth_bytes), [
        fact_for_programs(Quantity::GpuBytes, |it| it.device_growth_bytes, "device_growth",
            "peak memory of the engine's whole GPUs in the sampled pass, minus their memory just before the engine's start. \
             Changes by other programs are included."),
    ];
    device_whole_bytes: Option<f64> = |it| bytes(it.gpus.whole_bytes), [
        fact("device whole", Quantity::GpuBytes, |it| it.device_whole_bytes, "device_whole",
            "peak memory of the engine's whole GPUs in the sampled pass, other programs included, without the driver's own \
             reserve."),
    ];
    weights_bytes: Option<f64> = |it| it.weights_bytes(), [
        fact("reported weights", Quantity::Bytes, |it| it.weights_bytes, "weights",
            "bytes of the weights, as the engine reports them."),
    ];
    over_weights_bytes: Option<f64> = |it| it.estimate(MetricId::MEMORY_OVERHEAD), [
        metric(MetricId::MEMORY_OVERHEAD, "over weights", Quantity::Bytes, |it| it.over_weights_bytes),
    ];
    cores_busy: Option<f64> = |it| it.cores_busy.filter(|&cores| cores > 0.0), [
        fact("CPU busy", Quantity::Plain("cores"), |it| it.cores_busy, "cores_busy",
            "CPU time of the process tree, divided by the time of the measured requests."),
    ];
    joules_per_token: Option<f64> = |it| it.estimate(MetricId::JOULES_PER_TOKEN), [
        metric(MetricId::JOULES_PER_TOKEN, "energy per token", Quantity::Joules, |it| it.joules_per_token),
    ];
    gpu_joules_per_token: Option<f64> = |it| it.observed.iter().find_map(gpu_joules_per_token), [
        fact("GPU energy per token", Quantity::GpuJoules, |it| it.gpu_joules_per_token, "gpu_joules_per_token",
            "energy of the engine's GPUs in the sampled pass above idle, for each new token. The processors' energy, which \
             often only root can read, is not included."),
    ];
    idle_watts: Option<f64> = |it| idle_watts(it.idle), [
        fact("idle power", Quantity::Plain("W"), |it| it.idle_watts, "idle_power",
            "mean power of the machine while no engine of the run was active, by all energy counters."),
    ];
    /// NVML's indices of the GPUs that the engine computed on. The entries below describe these GPUs, and are absent for a CPU.
    gpus: Vec<u32> = |it| it.gpus.indices.clone(), [];
    gpu_percent: Option<f64> = |it| it.gpus.busy_percent, [
        fact("GPU busy", Quantity::Gpu("%"), |it| it.gpu_percent, "gpu_utilisation",
            "share of the time in which some kernel ran on the GPU, even a small one: 100 % does not mean fast. The mean of \
             the driver's values in the sampled pass, without its first second. Of several GPUs, the busiest one."),
    ];
    gpu_memory_percent: Option<f64> = |it| it.gpus.memory_busy_percent, [
        fact("GPU memory busy", Quantity::Gpu("%"), |it| it.gpu_memory_percent, "gpu_memory_utilisation",
            "share of the time in which the GPU's memory was read or written, sampled like `GPU busy`. It is not a \
             share of its bandwidth."),
    ];
    gpu_watts: Option<f64> = |it| it.gpus.watts, [
        fact("GPU power", Quantity::Gpu("W"), |it| it.gpu_watts, "gpu_power",
            "mean power of the engine's GPUs together, idle power included, sampled like `GPU busy`."),
    ];
    /// The lowest and the highest clock.
    gpu_clock_mhz: Option<(u32, u32)> = |it| it.gpus.clock_mhz, [
        fact("SM clock lowest", Quantity::Gpu("MHz"), |it| lowest(it.gpu_clock_mhz), "gpu_clock_lowest",
            "the lowest clock of the streaming multiprocessors in the sampled pass."),
        fact("SM clock highest", Quantity::Gpu("MHz"), |it| highest(it.gpu_clock_mhz), "gpu_clock_highest",
            "the highest clock of the streaming multiprocessors in the sampled pass."),
    ];
    gpu_memory_clock_mhz: Option<(u32, u32)> = |it| it.gpus.memory_clock_mhz, [
        fact("memory clock", Quantity::Gpu("MHz"), |it| lowest(it.gpu_memory_clock_mhz), "gpu_memory_clock_lowest",
            "the lowest clock of the GPU's memory in the sampled pass."),
    ];
    gpu_celsius: Option<u32> = |it| it.gpus.celsius, [
        fact("GPU temp", Quantity::Gpu("°C"), |it| it.gpu_celsius.map(f64::from), "gpu_temperature",
            "the highest temperature of the engine's GPUs in the sampled pass."),
    ];
    gpu_slowed_share: Option<f64> = |it| it.gpus.slowed_share, [
        fact("GPU slowed", Quantity::Gpu("%"), |it| it.gpu_slowed_share.map(|share| share * 100.0), "gpu_slowed",
            "share of the samples with a driver's reason for a lower clock; a line below the table and JSON name the reasons. The power \
             limit (sw_power_cap) is usual on a large GPU under load. Of several GPUs, the one that was slowed most often."),
    ];
    gpu_slowed_by: Vec<String> = |it| it.gpus.slowed_by.iter().map(|word| line(word)).collect(), [];
}

/// The lines of the values that are not metrics: name, unit and value.
pub fn lines(resources: &Resources) -> impl Iterator<Item = (&'static str, &'static str, Option<f64>)> + '_ {
    let explained = RESOURCE_FACTS.iter().filter_map(|fact| Some((fact, fact.explained.as_ref()?.name)));
    explained.map(|(fact, name)| (name, fact.quantity.unit(), (fact.value_of)(resources)))
}

/// A column of the table for people, a line of CSV, or both.
#[derive(Debug)]
pub struct Fact {
    /// The header of the fact's column; `None` for a value that only programs get.
    pub title: Option<&'static str>,
    pub value_of: fn(&Resources) -> Option<f64>,
    pub quantity: Quantity,
    /// Absent for a metric: METRICS explains it, and CSV has it from there.
    pub explained: Option<Explanation>,
    /// The metric that the fact is.
    metric: Option<MetricId>,
}

impl Fact {
    /// The heading of its column.
    pub fn heading(&self) -> Option<Heading> {
        let of_metric = || self.metric.map(|id| metric::by_id(id).about);
        let about = self.explained.as_ref().map(|it| it.about).or_else(of_metric)?;
        Some(Heading { title: self.title?, about })
    }
}

#[derive(Debug)]
pub struct Explanation {
    /// The name without the prefix `resources.`, which CSV adds.
    pub name: &'static str,
    pub about: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// All columns of bytes share one scale.
    Bytes,
    Joules,
    /// An unscaled value, with its unit.
    Plain(&'static str),
    /// An unscaled value of a GPU, with its unit. Left out where no row computes on a GPU.
    Gpu(&'static str),
    /// Bytes of a GPU. Left out where no row computes on a GPU.
    GpuBytes,
    GpuJoules,
}

impl Quantity {
    pub fn unit(self) -> &'static str {
        match self {
            Self::Bytes | Self::GpuBytes => "bytes",
            Self::Joules | Self::GpuJoules => "J",
            Self::Plain(unit) | Self::Gpu(unit) => unit,
        }
    }

    pub fn is_bytes(self) -> bool {
        matches!(self, Self::Bytes | Self::GpuBytes)
    }

    pub fn is_joules(self) -> bool {
        matches!(self, Self::Joules | Self::GpuJoules)
    }

    pub fn is_of_gpus(self) -> bool {
        matches!(self, Self::Gpu(_) | Self::GpuBytes | Self::GpuJoules)
    }
}

/// A fact that is a metric, which METRICS explains.
const fn metric(
    id: MetricId,
    title: &'static str,
    quantity: Quantity,
    value_of: fn(&Resources) -> Option<f64>,
) -> Fact {
    Fact { title: Some(title), value_of, quantity, explained: None, metric: Some(id) }
}

const fn fact(
    title: &'static str,
    quantity: Quantity,
    value_of: fn(&Resources) -> Option<f64>,
    name: &'static str,
    about: &'static str,
) -> Fact {
    Fact {
        title: Some(title),
        value_of,
        quantity,
        explained: Some(Explanation { name, about }),
        metric: None,
    }
}

/// A value without a column for people.
const fn fact_for_programs(
    quantity: Quantity,
    value_of: fn(&Resources) -> Option<f64>,
    name: &'static str,
    about: &'static str,
) -> Fact {
    Fact { title: None, value_of, quantity, explained: Some(Explanation { name, about }), metric: None }
}

fn lowest(range: Option<(u32, u32)>) -> Option<f64> {
    range.map(|(lowest, _)| lowest.into())
}

fn highest(range: Option<(u32, u32)>) -> Option<f64> {
    range.map(|(_, highest)| highest.into())
}

/// The inputs of the resources of a case.
pub struct Sources<'a> {
    /// The estimate of each metric.
    estimates: BTreeMap<MetricId, f64>,
    observed: Vec<Observation<'a>>,
    cores_busy: Option<f64>,
    /// The GPUs in the first sampled pass of the case. Empty for a CPU.
    gpus: OnGpus,
    idle: &'a [Idle],
}

impl<'a> Sources<'a> {
    pub fn of(values: &'a Values, case: usize, estimates: BTreeMap<MetricId, f64>) -> Self {
        let observed: Vec<Observation> = values.observations(case).collect();
        let gpus = observed.iter().filter(|it| it.on_device()).find_map(OnGpus::of).unwrap_or_default();
        let cores_busy = CoresBusy::of(values.samples(case)).map(|it| it.cores);
        Self { estimates, observed, cores_busy, gpus, idle: &values.record.idle }
    }

    fn estimate(&self, id: MetricId) -> Option<f64> {
        self.estimates.get(&id).copied()
    }

    /// The source of the largest value of device memory.
    fn device_bytes_from(&self) -> Option<MemorySource> {
        let known = self.on_device().filter_map(metric::device_memory_with_source);
        known.reduce(|a, b| if b.0 > a.0 { b } else { a }).map(|(_, source)| source)
    }

    fn device_reported_bytes(&self) -> Option<f64> {
        let reported = self.on_device().filter_map(metric::reported_device_bytes);
        reported.reduce(f64::max).filter(|&bytes| bytes > 0.0)
    }

    fn weights_bytes(&self) -> Option<f64> {
        median(&self.observed.iter().filter_map(metric::weights_bytes).collect::<Vec<_>>())
    }

    /// The observations of launches on a GPU.
    fn on_device(&self) -> impl Iterator<Item = &Observation<'a>> {
        self.observed.iter().filter(|it| it.on_device())
    }
}

fn bytes(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

#[cfg(test)]
mod tests;
