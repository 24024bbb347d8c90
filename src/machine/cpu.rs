//! The CPU: model, cores, instruction set extensions, caches and clocks.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::kernel::read;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_cores: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_cores: Option<u32>,
    /// The number of logical cores that this process may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_cores: Option<u32>,
    /// The instruction set extensions in `SIMD` that the CPU has, by the names of this project.
    pub simd: Vec<String>,
    pub caches: Vec<Cache>,
    /// The frequency governor: `performance`, `powersave`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// The mean clock of the cores, at the time of the probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mhz: Option<u32>,
    /// Whether cores can run two threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<u32>,
    /// Whether the kernel runs in a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<bool>,
}

/// A cache as the first core sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    pub level: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    pub size_bytes: u64,
    /// The number of logical cores that share the cache.
    pub shared_by: u32,
}

/// The name of each instruction set extension in the kernel, and in this project.
const SIMD: &[(&str, &str)] = &[
    ("avx2", "avx2"),
    ("f16c", "f16c"),
    ("fma", "fma"),
    ("avx512f", "avx512f"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_fp16", "avx512_fp16"),
    ("avx_vnni", "avx_vnni"),
    ("amx_tile", "amx_tile"),
    ("amx_int8", "amx_int8"),
    ("amx_bf16", "amx_bf16"),
    ("asimd", "neon"),
    ("asimddp", "dotprod"),
    ("i8mm", "i8mm"),
    ("bf16", "bf16"),
    ("sve", "sve"),
    ("sme", "sme"),
];

impl Cpu {
    pub fn probe() -> Self {
        let mut cpu = read("/proc/cpuinfo").map(|text| parse_cpuinfo(&text)).unwrap_or_default();
        let status = read("/proc/self/status").unwrap_or_default();
        cpu.allowed_cores = allowed_list(&status).and_then(count_list);
        cpu.caches = (0..8).map_while(cache).collect();
        let core_file = |name: &str| read(format!("/sys/devices/system/cpu/{name}"));
        cpu.governor = core_file("cpu0/cpufreq/scaling_governor").map(|text| text.trim().to_string());
        cpu.max_mhz = core_file("cpu0/cpufreq/cpuinfo_max_freq").and_then(|khz| megahertz(&khz));
        cpu.smt = core_file("smt/active").and_then(|active| parse_switch(&active));
        cpu.numa_nodes = read("/sys/devices/system/node/online").and_then(|list| count_list(&list));
        cpu
    }
}

fn parse_cpuinfo(text: &str) -> Cpu {
    let fields = || text.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.trim(), v.trim()));
    let first = |name: &str| fields().find(|(key, _)| *key == name).map(|(_, value)| value);
    let logical = fields().filter(|(key, _)| *key == "processor").count() as u32;
    // `flags` on x86, `Features` on ARM.
    let flags: Option<BTreeSet<&str>> =
        first("flags").or_else(|| first("Features")).map(|flags| flags.split_ascii_whitespace().collect());
    let has = |flag: &str| flags.as_ref().is_some_and(|flags| flags.contains(flag));
    Cpu {
        model: first("model name").filter(|name| !name.is_empty()).map(str::to_string).or_else(|| {
            // ARM reports numbers in place of a name.
            Some(format!("implementer {} part {}", first("CPU implementer")?, first("CPU part")?))
        }),
        logical_cores: (logical > 0).then_some(logical),
        physical_cores: physical_cores(text),
        simd: SIMD.iter().filter(|(flag, _)| has(flag)).map(|(_, name)| name.to_string()).collect(),
        // Only x86 reports a hypervisor. On other processors the flag's absence means nothing.
        hypervisor: first("flags").map(|_| has("hypervisor")),
        mhz: mean_mhz(fields().filter(|(key, _)| *key == "cpu MHz").map(|(_, value)| value)),
        ..Cpu::default()
    }
}

/// The number of distinct pairs of socket and core. `None` unless the kernel reports both for every processor.
fn physical_cores(cpuinfo: &str) -> Option<u32> {
    let mut cores = BTreeSet::new();
    for processor in cpuinfo.split("\n\n").filter(|entry| entry.starts_with("processor")) {
        let field = |name: &str| {
            let mut fields = processor.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
        };
        cores.insert((field("physical id")?, field("core id")?));
    }
    (!cores.is_empty()).then_some(cores.len() as u32)
}

fn mean_mhz<'a>(values: impl Iterator<Item = &'a str>) -> Option<u32> {
    let mhz: Vec<f64> = values.filter_map(|value| value.parse().ok()).filter(|mhz| *mhz > 0.0).collect();
    (!mhz.is_empty()).then(|| (mhz.iter().sum::<f64>() / mhz.len() as f64).round() as u32)
}

fn megahertz(khz: &str) -> Option<u32> {
    khz.trim().parse::<u32>().ok().map(|khz| khz / 1000).filter(|mhz| *mhz > 0)
}

fn parse_switch(text: &str) -> Option<bool> {
    match text.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn allowed_list(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim)
}

/// The cores on which this process may run.
pub fn allowed_cores() -> Option<BTreeSet<u32>> {
    let ranges = ranges_of_list(allowed_list(&read("/proc/self/status")?)?)?;
    Some(ranges.into_iter().flatten().collect())
}

/// The count of numbers in a list such as `0-3,8,10-11`.
fn count_list(list: &str) -> Option<u32> {
    let counts = ranges_of_list(list)?.into_iter().map(|it| (it.end() - it.start()).checked_add(1));
    counts.reduce(|sum, count| sum?.checked_add(count?)).flatten()
}

