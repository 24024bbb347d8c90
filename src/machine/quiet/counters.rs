//! The kernel's counters of CPU time, stolen time, swapping, waiting for memory, pauses by the container's CPU limit, and heat.
//! The difference of two readings shows the events in between. A counter that this system lacks is absent.

use std::time::Instant;

use system::container;

use crate::machine::kernel::read;
use crate::machine::processes;

/// One reading of all counters.
#[derive(Debug, Clone)]
pub(super) struct Counters {
    pub at: Instant,
    pub processor: Option<ProcessorTicks>,
    /// Ticks of this process, its descendants, and the children that it has waited for.
    pub own_ticks: u64,
    pub swapped_pages: Option<u64>,
    /// Microseconds in which at least one process waited for memory.
    pub memory_stall_us: Option<u64>,
    /// Microseconds in which the container's CPU limit paused its processes.
    pub limited_us: Option<u64>,
    /// The sum of the throttle counts of all cores and packages: slowdowns because of heat.
    pub throttle_count: Option<u64>,
}

/// Ticks of the whole machine since it started (proc_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessorTicks {
    pub busy: u64,
    pub idle: u64,
    /// Ticks in which the host of this virtual machine withheld a requested core.
    pub stolen: u64,
    pub cores: u32,
}

impl Counters {
    pub fn read() -> Self {
        Self {
            at: Instant::now(),
            processor: Self::processor_now(),
            own_ticks: own_ticks(),
            swapped_pages: read("/proc/vmstat").and_then(|text| swapped_pages(&text)),
            memory_stall_us: read("/proc/pressure/memory").and_then(|text| stall_field(&text, "total=")),
            limited_us: container::cpu_statistics().and_then(|text| parse_limited_us(&text)),
            throttle_count: throttle_count(),
        }
    }

    pub fn processor_now() -> Option<ProcessorTicks> {
        read("/proc/stat").and_then(|text| parse_processor(&text))
    }
}

/// The ticks of all processes of the whole machine, since it started. Interrupts belong to no process.
pub fn busy_ticks() -> Option<u64> {
    parse_process_ticks(&read("/proc/stat")?)
}

fn parse_process_ticks(stat: &str) -> Option<u64> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // `user`, `nice` and `system`.
    all.split_ascii_whitespace().take(3).map(|it| it.parse::<u64>().ok()).sum()
}

fn parse_processor(stat: &str) -> Option<ProcessorTicks> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = all.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    // The time of this machine's own virtual machines is already in `user` and `nice`.
    let &[user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen, ..] = &ticks[..] else {
        return None;
    };
    let is_core = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let cores = stat.lines().filter(is_core).count() as u32;
    let sum = |ticks: &[u64]| ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    let busy = sum(&[user, nice, system, interrupts, soft_interrupts]);
    // A kernel that hides its counters reports zeros.
    (cores > 0 && busy > 0).then(|| ProcessorTicks { busy, idle: sum(&[idle, waiting]), stolen, cores })
}

/// The ticks of this process and its descendants, also ended ones: a parent that waits for a process inherits its time. If this
/// process adopts no orphans (before Linux 3.4), the time of a process that was killed with its parent is lost, and counts as
/// other programs' work.
fn own_ticks() -> u64 {
    let tree = processes::tree(std::process::id());
    let ticks = tree.iter().filter_map(|pid| process_ticks(&read(format!("/proc/{pid}/stat"))?));
    ticks.fold(0, u64::saturating_add)
}

/// The sum of `utime`, `stime`, `cutime` and `cstime`, fields 14 to 17. The second field is the name in parentheses.
fn process_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<u64> =
        after_name.split_ascii_whitespace().skip(11).take(4).map_while(|word| word.parse().ok()).collect();
    (fields.len() == 4).then(|| fields.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks)))
}

fn swapped_pages(vmstat: &str) -> Option<u64> {
    let field =
        |name: &str| vmstat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("pswpin ")?.checked_add(field("pswpout ")?)
}

