//! Processes outside an engine that use the processor while the engine is measured. Only processes that started during the run
//! are observed: an engine may have started them through another program, so that no mark and no tree has them.
//!
//! Before and after each turn, the processes of the machine are listed, and the clocks of the new ones are read. This is outside
//! the time of the turn's request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::blocking::off_thread;
use super::launch::Launched;
use crate::machine::cpu_time::CpuTime;
use crate::machine::{command_line, is_kernel_thread, memory, processes};
use crate::record::CoreLockState;

/// A process that disturbs a turn uses at least this share of one core during the turn.
const MIN_SHARE: f64 = 0.1;
/// The least CPU time of a process that counts as disturbing, summed over the turns in which it used `MIN_SHARE` or more. A
/// program that begins and soon ends uses less.
const MIN_CPU_TIME: Duration = Duration::from_millis(100);
/// The most processes that are named. A build starts hundreds.
const MAX_NAMED: usize = 5;

/// The processes that started during the run, and their CPU time in the turns of engines that they do not belong to.
#[derive(Default)]
pub(super) struct OtherProcesses {
    /// False if other runs may use the cores, because their engines would disturb every turn.
    observes: bool,
    /// The processes that ran before the run.
    earlier: Arc<BTreeSet<u32>>,
    used: BTreeMap<u32, Duration>,
    named: BTreeSet<u32>,
}

/// The clocks at the beginning of a turn.
pub(super) struct TurnBegin {
    at: Instant,
    clocks: BTreeMap<u32, u64>,
}

/// The processes that disturbed a turn.
#[derive(Default)]
pub(super) struct Disturbed {
    pub is_disturbed: bool,
    /// A description of each process that is named for the first time.
    pub new: Vec<String>,
}

impl OtherProcesses {
    pub async fn at_start_of_run(core_lock: Option<CoreLockState>) -> Result<Self> {
        let observes = !matches!(core_lock, Some(CoreLockState::Shared | CoreLockState::Off));
        let earlier = off_thread(|| processes().collect()).await?;
        Ok(Self { observes, earlier: Arc::new(earlier), ..Self::default() })
    }

    pub async fn begin(&self) -> Result<TurnBegin> {
        let clocks = self.clocks().await?;
        Ok(TurnBegin { at: Instant::now(), clocks })
    }

    /// Compares the clocks with those at the beginning of this engine's turn.
    pub async fn end(&mut self, begin: TurnBegin, launched: &Launched) -> Result<Disturbed> {
        let elapsed = begin.at.elapsed();
        let clocks = self.clocks().await?;
        let mut suspects = Vec::new();
        for (pid, ns) in clocks {
            let before = begin.clocks.get(&pid).copied().unwrap_or_default();
            let used = Duration::from_nanos(ns.saturating_sub(before));
            // The kernel's own threads may work for the engine.
            if used.as_secs_f64() >= MIN_SHARE * elapsed.as_secs_f64() && !is_kernel_thread(pid) {
                suspects.push((pid, used));
            }
        }
        if suspects.is_empty() {
            return Ok(Disturbed::default());
        }
        let own = own_processes(launched).await?;
        let mut disturbed = Disturbed::default();
        for (pid, used) in suspects.into_iter().filter(|(pid, _)| !own.contains(pid)) {
            let total = self.used.entry(pid).or_default();
            *total += used;
            if *total < MIN_CPU_TIME {
                continue;
            }
            disturbed.is_disturbed = true;
            if self.named.len() < MAX_NAMED && self.named.insert(pid) {
                let percent = 100.0 * used.as_secs_f64() / elapsed.as_secs_f64();
                let command = off_thread(move || command_line(pid)).await?;
                disturbed.new.push(format!("`{command}` (process {pid}) used {percent:.0} % of a core"));
            }
        }
        Ok(disturbed)
    }

    /// The CPU time of the processes that started during the run, in nanoseconds.
    async fn clocks(&self) -> Result<BTreeMap<u32, u64>> {
        if !self.observes {
            return Ok(BTreeMap::new());
        }
        let earlier = Arc::clone(&self.earlier);
        let read = move || {
            let new = processes().filter(|pid| !earlier.contains(pid));
            new.filter_map(|pid| Some((pid, CpuTime::of(&[pid]).read().cpu_ns?))).collect()
        };
        off_thread(read).await
    }
}

/// Every process of a launch: those with its mark, and the trees of those that it reports.
async fn own_processes(launched: &Launched) -> Result<BTreeSet<u32>> {
    let (marked, roots) = (launched.conversation.process.all().await, launched.roots());
    off_thread(move || marked.into_iter().chain(roots).flat_map(memory::tree).collect()).await
}
