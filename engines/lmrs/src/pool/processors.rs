//! The processors that this process may use, and pinning to one of them.

use std::sync::OnceLock;

/// A thread pinned to one processor. Drop it on the same thread to undo the pinning.
#[derive(Debug)]
pub struct Pinned {
    thread: std::thread::ThreadId,
    original: Vec<usize>,
}

impl Pinned {
    /// Pins the calling thread, best effort: if the system refuses, the thread stays unpinned.
    pub fn to(processor: usize) -> Self {
        allowed_processors();
        let original = system::read_affinity();
        system::allow(&[processor]);
        Self { thread: std::thread::current().id(), original }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.thread == std::thread::current().id() && !self.original.is_empty() {
            system::allow(&self.original);
        }
    }
}

/// The processors that this process was started with. A pinned thread would see only one processor.
pub fn allowed_processors() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let allowed = system::read_affinity();
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        if allowed.is_empty() { (0..count).collect() } else { allowed }
    })
}

/// All processors, the first thread of each core before the second threads.
pub fn cores_first() -> Vec<usize> {
    let mut order: Vec<_> =
        allowed_processors().iter().map(|&processor| (system::index_in_core(processor), processor)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, processor)| processor).collect()
}

#[cfg(test)]
pub use system::read_affinity;

/// Linux: affinity masks, and the topology under `/sys`.
#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The affinity mask; empty if the call fails.
    pub fn read_affinity() -> Vec<usize> {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    pub fn allow(processors: &[usize]) {
        let mut set = CpuSet::new();
        if processors.iter().all(|&processor| processor < CpuSet::MAX_CPU) {
            processors.iter().for_each(|&processor| set.set(processor));
            let _ = sched_setaffinity(None, &set);
        }
    }

    /// 0 for the first thread of a core, 1 for its second; 0 if unknown.
    pub fn index_in_core(processor: usize) -> usize {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        let siblings = std::fs::read_to_string(path).unwrap_or_default();
        siblings_before(siblings.trim(), processor)
    }

    /// Siblings before a processor in a list such as `0,64` or `0-1`.
    fn siblings_before(list: &str, processor: usize) -> usize {
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
        };
        list.split(',').filter_map(range).flatten().filter(|&sibling| sibling < processor).count()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_siblings_of_a_core_are_counted_in_both_spellings() {
            assert_eq!((siblings_before("0,64", 0), siblings_before("0,64", 64)), (0, 1));
            assert_eq!((siblings_before("2-3", 2), siblings_before("2-3", 3)), (0, 1));
            assert_eq!(siblings_before("", 7), 0);
        }
    }
}

/// Systems without thread pinning.
#[cfg(not(target_os = "linux"))]
mod system {
    pub fn read_affinity() -> Vec<usize> {
        Vec::new()
    }

    pub fn allow(_: &[usize]) {}

    pub fn index_in_core(_: usize) -> usize {
        0
    }
}
