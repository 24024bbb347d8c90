//! The processors that this process may use, and pinning of threads. A processor is a hardware thread, by the kernel's number.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The pinning of a thread to one processor. A drop on the same thread undoes it.
#[derive(Debug)]
pub struct Pinned {
    thread: std::thread::ThreadId,
    /// The processors that the thread may use again after the drop.
    original: Vec<usize>,
}

impl Pinned {
    /// Pins the calling thread. If the system refuses, the thread stays unpinned.
    pub fn to(processor: usize) -> Self {
        allowed(); // Read and stored before the pinning.
        let original = affinity();
        set_affinity(&[processor]);
        Self { thread: std::thread::current().id(), original }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.thread == std::thread::current().id() && !self.original.is_empty() {
            set_affinity(&self.original);
        }
    }
}

/// The processors that this process was started with, read before any pinning: a pinned thread sees only one processor.
pub fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let allowed = affinity();
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        if allowed.is_empty() { (0..count).collect() } else { allowed }
    })
}

/// The allowed processors: one of each core, then a second one of each, and so on. Processors of a core share its arithmetic
/// units.
pub fn cores_first() -> Vec<usize> {
    by_rank(allowed(), siblings).into_iter().map(|(_, processor)| processor).collect()
}

/// One allowed processor of each core.
pub fn one_per_core() -> Vec<usize> {
    let ranked = by_rank(allowed(), siblings).into_iter();
    ranked.filter(|(rank, _)| *rank == 0).map(|(_, processor)| processor).collect()
}

/// The kernel's list of the processors of a core, such as `0,32` or `0-1`.
fn siblings(processor: usize) -> Option<String> {
    crate::read(format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"))
}

/// Returns pairs of a rank and a processor, sorted. The rank counts the given processors of a core: its first one has rank 0. A
/// processor whose core is unknown has rank 0 too.
fn by_rank(processors: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Vec<(usize, usize)> {
    let mut seen = HashMap::<String, usize>::new();
    let rank = |processor| {
        let Some(core) = siblings(processor) else { return (0, processor) };
        let count = seen.entry(core).or_default();
        *count += 1;
        (*count - 1, processor)
    };
    let mut ranked: Vec<_> = processors.iter().copied().map(rank).collect();
    ranked.sort_unstable();
    ranked
}

/// The processors that the calling thread may use. Empty outside Linux, and if the machine has more processors than `CpuSet`
/// can hold.
pub fn affinity() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        return (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect();
    }
    Vec::new()
}

#[cfg(target_os = "linux")]
fn set_affinity(processors: &[usize]) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    if processors.iter().all(|&processor| processor < CpuSet::MAX_CPU) {
        processors.iter().for_each(|&processor| set.set(processor));
        // A failure is ignored: a container may forbid pinning.
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(not(target_os = "linux"))]
fn set_affinity(_: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores with two processors each: 0 and 4, 1 and 5, and so on.
    fn core(processor: usize) -> Option<String> {
        Some(format!("{},{}", processor % 4, processor % 4 + 4))
    }

    #[test]
    fn every_core_comes_once_before_any_core_comes_twice() {
        let order = |processors: &[usize]| {
            by_rank(processors, core).into_iter().map(|(_, processor)| processor).collect::<Vec<_>>()
        };
        assert_eq!(order(&[0, 1, 2, 3, 4, 5, 6, 7]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(&[0, 4, 5]), [0, 5, 4], "only the second processor of a core is allowed");
        assert_eq!(by_rank(&[2, 6, 3], core), [(0, 2), (0, 3), (1, 6)]);
        assert_eq!(by_rank(&[2, 6], |_| None), [(0, 2), (0, 6)], "unknown cores");
    }

    #[test]
    fn at_least_one_processor_is_allowed() {
        assert!(!one_per_core().is_empty());
        assert!(cores_first().starts_with(&one_per_core()));
    }
}
