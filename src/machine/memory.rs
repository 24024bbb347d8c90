//! Memory: the machine's total, and the peak and the current memory of a process tree.

use std::time::{Duration, Instant};

use system::memory::field_bytes;

use super::kernel::read;
use crate::machine::observed::HeldMemory;

pub use super::processes::tree;
pub use system::memory::available_bytes;

/// A reading is usually made only if the time since the last one is at least this many times the duration of that reading. A reading takes
/// tens of milliseconds for gigabytes.
const MIN_PAUSE_FACTOR: u32 = 100;

/// The sum of these processes' largest resident sizes (VmHWM), as far as they can still be read. `None` if none can. Shared pages
/// count once for each process.
pub fn peak_resident_bytes(pids: &[u32]) -> Option<u64> {
    pids.iter()
        .filter_map(|pid| peak_bytes(&read(format!("/proc/{pid}/status"))?))
        .reduce(u64::saturating_add)
}

/// The current memory of these processes, as far as it can be read. `None` if none can.
pub fn current_memory(pids: &[u32]) -> Option<HeldMemory> {
    let processes = pids.iter().filter_map(|pid| {
        let rollup = read(format!("/proc/{pid}/smaps_rollup"))?;
        ProcessMemory::of(&rollup, &read(format!("/proc/{pid}/status"))?)
    });
    sum_of_tree(&processes.collect::<Vec<_>>())
}

/// Memory readings of a process tree. Their cost limits how often they are made, unless the last one is too old.
#[derive(Debug, Default)]
pub struct MemoryReadings {
    /// The end and the duration of the last reading.
    last: Option<(Instant, Duration)>,
}

impl MemoryReadings {
    /// `None` if the reading comes too soon after the last one, which is younger than `max_age`, or if no process can be read.
    pub fn read(&mut self, pids: &[u32], max_age: Duration) -> Option<HeldMemory> {
        let started = Instant::now();
        let is_too_soon = |(ended, cost): (Instant, Duration)| {
            let age = started.saturating_duration_since(ended);
            age < max_age && age < cost * MIN_PAUSE_FACTOR
        };
        if self.last.is_some_and(is_too_soon) {
            return None;
        }
        let memory = current_memory(pids);
        let ended = Instant::now();
        self.last = Some((ended, ended.saturating_duration_since(started)));
        memory
    }
}

/// The memory of one process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessMemory {
    resident: u64,
    proportional: u64,
    /// The process's share of memory without a file: its own, shared after a fork, or shared memory. No other engine shares these
    /// pages.
    anonymous: u64,
    /// The process's share of mapped files. Every process that maps the same file shares these pages, also another engine with
    /// the same program or weights.
    file_by_share: u64,
    /// Mapped files in full.
    file: u64,
}

impl ProcessMemory {
    fn of(rollup: &str, status: &str) -> Option<Self> {
        let field = |name: &str| field_bytes(rollup, name);
        let (resident, proportional) = (field("Rss:")?, field("Pss:")?);
        // Kernels before 5.4 do not report `Pss_Anon`, so anonymous memory counts in full.
        let anonymous = field("Pss_Anon:").or_else(|| field("Anonymous:"))?.min(proportional);
        let shared_memory = field("Pss_Shmem:").unwrap_or(0);
        let file_by_share = field("Pss_File:").unwrap_or(proportional.saturating_sub(anonymous));
        let file = field_bytes(status, "RssFile:").unwrap_or(file_by_share).min(resident);
        let anonymous = anonymous.saturating_add(shared_memory);
        Some(Self { resident, proportional, anonymous, file_by_share, file })
    }
}

/// The memory of a tree. The kernel divides file pages among all processes, also those outside the tree. The result must not
/// depend on those, so file pages count at least as much as in the process that maps most of them.
fn sum_of_tree(processes: &[ProcessMemory]) -> Option<HeldMemory> {
    let sum = |field: fn(&ProcessMemory) -> u64| processes.iter().map(field).fold(0, u64::saturating_add);
    let largest = processes.iter().map(|process| process.file).max()?;
    Some(HeldMemory {
        resident_bytes: sum(|process| process.resident),
        pss_bytes: sum(|process| process.proportional),
        anonymous_bytes: sum(|process| process.anonymous),
        file_bytes: sum(|process| process.file_by_share).max(largest),
    })
}

/// The peak in a status file. Kernel threads and ended processes have none.
fn peak_bytes(status: &str) -> Option<u64> {
    field_bytes(status, "VmHWM:")
}

