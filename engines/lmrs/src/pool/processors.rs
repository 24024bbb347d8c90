//! The processors that this process may use, and pinning to one of them.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
use elsewhere as system;

use std::sync::OnceLock;

/// A thread pinned to one processor. Drop it on the same thread to undo the pinning.
#[derive(Debug)]
pub struct Pinned {
    thread: std::thread::ThreadId,
    before: Vec<usize>,
}

impl Pinned {
    /// Pins the calling thread, best effort: if the system refuses, the thread stays unpinned.
    pub fn to(processor: usize) -> Self {
        allowed();
        let before = system::allowed_now();
        system::allow(&[processor]);
        Self { thread: std::thread::current().id(), before }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.thread == std::thread::current().id() && !self.before.is_empty() {
            system::allow(&self.before);
        }
    }
}

/// The processors that this process was started with. A pinned thread would only see its own.
pub fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let allowed = system::allowed_now();
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        if allowed.is_empty() { (0..count).collect() } else { allowed }
    })
}

/// All processors, the first thread of each core before the second threads.
pub fn cores_first() -> Vec<usize> {
    let mut order: Vec<_> =
        allowed().iter().map(|&processor| (system::place_in_core(processor), processor)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, processor)| processor).collect()
}

#[cfg(test)]
pub fn now() -> Vec<usize> {
    system::allowed_now()
}
