//! The facts of the machine, for records and comparisons. An absent fact is unknown, never zero. An absent limit of the container
//! means that there is none, unless it is marked as unknown.

use serde::{Deserialize, Serialize};
use system::container::{self, ContainerLimit};

use super::cpu::Cpu;
use super::gpu::{self, Gpu};
use super::kernel::{load_average, read};
use super::{energy, memory, quiet};

/// The machine's description. Each fact is read within milliseconds, except those of GPUs: opening NVIDIA's library takes longer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub cpu: Cpu,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The container's CPU limit in thousandths of a CPU: 1500 is one and a half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit_millicpus: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Whether the CPU limit could not be read. An absent limit then does not mean that there is none. Older records lack this.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cpu_limit_unknown: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory_limit_unknown: bool,
    /// The distribution (`Debian GNU/Linux 12 (bookworm)`), or else the name of the operating system.
    pub os: String,
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    /// The kernel's release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The load averages over one, five and fifteen minutes, at the time of the probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_average: Option<[f64; 3]>,
    /// The share of requested CPU time that the host withheld since boot (steal).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_share: Option<f64>,
    /// The setting of transparent huge pages: `always`, `madvise`, `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<String>,
    /// Kernel parameters at boot that change results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernel_parameters: Vec<String>,
    /// The machine's name in its firmware. A cloud names its instance type there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// The CUDA variables that tell which GPU `cuda:1` is. Absent without GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<gpu::Cuda>,
    /// Energy counters, including those that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub energy_counters: Vec<energy::ListedCounter>,
}

/// Kernel parameters that change how a core works, or which cores are used.
const KERNEL_PARAMETERS: &[&str] = &[
    "mitigations",
    "isolcpus",
    "nohz_full",
    "nosmt",
    "maxcpus",
    "transparent_hugepage",
    "hugepages",
    "intel_pstate",
    "amd_pstate",
    "cpufreq.default_governor",
    "intel_idle.max_cstate",
    "processor.max_cstate",
    "idle",
    "preempt",
];

/// The name of the GPUs in `identifying_properties`.
const GPUS: &str = "GPUs";
/// The value of a property that the machine does not have: GPUs or a limit.
const NONE: &str = "none";