fn ranges_of_list(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        (from <= to).then_some(from..=to)
    };
    list.trim().split(',').map(range).collect()
}

fn cache(index: u32) -> Option<Cache> {
    let field = |name: &str| read(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"));
    Some(Cache {
        level: field("level")?.trim().parse().ok()?,
        kind: field("type")?.trim().to_string(),
        size_bytes: parse_size(&field("size")?)?,
        shared_by: field("shared_cpu_list").and_then(|list| count_list(&list)).unwrap_or(1),
    })
}

/// A size as /sys writes it: `32K`, `1M`.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, scale) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// The number of threads of this process that can run at once, within a container's CPU limit.
pub fn all_threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
}

/// The size of all last-level caches that this many threads can use. `None` if the machine does not say.
pub fn last_level_cache_bytes(cpu: &Cpu, threads: u32) -> Option<u64> {
    let last = cpu.caches.iter().filter(|cache| cache.size_bytes > 0).max_by_key(|cache| cache.level)?;
    let instances = cpu.logical_cores.map_or(1, |cores| cores.div_ceil(last.shared_by.max(1)));
    Some(last.size_bytes.saturating_mul(u64::from(instances.min(threads).max(1))))
}

/// Weights of at least this many times the cache's size count as read from memory. The cache keeps a part of smaller weights.
const CACHE_MULTIPLE: f64 = 4.0;
/// The cache size that is assumed if the machine does not report it. Most caches are smaller.
const ASSUMED_CACHE_BYTES: u64 = 256 << 20;

/// The size from which weights are read from memory; smaller ones may be read from caches.
pub fn min_uncached_bytes(cpu: &Cpu, threads: u32) -> f64 {
    min_uncached_bytes_for_cache(last_level_cache_bytes(cpu, threads))
}

/// The size from which weights are read from memory behind a cache of this size, of a CPU or a GPU.
pub fn min_uncached_bytes_for_cache(cache_bytes: Option<u64>) -> f64 {
    CACHE_MULTIPLE * cache_bytes.unwrap_or(ASSUMED_CACHE_BYTES) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "\
processor\t: 0\nmodel name\t: AMD EPYC\nphysical id\t: 0\ncore id\t\t: 0\nflags\t\t: fpu avx2 avx512f hypervisor amx_tile\n\n\
processor\t: 1\nmodel name\t: AMD EPYC\nphysical id\t: 0\ncore id\t\t: 0\nflags\t\t: fpu avx2 avx512f hypervisor amx_tile\n\n\
processor\t: 2\nmodel name\t: AMD EPYC\nphysical id\t: 1\ncore id\t\t: 0\nflags\t\t: fpu avx2 avx512f hypervisor amx_tile\n";

    const ARM: &str = "\
processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n\
processor\t: 1\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";

    #[test]
    fn two_threads_of_one_core_count_as_two_logical_cores_and_one_physical_core() {
        let cpu = parse_cpuinfo(X86);
        assert_eq!((cpu.logical_cores, cpu.physical_cores), (Some(3), Some(2)));
        assert_eq!(cpu.model.as_deref(), Some("AMD EPYC"));
        assert_eq!(cpu.simd, ["avx2", "avx512f", "amx_tile"]);
        assert_eq!(cpu.hypervisor, Some(true));
    }

    #[test]
    fn an_arm_cpu_without_a_name_is_identified_by_its_numbers() {
        let cpu = parse_cpuinfo(ARM);
        assert_eq!(cpu.model.as_deref(), Some("implementer 0x41 part 0xd4f"));
        assert_eq!(cpu.simd, ["neon", "dotprod", "i8mm"]);
        assert_eq!((cpu.logical_cores, cpu.physical_cores, cpu.hypervisor), (Some(2), None, None));
    }

    #[test]
    fn the_clock_is_the_mean_of_all_cores_or_absent() {
        let cpuinfo = "processor\t: 0\ncpu MHz\t\t: 2596.150\n\nprocessor\t: 1\ncpu MHz\t\t: 3200.350\n";
        assert_eq!(parse_cpuinfo(cpuinfo).mhz, Some(2898));
        assert_eq!(parse_cpuinfo("cpu MHz\t: 0.000\ncpu MHz\t: x\n").mhz, None);
        assert_eq!((megahertz("3700000\n"), megahertz("0"), megahertz("")), (Some(3700), None, None));
        assert_eq!(
            (parse_switch("1\n"), parse_switch("0\n"), parse_switch("forceoff")),
            (Some(true), Some(false), None)
        );
    }

    #[test]
    fn an_empty_cpuinfo_leaves_everything_unknown() {
        assert_eq!(parse_cpuinfo(""), Cpu::default());
    }

    #[test]
    fn cores_in_a_list_are_counted_and_invalid_lists_are_absent() {
        assert_eq!(count_list("0-3,8,10-11\n"), Some(7));
        assert_eq!(count_list("5"), Some(1));
        assert_eq!(count_list("3-0"), None);
        assert_eq!(count_list("0-4294967295"), None);
        assert_eq!(count_list(""), None);
        assert_eq!(allowed_list("Name:\tx\nCpus_allowed_list:\t0-1\n").and_then(count_list), Some(2));
    }

    #[test]
    fn cache_sizes_are_read_with_their_unit() {
        assert_eq!(parse_size("32K\n"), Some(32 << 10));
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("64"), Some(64));
        assert_eq!(parse_size(""), None);
        assert_eq!(parse_size("µ"), None);
    }
}