pub(super) fn total_bytes(meminfo: &str) -> Option<u64> {
    field_bytes(meminfo, "MemTotal:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status_and_absent_after_the_end_of_a_process() {
        assert_eq!(
            peak_bytes("Name:\tx\nVmPeak:\t  9000 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 12 kB\n"),
            Some(1234 << 10)
        );
        assert_eq!(peak_bytes("Name:\tx\nState:\tZ (zombie)\n"), None);
        assert_eq!(total_bytes("MemTotal:       24684096 kB\nMemFree: 1 kB\n"), Some(24_684_096 << 10));
    }

    fn process_memory(rollup: &[(&str, u64)], file_mb: u64) -> ProcessMemory {
        let written = |(name, mb): &(&str, u64)| format!("{name}: {} kB\n", mb * 1024);
        let rollup: String = rollup.iter().map(written).collect();
        ProcessMemory::of(&rollup, &format!("VmHWM: 9 kB\nRssFile: {} kB\n", file_mb * 1024)).unwrap()
    }

    fn megabytes(memory: Option<HeldMemory>) -> [u64; 4] {
        let HeldMemory { resident_bytes, pss_bytes, anonymous_bytes, file_bytes } = memory.unwrap();
        [resident_bytes, pss_bytes, anonymous_bytes, file_bytes].map(|bytes| bytes >> 20)
    }

    #[test]
    fn memory_shared_within_a_process_tree_counts_once() {
        // Two processes after a fork share 80 MB, a library of 30 MB and 10 MB of shared memory; each also has 10 MB of its own.
        let fields = [("Rss", 130), ("Pss", 70), ("Pss_Anon", 50), ("Pss_File", 15), ("Pss_Shmem", 5)];
        let process = process_memory(&fields, 30);
        assert_eq!(megabytes(sum_of_tree(&[process, process])), [260, 140, 110, 30]);
    }

    #[test]
    fn memory_shared_with_other_engines_counts_in_full() {
        // The engine's twin also maps the weights, 100 MB, so the kernel counts half of them for each.
        let fields = [("Rss", 120), ("Pss", 70), ("Pss_Anon", 20), ("Pss_File", 50), ("Pss_Shmem", 0)];
        assert_eq!(megabytes(sum_of_tree(&[process_memory(&fields, 100)])), [120, 70, 20, 100]);
    }

    #[test]
    fn anonymous_and_file_memory_are_distinguished_on_old_kernels_too() {
        assert_eq!(
            megabytes(sum_of_tree(&[process_memory(&[("Rss", 90), ("Pss", 70), ("Anonymous", 50)], 30)])),
            [90, 70, 50, 30]
        );
        assert_eq!(ProcessMemory::of("Rss: 5 kB\n", "RssFile: 1 kB\n"), None);
        assert_eq!((sum_of_tree(&[]), current_memory(&[]), current_memory(&[u32::MAX])), (None, None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touched_memory_is_counted_and_expensive_readings_are_not_repeated_soon() {
        let own_pids = [std::process::id()];
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        // This memory stays allocated while other tests of this process free theirs.
        let memory = current_memory(&own_pids).unwrap();
        assert!(memory.anonymous_bytes >= 60 << 20, "{memory:?}");
        assert!(memory.resident_bytes >= memory.anonymous_bytes && touched.len() == 64 << 20);
        let (mut readings, needed, optional) = (MemoryReadings::default(), Duration::ZERO, Duration::MAX);
        assert!(readings.read(&own_pids, optional).is_some());
        readings.last = Some((Instant::now(), Duration::from_secs(60)));
        assert_eq!(readings.read(&own_pids, optional), None);
        assert!(readings.read(&own_pids, needed).is_some());
        readings.last = Some((Instant::now(), Duration::from_secs(60)));
        assert_eq!(readings.read(&own_pids, optional), None);
        readings.last = Some((Instant::now(), Duration::ZERO));
        assert!(readings.read(&own_pids, optional).is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_peak_and_a_missing_process_has_none() {
        let own_peak = peak_resident_bytes(&[std::process::id()]);
        assert!(own_peak.is_some_and(|bytes| bytes > 1 << 20), "{own_peak:?}");
        assert_eq!(peak_resident_bytes(&[]), None);
        assert_eq!(peak_resident_bytes(&[u32::MAX]), None);
    }
}