impl Machine {
    pub fn probe() -> Self {
        let os_release = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"));
        let gpus = gpu::probe();
        let (cpus, memory) = (container::cpu_limit_millicpus(), container::memory_limit_bytes());
        Self {
            cpu: Cpu::probe(),
            memory_bytes: read("/proc/meminfo").and_then(|text| memory::total_bytes(&text)),
            cpu_limit_millicpus: cpus.limit(),
            memory_limit_bytes: memory.limit(),
            cpu_limit_unknown: cpus == ContainerLimit::Unknown,
            memory_limit_unknown: memory == ContainerLimit::Unknown,
            os: os_release
                .and_then(|text| pretty_name(&text))
                .unwrap_or_else(|| std::env::consts::OS.to_string()),
            architecture: std::env::consts::ARCH.to_string(),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_string()),
            load_average: read("/proc/loadavg").and_then(|text| load_average(&text)),
            steal_share: quiet::steal_share(),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| selected_word(&text)),
            kernel_parameters: read("/proc/cmdline").map_or_else(Vec::new, |text| kernel_parameters(&text)),
            hardware: hardware(),
            cuda: (!gpus.is_empty()).then(gpu::Cuda::of_environment),
            gpus,
            energy_counters: energy::list_counters(),
        }
    }

    /// The properties that identify the machine in comparisons, by name. Kernel, governor and load are excluded, because they
    /// change on the same machine.
    pub fn identifying_properties(&self) -> Vec<(&'static str, String)> {
        let unknown = || "unknown".to_string();
        // The size is rounded, because the kernel reserves an amount that varies from boot to boot.
        let gib = |bytes: u64| format!("{} GiB", (bytes as f64 / f64::from(1 << 30)).round());
        let cpus = |millicpus: u64| format!("{} CPUs", millicpus as f64 / 1000.0);
        let unlimited = |is_unknown| if is_unknown { unknown() } else { NONE.to_string() };
        let (cpu_limit, memory_limit) = (self.cpu_limit_millicpus, self.memory_limit_bytes);
        vec![
            ("CPU", self.cpu.model.clone().unwrap_or_else(unknown)),
            // A virtual machine may lack some instruction sets of the model.
            ("SIMD", self.cpu.simd.join(" ")),
            ("cores allowed", self.cpu.allowed_cores.map_or_else(unknown, |cores| cores.to_string())),
            ("memory", self.memory_bytes.map_or_else(unknown, gib)),
            ("architecture", self.architecture.clone()),
            ("the container's CPU limit", cpu_limit.map_or_else(|| unlimited(self.cpu_limit_unknown), cpus)),
            (
                "the container's memory limit",
                memory_limit.map_or_else(|| unlimited(self.memory_limit_unknown), gib),
            ),
            (GPUS, self.gpus_by_kind()),
        ]
    }

    /// NVML's index of the GPU with this CUDA index, if known.
    pub fn gpu_of(&self, cuda_index: u32) -> Option<u32> {
        match &self.cuda {
            Some(cuda) => cuda.visible(&self.gpus)?.get(cuda_index as usize).copied(),
            // A record of an older version.
            None => Some(cuda_index),
        }
    }

    /// `none`, or each kind of GPU with its count.
    pub fn gpus_by_kind(&self) -> String {
        let mut kinds: Vec<(String, usize)> = Vec::new();
        for kind in self.gpus.iter().map(Gpu::kind) {
            match kinds.iter_mut().find(|(other, _)| *other == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        let described = kinds.into_iter().map(|(kind, count)| match count {
            1 => kind,
            count => format!("{count} x {kind}"),
        });
        let all = described.collect::<Vec<_>>().join(", ");
        if all.is_empty() { NONE.into() } else { all }
    }

    /// The machine's name in records: equal for machines with equal `identifying_properties`.
    pub fn fingerprint(&self) -> String {
        // Without GPUs the text has no line about them, as in older versions, so that the name stays the same.
        let properties =
            self.identifying_properties().into_iter().filter(|(name, value)| *name != GPUS || value != NONE);
        let parts: Vec<String> = properties.map(|(name, value)| format!("{name}={value}")).collect();
        paths::digest(parts.join("\n").as_bytes())
    }
}

/// The word in brackets, which is the setting in effect: `always [madvise] never`.
fn selected_word(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_string())
}

/// The parameters in `KERNEL_PARAMETERS`. Others are left out, because the kernel's command line may contain secrets.
fn kernel_parameters(cmdline: &str) -> Vec<String> {
    let is_kept = |word: &&str| KERNEL_PARAMETERS.contains(&word.split('=').next().unwrap_or_default());
    cmdline.split_ascii_whitespace().filter(is_kept).map(String::from).collect()
}

