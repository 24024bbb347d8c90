//! Memory: the machine's total, the peak of a process tree, and its current memory.

use std::time::{Duration, Instant};

use super::kernel::read;
use crate::machine::observed::Held;

pub use super::processes::tree;

/// Readings take at most one part in this many of the time: walking the page tables of gigabytes takes tens of milliseconds.
const SHARE_OF_TIME: u32 = 100;

/// The sum of these processes' largest resident sizes (VmHWM), as far as they can still be read. `None` if none can. Shared pages
/// count once for each process.
pub fn peak_resident_bytes(pids: &[u32]) -> Option<u64> {
    pids.iter()
        .filter_map(|pid| peak_bytes(&read(format!("/proc/{pid}/status"))?))
        .reduce(u64::saturating_add)
}

/// The current memory of these processes, as far as it can be read. `None` if none can.
pub fn held(pids: &[u32]) -> Option<Held> {
    let each = pids.iter().filter_map(|pid| {
        let rollup = read(format!("/proc/{pid}/smaps_rollup"))?;
        Share::of(&rollup, &read(format!("/proc/{pid}/status"))?)
    });
    together(&each.collect::<Vec<_>>())
}

/// Memory readings of a process tree. Their cost limits how often they are made, unless one is needed.
#[derive(Debug, Default)]
pub struct Holding {
    /// The end and the duration of the last one.
    last: Option<(Instant, Duration)>,
}

impl Holding {
    pub fn read(&mut self, pids: &[u32], needed: bool) -> Option<Held> {
        let begun = Instant::now();
        let is_expensive = |(ended, cost)| begun.saturating_duration_since(ended) < cost * SHARE_OF_TIME;
        if !needed && self.last.is_some_and(is_expensive) {
            return None;
        }
        let held = held(pids);
        let ended = Instant::now();
        self.last = Some((ended, ended.saturating_duration_since(begun)));
        held
    }
}

/// The memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    resident: u64,
    proportional: u64,
    /// By share: its own memory, and memory that it shares by a fork or as shared memory. No other engine shares these pages.
    anonymous: u64,
    /// By share, and in full. Every process that maps the same file shares these pages, also another engine with the same program
    /// or weights.
    file_by_share: u64,
    file: u64,
}

impl Share {
    fn of(rollup: &str, status: &str) -> Option<Self> {
        let field = |name: &str| kilobytes(rollup, name);
        let (resident, proportional) = (field("Rss:")?, field("Pss:")?);
        // Kernels before 5.4 do not split it, so anonymous memory counts in full.
        let anonymous = field("Pss_Anon:").or_else(|| field("Anonymous:"))?.min(proportional);
        let shared_memory = field("Pss_Shmem:").unwrap_or(0);
        let file_by_share = field("Pss_File:").unwrap_or(proportional.saturating_sub(anonymous));
        let file = kilobytes(status, "RssFile:").unwrap_or(file_by_share).min(resident);
        let anonymous = anonymous.saturating_add(shared_memory);
        Some(Self { resident, proportional, anonymous, file_by_share, file })
    }
}

/// The memory of a tree. File pages count at least as in the process that maps most of them. The kernel divides these pages by
/// processes outside this tree too, and the result must not depend on them.
fn together(shares: &[Share]) -> Option<Held> {
    let sum = |of: fn(&Share) -> u64| shares.iter().map(of).fold(0, u64::saturating_add);
    let largest = shares.iter().map(|share| share.file).max()?;
    Some(Held {
        resident_bytes: sum(|share| share.resident),
        pss_bytes: sum(|share| share.proportional),
        anonymous_bytes: sum(|share| share.anonymous),
        file_bytes: sum(|share| share.file_by_share).max(largest),
    })
}

/// The peak in a status file. Kernel threads and ended processes have none.
fn peak_bytes(status: &str) -> Option<u64> {
    kilobytes(status, "VmHWM:")
}

/// The memory available without swapping, by the kernel and by the container's limit.
pub fn available_bytes() -> Option<u64> {
    let machine = kilobytes(&read("/proc/meminfo")?, "MemAvailable:");
    [machine, super::container::memory_left_bytes()].into_iter().flatten().min()
}

pub(super) fn total_bytes(meminfo: &str) -> Option<u64> {
    kilobytes(meminfo, "MemTotal:")
}

fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
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

    fn share(rollup: &[(&str, u64)], file_mb: u64) -> Share {
        let written = |(name, mb): &(&str, u64)| format!("{name}: {} kB\n", mb * 1024);
        let rollup: String = rollup.iter().map(written).collect();
        Share::of(&rollup, &format!("VmHWM: 9 kB\nRssFile: {} kB\n", file_mb * 1024)).unwrap()
    }

    fn megabytes(held: Option<Held>) -> [u64; 4] {
        let Held { resident_bytes, pss_bytes, anonymous_bytes, file_bytes } = held.unwrap();
        [resident_bytes, pss_bytes, anonymous_bytes, file_bytes].map(|bytes| bytes >> 20)
    }

    #[test]
    fn memory_shared_within_a_process_tree_counts_once() {
        // After a fork both still share 80 MB. Both map 30 MB of a library, and 10 MB are shared memory.
        let of = [("Rss", 130), ("Pss", 70), ("Pss_Anon", 50), ("Pss_File", 15), ("Pss_Shmem", 5)];
        let one = share(&of, 30);
        assert_eq!(megabytes(together(&[one, one])), [260, 140, 110, 30]);
    }

    #[test]
    fn memory_shared_with_other_engines_counts_in_full() {
        // The engine's twin also maps the weights, 100 MB, so the kernel halves them.
        let of = [("Rss", 120), ("Pss", 70), ("Pss_Anon", 20), ("Pss_File", 50), ("Pss_Shmem", 0)];
        assert_eq!(megabytes(together(&[share(&of, 100)])), [120, 70, 20, 100]);
    }

    #[test]
    fn memory_is_split_into_anonymous_and_other_by_old_kernels_too() {
        assert_eq!(
            megabytes(together(&[share(&[("Rss", 90), ("Pss", 70), ("Anonymous", 50)], 30)])),
            [90, 70, 50, 30]
        );
        assert_eq!(Share::of("Rss: 5 kB\n", "RssFile: 1 kB\n"), None);
        assert_eq!((together(&[]), held(&[]), held(&[u32::MAX])), (None, None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touched_memory_is_counted_and_expensive_readings_are_not_repeated_soon() {
        let own = [std::process::id()];
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        // This memory is there, whatever other tests of this process free meanwhile.
        let held = held(&own).unwrap();
        assert!(held.anonymous_bytes >= 60 << 20, "{held:?}");
        assert!(held.resident_bytes >= held.anonymous_bytes && touched.len() == 64 << 20);
        let mut holding = Holding::default();
        assert!(holding.read(&own, false).is_some());
        holding.last = Some((Instant::now(), Duration::from_secs(60)));
        assert_eq!(holding.read(&own, false), None);
        assert!(holding.read(&own, true).is_some());
        holding.last = Some((Instant::now(), Duration::from_secs(60)));
        assert_eq!(holding.read(&own, false), None);
        holding.last = Some((Instant::now(), Duration::ZERO));
        assert!(holding.read(&own, false).is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_peak_and_a_missing_process_has_none() {
        let own = peak_resident_bytes(&[std::process::id()]);
        assert!(own.is_some_and(|bytes| bytes > 1 << 20), "{own:?}");
        assert_eq!(peak_resident_bytes(&[]), None);
        assert_eq!(peak_resident_bytes(&[u32::MAX]), None);
    }
}
