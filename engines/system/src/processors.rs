//! The processors that this process may use, and pinning of threads. A processor is a hardware thread, by the kernel's number.

use std::sync::OnceLock;

/// A thread pinned to one processor. Drop it on the same thread to undo the pinning.
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

/// The allowed processors: first one of each core, then the second ones. Two processors of a core share its arithmetic units.
pub fn cores_first() -> Vec<usize> {
    let mut processors = allowed().to_vec();
    processors.sort_by_key(|&processor| (index_in_core(processor), processor));
    processors
}

/// 0 for the first processor of a core, 1 for its second; 0 if unknown.
fn index_in_core(processor: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    crate::read(path).map_or(0, |list| siblings_before(&list, processor))
}

/// The number of processors that a list such as `0,32` or `0-1` has before this one.
fn siblings_before(list: &str, processor: usize) -> usize {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
    });
    ranges.map(|(first, last)| processor.min(last.saturating_add(1)).saturating_sub(first)).sum()
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

    #[test]
    fn siblings_give_the_index_of_a_processor_in_its_core() {
        assert_eq!([0, 32].map(|processor| siblings_before("0,32\n", processor)), [0, 1]);
        assert_eq!([4, 5].map(|processor| siblings_before("4-5\n", processor)), [0, 1]);
        assert_eq!([siblings_before("", 3), siblings_before("x-y", 3), siblings_before("7", 7)], [0, 0, 0]);
    }

    #[test]
    fn at_least_one_processor_is_allowed() {
        assert!(!cores_first().is_empty());
    }
}