fn hardware() -> Option<String> {
    let field = |name: &str| read(format!("/sys/class/dmi/id/{name}")).map(|text| text.trim().to_string());
    let words =
        [field("sys_vendor"), field("product_name")].into_iter().flatten().filter(|it| !it.is_empty());
    let all = words.collect::<Vec<_>>().join(" ");
    (!all.is_empty()).then_some(all)
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_read_with_and_without_quotes() {
        assert_eq!(
            pretty_name("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n").as_deref(),
            Some("Debian GNU/Linux 12")
        );
        assert_eq!(pretty_name("PRETTY_NAME=Alpine\n").as_deref(), Some("Alpine"));
        assert_eq!(pretty_name("NAME=x\n"), None);
        assert_eq!(pretty_name("PRETTY_NAME=\"\"\n"), None);
    }

    #[test]
    fn an_empty_description_and_this_machines_description_survive_json() {
        assert_eq!(serde_json::from_str::<Machine>("{}").unwrap(), Machine::default());
        let here = Machine::probe();
        let text = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), here);
        assert!(!here.architecture.is_empty() && !here.os.is_empty());
    }

    #[test]
    fn the_fingerprint_survives_a_reboot_and_changes_with_container_limits() {
        let cpu = Cpu { model: Some("AMD EPYC".into()), allowed_cores: Some(2), ..Cpu::default() };
        let machine = Machine { cpu, memory_bytes: Some(64 << 30), ..Machine::default() };
        let rebooted = Machine {
            memory_bytes: Some((64 << 30) - (300 << 20)),
            kernel: Some("6.9".into()),
            load_average: Some([9.0; 3]),
            ..machine.clone()
        };
        assert_eq!(machine.fingerprint(), rebooted.fingerprint());
        let limited = Machine { cpu_limit_millicpus: Some(1500), ..machine.clone() };
        assert_ne!(machine.fingerprint(), limited.fingerprint());
        let unread = Machine { cpu_limit_unknown: true, ..machine.clone() };
        assert_ne!(machine.fingerprint(), unread.fingerprint());
        let counter = energy::ListedCounter { name: "package-0".into(), trouble: None };
        let with_counter = Machine { energy_counters: vec![counter], ..machine.clone() };
        assert_eq!(machine.fingerprint(), with_counter.fingerprint());
        let (old, new) = (machine.identifying_properties(), limited.identifying_properties());
        let differing: Vec<_> = old.iter().zip(new).filter(|(old, new)| *old != new).collect();
        let differing: Vec<_> = differing.into_iter().map(|(_, new)| new).collect();
        assert_eq!(differing, [("the container's CPU limit", "1.5 CPUs".to_string())]);
    }

    #[test]
    fn a_gpu_changes_the_fingerprint_and_no_gpu_leaves_it_unchanged() {
        let bare = Machine::default();
        assert_eq!(bare.identifying_properties().pop(), Some(("GPUs", "none".to_string())));
        let gpu = Gpu { name: Some("H900".into()), memory_bytes: Some(80 << 30), ..Gpu::default() };
        let with_gpus = Machine { gpus: vec![gpu.clone(), gpu.clone()], ..bare.clone() };
        assert_eq!(with_gpus.identifying_properties().pop(), Some(("GPUs", "2 x H900 80 GiB".to_string())));
        let updated = Gpu { driver: Some("580".into()), ..gpu };
        let newer = Machine { gpus: vec![updated.clone(), updated], ..bare.clone() };
        assert_eq!(with_gpus.fingerprint(), newer.fingerprint());
        assert_ne!(bare.fingerprint(), with_gpus.fingerprint());
        // The text of older versions, which had no line about GPUs, for a machine without known facts.
        let before = "CPU=unknown\nSIMD=\ncores allowed=unknown\nmemory=unknown\narchitecture=\n\
                      the container's CPU limit=none\nthe container's memory limit=none";
        assert_eq!(bare.fingerprint(), paths::digest(before.as_bytes()));
    }

    #[test]
    fn only_performance_related_kernel_parameters_are_recorded() {
        let line = "BOOT_IMAGE=/x token=secret mitigations=off isolcpus=2-3 quiet idlex=1 nosmt\n";
        assert_eq!(kernel_parameters(line), ["mitigations=off", "isolcpus=2-3", "nosmt"]);
        assert_eq!(selected_word("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(selected_word("always\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn on_linux_the_cores_and_the_memory_are_known() {
        let here = Machine::probe();
        assert!(here.cpu.logical_cores.is_some_and(|cores| cores > 0));
        assert!(here.memory_bytes.is_some_and(|bytes| bytes > 64 << 20));
        assert!(here.kernel.is_some_and(|kernel| !kernel.is_empty()));
    }
}
