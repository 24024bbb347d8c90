//! The resources of a row, one entry for each value: tables for people, CSV and `orchestrate metrics` use this list. To
//! add a value, add it to `Resources` and here.

use super::Resources;

/// A column of the table for people, a line of CSV, or both.
#[derive(Debug)]
pub struct Fact {
    /// The header of its column; `None` for a value that only programs get.
    pub title: Option<&'static str>,
    pub of: fn(&Resources) -> Option<f64>,
    pub counts: Counts,
    /// Absent for a metric: METRICS explains it, and CSV has it from there.
    pub itself: Option<Itself>,
}

#[derive(Debug)]
pub struct Itself {
    /// Without the prefix: CSV has `resources.weights`.
    pub name: &'static str,
    pub about: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// All columns of bytes share one scale.
    Bytes,
    Joules,
    Plain(&'static str),
    /// A plain value of a GPU, left out where no row computes on one.
    Gpu(&'static str),
    /// Bytes of a GPU, left out likewise.
    GpuBytes,
    GpuJoules,
}

impl Counts {
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

const fn metric(title: &'static str, counts: Counts, of: fn(&Resources) -> Option<f64>) -> Fact {
    Fact { title: Some(title), of, counts, itself: None }
}

const fn fact(
    title: &'static str,
    counts: Counts,
    of: fn(&Resources) -> Option<f64>,
    name: &'static str,
    about: &'static str,
) -> Fact {
    Fact { title: Some(title), of, counts, itself: Some(Itself { name, about }) }
}

impl Fact {
    const fn for_programs(self) -> Self {
        Self { title: None, ..self }
    }
}

pub const FACTS: &[Fact] = &[
    metric("peak memory", Counts::Bytes, |it| it.peak_bytes),
    metric("memory anonymous", Counts::Bytes, |it| it.anonymous_bytes),
    metric("memory file-backed", Counts::Bytes, |it| it.file_bytes),
    metric("device memory", Counts::GpuBytes, |it| it.device_bytes),
    fact(
        "device stated",
        Counts::GpuBytes,
        |it| it.device_stated_bytes,
        "device_stated",
        "the most that the engine says that it held of the device's memory, at load or after a request: its allocator's word.",
    ),
    fact(
        "",
        Counts::GpuBytes,
        |it| it.device_process_bytes,
        "device_processes",
        "the most that the driver counted of the engine's processes on its GPUs in the sampled pass. Absent where the driver \
         names none of them.",
    )
    .for_programs(),
    fact(
        "",
        Counts::GpuBytes,
        |it| it.device_growth_bytes,
        "device_growth",
        "the most that its whole GPUs held in the sampled pass, less what they held just before the engine was started: whoever \
         else came or went meanwhile is in it.",
    )
    .for_programs(),
    fact(
        "device whole",
        Counts::GpuBytes,
        |it| it.device_whole_bytes,
        "device_whole",
        "the most that its whole GPUs held in the sampled pass, for whomever, without what the driver keeps for itself.",
    ),
    fact(
        "stated weights",
        Counts::Bytes,
        |it| it.weights_bytes,
        "weights",
        "the weights' bytes as the engine states them.",
    ),
    metric("over weights", Counts::Bytes, |it| it.over_weights_bytes),
    fact(
        "CPU busy",
        Counts::Plain("cores"),
        |it| it.cores_busy,
        "cores_busy",
        "CPU time of the process tree over the time of the measured requests.",
    ),
    metric("energy per token", Counts::Joules, |it| it.joules_per_token),
    fact(
        "GPU energy per token",
        Counts::GpuJoules,
        |it| it.gpu_joules_per_token,
        "gpu_joules_per_token",
        "what the counters of the GPUs that it computes on counted over the sampled pass, less what they count in the same time \
         when nothing runs, over its new tokens: energy per token without the processors' share, which often only root may read.",
    ),
    fact(
        "idle power",
        Counts::Plain("W"),
        |it| it.idle_watts,
        "idle_power",
        "what all counters of energy of the machine counted when nothing of the run ran, over the time of that.",
    ),
    fact(
        "GPU busy",
        Counts::Gpu("%"),
        |it| it.gpu_percent,
        "gpu_utilisation",
        "of the time, that in which a kernel ran on the GPU, however little of it that kernel kept busy: the mean of the driver's \
         figure over the sampled pass from its second second on, since each figure is a mean over up to one. Of several GPUs \
         the busiest. A full one is no sign of speed.",
    ),
    fact(
        "GPU memory busy",
        Counts::Gpu("%"),
        |it| it.gpu_memory_percent,
        "gpu_memory_utilisation",
        "of the time, that in which the GPU's memory was read or written, likewise: no share of its bandwidth.",
    ),
    fact(
        "GPU power",
        Counts::Gpu("W"),
        |it| it.gpu_watts,
        "gpu_power",
        "what its GPUs draw together, idle power included: the mean of the driver's figure over the same looks.",
    ),
    fact(
        "SM clock lowest",
        Counts::Gpu("MHz"),
        |it| it.gpu_clock_mhz.map(|(lowest, _)| f64::from(lowest)),
        "gpu_clock_lowest",
        "the lowest clock of the streaming processors at any look of the sampled pass.",
    ),
    fact(
        "SM clock highest",
        Counts::Gpu("MHz"),
        |it| it.gpu_clock_mhz.map(|(_, highest)| f64::from(highest)),
        "gpu_clock_highest",
        "the highest, likewise.",
    ),
    fact(
        "memory clock",
        Counts::Gpu("MHz"),
        |it| it.gpu_memory_clock_mhz.map(|(lowest, _)| f64::from(lowest)),
        "gpu_memory_clock_lowest",
        "the lowest clock of the GPU's memory, likewise.",
    ),
    fact(
        "GPU heat",
        Counts::Gpu("°C"),
        |it| it.gpu_celsius.map(f64::from),
        "gpu_temperature",
        "the highest temperature of its GPUs at any look.",
    ),
    fact(
        "GPU slowed",
        Counts::Gpu("%"),
        |it| it.gpu_slowed_share.map(|share| share * 100.0),
        "gpu_slowed",
        "of the looks, those at which the driver named a reason for a lower clock; which ones, the legend and JSON say. That of its \
         power limit (sw_power_cap) is usual on a large GPU under load. Of several GPUs the one that was slowed most often.",
    ),
];

/// The values that are no metrics.
pub fn lines(of: &Resources) -> impl Iterator<Item = (&'static str, &'static str, Option<f64>)> + '_ {
    let own = FACTS.iter().filter_map(|fact| Some((fact, fact.itself.as_ref()?)));
    own.map(|(fact, itself)| (itself.name, fact.counts.unit(), (fact.of)(of)))
}