/// A field of the `some` line in a file of /proc/pressure.
pub(super) fn stall_field<T: std::str::FromStr>(pressure: &str, field: &str) -> Option<T> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|word| word.strip_prefix(field)?.parse().ok())
}

fn parse_limited_us(cpu_stat: &str) -> Option<u64> {
    let field = |name: &str| cpu_stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    // Version 1 of cgroups counts nanoseconds.
    field("throttled_usec ").or_else(|| field("throttled_time ").map(|ns: u64| ns / 1000))
}

/// The sum of the throttle counts. Each core repeats the count of its package, so one event raises the sum several times.
fn throttle_count() -> Option<u64> {
    let counts = cores().flat_map(|core| {
        ["core_throttle_count", "package_throttle_count"].into_iter().filter_map(move |name| {
            read(core.join("thermal_throttle").join(name))?.trim().parse::<u64>().ok()
        })
    });
    counts.reduce(u64::saturating_add)
}

/// The frequency governors of the cores that have one.
pub(super) fn governors() -> Vec<String> {
    cores().filter_map(|core| Some(read(core.join("cpufreq/scaling_governor"))?.trim().to_string())).collect()
}

fn cores() -> impl Iterator<Item = std::path::PathBuf> {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("cpu")?.parse::<u32>();
        number.is_ok().then(|| entry.path())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_busy_idle_or_stolen_and_guest_time_counts_once() {
        let stat = "cpu  100 20 30 1000 50 4 6 7 80 0\ncpu0 50 10 15 500 25 2 3 3 40 0\ncpu1 50 10 15 500 25 2 3 4 40 0\nintr 1\ncpux 1\n";
        let expected = ProcessorTicks { busy: 160, idle: 1050, stolen: 7, cores: 2 };
        assert_eq!(parse_processor(stat), Some(expected));
    }

    #[test]
    fn hidden_or_truncated_counters_are_absent() {
        assert_eq!(parse_processor("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"), None);
        assert_eq!(parse_processor("cpu  1 2 3 4\ncpu0 1 2 3 4\n"), None);
        assert_eq!(parse_processor(""), None);
        assert_eq!(process_ticks("1 (sh) S 0 1 1"), None);
        assert_eq!((swapped_pages("pswpin 1\n"), swapped_pages("")), (None, None));
        assert_eq!(
            (stall_field::<u64>("full avg10=0 total=3\n", "total="), stall_field::<u64>("", "total=")),
            (None, None)
        );
        assert_eq!(parse_limited_us("usage_usec 5\n"), None);
    }

    #[test]
    fn ticks_of_a_process_include_reaped_children() {
        let stat = "7 (a b) c) R 1 7 7 0 -1 4194304 102 0 0 0 11 22 33 44 20 0 1 0 2419254 3133440";
        assert_eq!(process_ticks(stat), Some(110));
    }

    #[test]
    fn swapping_pressure_and_limits_are_read_by_name() {
        assert_eq!(swapped_pages("nr_free 9\npswpin 12\npswpout 30\npswpout_x 1\n"), Some(42));
        let pressure = "some avg10=1.25 avg60=0.13 avg300=0.40 total=9763910\nfull avg10=0.00 total=5\n";
        assert_eq!(
            (stall_field::<f64>("x\n", "avg10="), stall_field(pressure, "avg10=")),
            (None, Some(1.25f64))
        );
        assert_eq!(stall_field(pressure, "total="), Some(9_763_910_u64));
        assert_eq!(parse_limited_us("usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n"), Some(1500));
        assert_eq!(parse_limited_us("nr_periods 9\nnr_throttled 3\nthrottled_time 1500000\n"), Some(1500));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_of_this_process_is_part_of_the_machines_work() {
        let before = Counters::read();
        let mut sum = 0u64;
        while own_ticks() < before.own_ticks + 3 {
            sum = (0..100_000).fold(sum, |sum, number| std::hint::black_box(sum ^ number));
        }
        let after = Counters::read();
        assert!(after.own_ticks >= before.own_ticks + 3);
        if let (Some(before), Some(after)) = (before.processor, after.processor) {
            assert!(after.busy >= before.busy && after.cores == before.cores);
        }
    }
}
