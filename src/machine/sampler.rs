//! Looks at an engine from a thread of its own, while it computes what nobody times.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::gpu::{self, Look};
use super::memory;
use crate::machine::observed::{GpuPass, Held};

/// Between two looks at memory, unless looking takes long.
const EVERY: Duration = Duration::from_millis(20);
/// Looking takes this share of the time at most.
const SHARE_OF_TIME: u32 = 10;
/// The driver's own figure of utilisation is a mean over about so long.
const GPUS_EVERY: Duration = Duration::from_millis(200);

/// What is looked at. Walking page tables is work for a core, so that energy is never counted meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Memory,
    Gpus,
}

/// Under way until it is stopped. One that is dropped ends by itself.
#[derive(Debug)]
pub struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Seen>,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// The look at which the tree held most.
    pub held: Option<Held>,
    pub gpus: Vec<GpuPass>,
}

impl Sampler {
    /// Looks at the trees of these processes, for the first time at once.
    pub fn start(what: What, roots: Vec<u32>) -> Self {
        let (stop, stopped) = mpsc::channel();
        Self { stop, thread: std::thread::spawn(move || watch(what, &roots, &stopped)) }
    }

    /// After a last look.
    pub fn stop(self) -> Seen {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

fn watch(what: What, roots: &[u32], stopped: &mpsc::Receiver<()>) -> Seen {
    let (mut held, mut looks): (Option<Held>, Vec<Look>) = (None, Vec::new());
    let (started, mut ends) = (Instant::now(), false);
    loop {
        let begun = Instant::now();
        let mut processes: Vec<u32> = roots.iter().flat_map(|&root| memory::tree(root)).collect();
        // Roots may lie in one another's trees.
        processes.sort_unstable();
        processes.dedup();
        let every = match what {
            What::Memory => {
                held = held.into_iter().chain(memory::held(&processes)).max_by_key(|held| held.pss_bytes);
                EVERY
            }
            What::Gpus => {
                looks.extend(gpu::look(&processes, started.elapsed()));
                GPUS_EVERY
            }
        };
        if ends {
            return Seen { held, gpus: gpu::over(&looks) };
        }
        let pause = every.max(begun.elapsed() * (SHARE_OF_TIME - 1));
        ends = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pass_that_is_over_at_once_was_seen_all_the_same() {
        let seen = Sampler::start(What::Memory, vec![std::process::id()]).stop();
        assert!(seen.held.is_some_and(|held| held.resident_bytes > 1 << 20), "{seen:?}");
    }

    #[test]
    fn processes_that_are_gone_hold_nothing_that_is_known() {
        assert_eq!(Sampler::start(What::Memory, vec![u32::MAX]).stop().held, None);
    }
}
