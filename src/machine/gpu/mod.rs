//! GPUs: what they are, and what they did while somebody looked. Plain values and what is computed from them; only `nvml`
//! asks the driver. Where it has no library or no device there are no GPUs, and nothing is said about it.

mod nvml;

use serde::{Deserialize, Serialize};

use crate::record::GpuPass;

pub use nvml::{counted, energy, look, probe};

/// What one GPU says of itself. An absent fact is not known: on a part of a GPU (MIG) several are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The newest CUDA that the driver knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// `9.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Of the streaming processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation_percent: Option<u32>,
    /// In effect, and what it would be if nobody had set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_milliwatts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_power_limit_milliwatts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// Whether it can be cut into parts. Its parts that can be seen from here are named below, by their profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_parts: Vec<String>,
    pub processes: Vec<GpuProcess>,
}

/// A process that computes or draws on a GPU, by the number that the driver knows it by: in a container that may be the
/// host's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// One look at one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    pub index: u32,
    pub utilisation_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    /// Of the processes that were asked for; `None` where the driver names none of them.
    pub process_bytes: Option<u64>,
    pub clock_mhz: Option<u32>,
    pub temperature_celsius: Option<u32>,
    pub throttled_by: Vec<String>,
}

impl Gpu {
    /// What makes it the same GPU to whoever compares figures: the model, its memory and how it is cut up. Another one of the
    /// same kind is as good, so its `uuid` is no part of it; and the driver changes while the GPU stays.
    pub fn sameness(&self) -> String {
        let name = self.name.as_deref().unwrap_or("unknown");
        let memory = self.memory_bytes.map(|bytes| format!(" {} GiB", gib(bytes)));
        let parts = (!self.mig_parts.is_empty()).then(|| format!(" ({})", self.mig_parts.join(" + ")));
        [Some(name.to_string()), memory, parts].into_iter().flatten().collect()
    }
}

fn gib(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 30)).round()
}

/// What the looks at each GPU come to, in the order of their indices.
pub fn over(looks: &[Look]) -> Vec<GpuPass> {
    let mut indices: Vec<u32> = looks.iter().map(|look| look.index).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().map(|index| over_one(index, looks)).collect()
}

fn over_one(index: u32, looks: &[Look]) -> GpuPass {
    let own = || looks.iter().filter(move |look| look.index == index);
    let most = |of: fn(&Look) -> Option<u64>| own().filter_map(of).max();
    let busy: Vec<u64> = own().filter_map(|look| look.utilisation_percent).map(u64::from).collect();
    let mean = (!busy.is_empty()).then(|| {
        let count = busy.len() as u64;
        ((busy.iter().sum::<u64>() + count / 2) / count) as u32
    });
    let clocks = || own().filter_map(|look| look.clock_mhz);
    let mut throttled_by: Vec<String> = own().flat_map(|look| look.throttled_by.clone()).collect();
    throttled_by.sort();
    throttled_by.dedup();
    GpuPass {
        index,
        utilisation_percent: mean,
        looks: own().count() as u32,
        memory_used_bytes: most(|look| look.memory_used_bytes),
        process_bytes: most(|look| look.process_bytes),
        clock_mhz: clocks().min().zip(clocks().max()),
        temperature_celsius: own().filter_map(|look| look.temperature_celsius).max(),
        throttled_by,
    }
}

/// What speaks against measuring on these GPUs now.
pub fn before(gpus: &[Gpu]) -> Vec<String> {
    gpus.iter().flat_map(|gpu| [shared(gpu), capped(gpu)]).flatten().collect()
}

/// What slowed a GPU down while an engine computed on it, in the driver's words.
pub fn slowed(pass: &GpuPass) -> Option<String> {
    let by = pass.throttled_by.join(", ");
    let says = |word: &str| by.contains(word);
    let remedy = match () {
        () if says("thermal") => "let it cool, or hold its clock lower (`sudo nvidia-smi -lgc`)",
        () if says("power") => {
            "raise its power limit (`sudo nvidia-smi -pl`), or compare only what was measured under it"
        }
        () => "`nvidia-smi -q -d PERFORMANCE` says more",
    };
    (!by.is_empty()).then(|| format!("GPU {} was slowed down while it computed ({by}); {remedy}", pass.index))
}

fn shared(gpu: &Gpu) -> Option<String> {
    let pids: Vec<String> = gpu.processes.iter().map(|process| process.pid.to_string()).collect();
    (!pids.is_empty()).then(|| {
        let s = if pids.len() == 1 { "" } else { "es" };
        format!(
            "machine: other programs use GPU {} (process{s} {}); end them and measure again (`nvidia-smi` shows them)",
            gpu.index,
            pids.join(", ")
        )
    })
}

