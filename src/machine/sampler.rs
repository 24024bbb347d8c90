//! Samples an engine's memory or GPUs from a separate thread, in the sampled pass.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::gpu::{self, GpuSample};
use super::memory;
use crate::machine::observed::{GpuPass, HeldMemory};

/// The time between two memory samples, unless a sample takes long.
const MEMORY_INTERVAL: Duration = Duration::from_millis(20);
/// The time from one sample to the next is at least this many times the duration of a sample.
const MIN_TIME_FACTOR: u32 = 10;
/// The time between two GPU samples. The driver's own utilisation is a mean over a sixth of a second or more.
const GPU_INTERVAL: Duration = Duration::from_millis(200);

/// The target of the samples: memory or GPUs, not both at once. Reading memory uses a core, which would add to the measured
/// energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Memory,
    Gpus,
}

/// A sampler that runs until it is stopped. A dropped sampler ends by itself.
#[derive(Debug)]
pub struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<SampledUse>,
}

#[derive(Debug, Default)]
pub struct SampledUse {
    /// The sample with the largest proportional memory (PSS).
    pub held: Option<HeldMemory>,
    pub gpus: Vec<GpuPass>,
}

impl Sampler {
    /// Starts to sample the trees of these processes. The first sample is taken at once.
    pub fn start(target: Target, roots: Vec<u32>) -> Self {
        let (stop, stopped) = mpsc::channel();
        Self { stop, thread: std::thread::spawn(move || sample(target, &roots, &stopped)) }
    }

    /// Ends after a last sample.
    pub fn stop(self) -> SampledUse {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

fn sample(target: Target, roots: &[u32], stopped: &mpsc::Receiver<()>) -> SampledUse {
    let (mut held, mut samples): (Option<HeldMemory>, Vec<GpuSample>) = (None, Vec::new());
    let (started, mut is_last) = (Instant::now(), false);
    loop {
        let sample_started = Instant::now();
        let mut processes: Vec<u32> = roots.iter().flat_map(|&root| memory::tree(root)).collect();
        // One root may be in the tree of another.
        processes.sort_unstable();
        processes.dedup();
        let interval = match target {
            Target::Memory => {
                held = held
                    .into_iter()
                    .chain(memory::current_memory(&processes))
                    .max_by_key(|held| held.pss_bytes);
                MEMORY_INTERVAL
            }
            Target::Gpus => {
                samples.extend(gpu::sample(&processes, started.elapsed()));
                GPU_INTERVAL
            }
        };
        if is_last {
            return SampledUse { held, gpus: gpu::summarise(&samples) };
        }
        let pause = interval.max(sample_started.elapsed() * (MIN_TIME_FACTOR - 1));
        is_last = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_very_short_pass_is_sampled_at_least_once() {
        let sampled = Sampler::start(Target::Memory, vec![std::process::id()]).stop();
        assert!(sampled.held.is_some_and(|held| held.resident_bytes > 1 << 20), "{sampled:?}");
    }

    #[test]
    fn ended_processes_have_no_memory_value() {
        assert_eq!(Sampler::start(Target::Memory, vec![u32::MAX]).stop().held, None);
    }
}
