//! Memory: what the machine has, and the most that a process tree held.

use super::read;

pub use super::processes::tree;

/// The sum of the largest resident sizes (VmHWM) of these processes, as far as they can still be read; `None` when none
/// can. Pages that processes share count once for each.
pub fn peak_resident_bytes(pids: &[u32]) -> Option<u64> {
    pids.iter()
        .filter_map(|pid| peak_bytes(&read(format!("/proc/{pid}/status"))?))
        .reduce(u64::saturating_add)
}

/// A kernel thread and a process that has ended have none.
fn peak_bytes(status: &str) -> Option<u64> {
    kilobytes(status, "VmHWM:")
}

/// What can be taken without swapping, as the kernel and a container's limit see it.
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
    fn the_peak_is_read_from_the_status_and_absent_for_a_process_that_has_ended() {
        assert_eq!(
            peak_bytes("Name:\tx\nVmPeak:\t  9000 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 12 kB\n"),
            Some(1234 << 10)
        );
        assert_eq!(peak_bytes("Name:\tx\nState:\tZ (zombie)\n"), None);
        assert_eq!(total_bytes("MemTotal:       24684096 kB\nMemFree: 1 kB\n"), Some(24_684_096 << 10));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_peak_and_no_process_has_none() {
        let own = peak_resident_bytes(&[std::process::id()]);
        assert!(own.is_some_and(|bytes| bytes > 1 << 20), "{own:?}");
        assert_eq!(peak_resident_bytes(&[]), None);
        assert_eq!(peak_resident_bytes(&[u32::MAX]), None);
    }
}