fn capped(gpu: &Gpu) -> Option<String> {
    let (limit, usual) = gpu.power_limit_milliwatts.zip(gpu.default_power_limit_milliwatts)?;
    (limit < usual).then(|| {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        format!(
            "machine: GPU {} may draw {} W where {} W are usual; sudo nvidia-smi -i {} -pl {}",
            gpu.index,
            watts(limit),
            watts(usual),
            gpu.index,
            watts(usual)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(index: u32, busy: Option<u32>, clock: u32, by: &[&str]) -> Look {
        Look {
            index,
            utilisation_percent: busy,
            clock_mhz: Some(clock),
            memory_used_bytes: Some(u64::from(clock)),
            throttled_by: by.iter().map(|word| word.to_string()).collect(),
            ..Look::default()
        }
    }

    #[test]
    fn looks_come_to_a_mean_of_what_was_busy_and_to_the_ends_of_the_rest() {
        let mut looks = vec![
            look(1, Some(100), 1500, &["sw_power_cap"]),
            look(0, Some(4), 300, &[]),
            look(1, Some(51), 1980, &["sw_power_cap", "hw_slowdown"]),
        ];
        looks[2].process_bytes = Some(7);
        let found = over(&looks);
        assert_eq!(found.iter().map(|gpu| (gpu.index, gpu.looks)).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
        assert_eq!((found[1].utilisation_percent, found[1].clock_mhz), (Some(76), Some((1500, 1980))));
        assert_eq!((found[1].memory_used_bytes, found[1].process_bytes), (Some(1980), Some(7)));
        assert_eq!(found[1].throttled_by, ["hw_slowdown", "sw_power_cap"]);
        assert_eq!(over(&[]), []);
    }

    #[test]
    fn a_part_of_a_gpu_that_states_no_utilisation_was_not_idle() {
        assert_eq!(over(&[look(0, None, 1, &[])])[0].utilisation_percent, None);
    }

    #[test]
    fn the_same_kind_of_gpu_cut_up_alike_is_the_same_whatever_its_driver() {
        let gpu = Gpu { name: Some("GPU-9".into()), memory_bytes: Some(80 << 30), ..Gpu::default() };
        let other =
            Gpu { uuid: Some("x".into()), driver: Some("570".into()), clock_mhz: Some(3), ..gpu.clone() };
        assert_eq!((gpu.sameness(), other.sameness()), ("GPU-9 80 GiB".into(), "GPU-9 80 GiB".into()));
        let cut = Gpu { mig_parts: vec!["1g.10gb".into(), "2g.20gb".into()], ..gpu };
        assert_eq!(cut.sameness(), "GPU-9 80 GiB (1g.10gb + 2g.20gb)");
        assert_eq!(Gpu::default().sameness(), "unknown");
    }

    #[test]
    fn what_slowed_a_gpu_down_is_told_with_the_remedy() {
        let by = |reasons: &[&str]| {
            slowed(&GpuPass {
                throttled_by: reasons.iter().map(|it| it.to_string()).collect(),
                ..GpuPass::default()
            })
        };
        assert_eq!(by(&[]), None);
        assert!(by(&["sw_power_cap"]).unwrap().contains("(sw_power_cap); raise its power limit"));
        assert!(by(&["sw_power_cap", "sw_thermal_slowdown"]).unwrap().contains("let it cool"));
        assert!(by(&["sync_boost"]).unwrap().contains("PERFORMANCE"));
    }

    #[test]
    fn other_programs_and_a_lowered_power_limit_are_told_with_the_remedy() {
        let quiet = Gpu {
            power_limit_milliwatts: Some(700_000),
            default_power_limit_milliwatts: Some(700_000),
            ..Gpu::default()
        };
        assert_eq!(before(std::slice::from_ref(&quiet)), Vec::<String>::new());
        let processes = vec![GpuProcess { pid: 7, bytes: None }, GpuProcess { pid: 9, bytes: Some(1) }];
        let found = before(&[Gpu { processes, power_limit_milliwatts: Some(350_500), ..quiet }]);
        assert!(found[0].starts_with("machine: other programs use GPU 0 (processes 7, 9)"), "{found:?}");
        assert!(
            found[1].ends_with("350.5 W where 700 W are usual; sudo nvidia-smi -i 0 -pl 700"),
            "{found:?}"
        );
    }
}
