//! Processes outside an engine that use the processor while the engine is measured. Only processes that started during the run
//! are named: an engine may have started them through another program, so they have no mark and are in no tree of an engine.
//!
//! Processes that begin and end in one turn cannot be named. The machine's busy time, less the time of all processes, shows how
//! much they used together.
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
use crate::machine::{
    busy_ticks, command_line, cpu_time_of_ended_children, is_kernel_thread, memory, processes,
    sees_whole_machine, start_ticks, time_of_ticks,
};
use crate::record::CoreLockState;

/// A process that disturbs a turn uses at least this share of one core during the turn.
const MIN_SHARE: f64 = 0.1;
/// The least CPU time of a process that counts as disturbing, summed over the turns in which it used `MIN_SHARE` or more. A
/// program that begins and soon ends uses less.
const MIN_CPU_TIME: Duration = Duration::from_millis(100);
/// The least CPU time of a turn that no process explains. The kernel counts the time of the whole machine in ticks.
const MIN_UNEXPLAINED: Duration = Duration::from_millis(50);
/// The most processes that are named. A build starts hundreds.
const MAX_NAMED: usize = 5;

/// The processes that started during the run, and their CPU time in the turns of engines that they do not belong to.
#[derive(Default)]
pub(super) struct OtherProcesses {
    /// False if other runs may use the cores, because their engines would disturb every turn.
    observes: bool,
    /// The processes that ran before the run.
    earlier: Arc<BTreeSet<Process>>,
    used: BTreeMap<Process, Duration>,
    /// The CPU time of processes of which none used enough to be named.
    used_by_short: Duration,
    disturbing: BTreeSet<Process>,
    has_named_short: bool,
}

/// Identifies a process even if the kernel uses its number again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    pid: u32,
    start_ticks: u64,
}

/// The clocks at one moment.
#[derive(Default)]
struct Clocks {
    /// The CPU time of the processes that started during the run, in nanoseconds.
    new: BTreeMap<Process, u64>,
    /// The CPU time of the processes that ran before the run.
    earlier: BTreeMap<Process, u64>,
    /// The CPU time of ended processes for which this program or an engine has waited.
    ended: Duration,
    /// The busy time of the machine. `None` if this program does not see the whole machine.
    busy: Option<Duration>,
    /// This program, the keeper, and all of their descendants.
    of_run: BTreeSet<u32>,
}

/// The clocks at the beginning of a turn.
pub(super) struct TurnBegin {
    at: Instant,
    clocks: Clocks,
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
        let earlier = off_thread(|| processes().filter_map(Process::with_number).collect()).await?;
        Ok(Self { observes, earlier: Arc::new(earlier), ..Self::default() })
    }

    pub async fn begin(&self) -> Result<TurnBegin> {
        let clocks = self.clocks().await?;
        Ok(TurnBegin { at: Instant::now(), clocks })
    }

    /// Compares the clocks with those at the beginning of this engine's turn.
    pub async fn end(&mut self, begin: TurnBegin, launched: &Launched) -> Result<Disturbed> {
        if !self.observes {
            return Ok(Disturbed::default());
        }
        let elapsed = begin.at.elapsed();
        let clocks = self.clocks().await?;
        let own = own_processes(launched).await?;
        let least = elapsed.mul_f64(MIN_SHARE);
        let mut disturbed = Disturbed::default();
        let mut short =
            clocks.unexplained_since(&begin.clocks).filter(|&it| it >= MIN_UNEXPLAINED.max(least));
        let mut short_of_engines = Duration::ZERO;
        for (process, used) in used_between(&begin.clocks.new, &clocks.new) {
            // The kernel's own threads may work for the engine.
            if used.is_zero() || own.contains(&process.pid) || is_kernel_thread(process.pid) {
                continue;
            }
            let total = self.used.entry(process).or_default();
            if used >= least {
                *total += used;
            }
            if used < least || *total < MIN_CPU_TIME {
                *short.get_or_insert_default() += used;
                if clocks.of_run.contains(&process.pid) {
                    short_of_engines += used;
                }
                continue;
            }
            disturbed.is_disturbed = true;
            if self.disturbing.insert(process) && self.disturbing.len() <= MAX_NAMED {
                let pid = process.pid;
                let command = off_thread(move || command_line(pid)).await?;
                let percent = percent(used, elapsed);
                disturbed.new.push(format!("`{command}` (process {pid}) used {percent:.0} % of a core"));
            }
        }
        let Some(short) = short.filter(|&it| it >= least) else { return Ok(disturbed) };
        self.used_by_short += short;
        if self.used_by_short >= MIN_CPU_TIME {
            disturbed.is_disturbed = true;
            if !std::mem::replace(&mut self.has_named_short, true) {
                // Only a descendant of the keeper is surely a process of an engine.
                let whose = if short_of_engines >= least { " that engines of this run left" } else { "" };
                let percent = percent(short, elapsed);
                disturbed
                    .new
                    .push(format!("short or small processes{whose} used {percent:.0} % of a core together"));
            }
        }
        Ok(disturbed)
    }

    /// A warning about the processes that disturbed a turn and are not named.
    pub fn not_named(&self) -> Option<String> {
        let count = self.disturbing.len().checked_sub(MAX_NAMED).filter(|&count| count > 0)?;
        Some(format!(
            "machine: {count} more {} that started during the run used the processor while engines were measured",
            if count == 1 { "process" } else { "processes" }
        ))
    }

    async fn clocks(&self) -> Result<Clocks> {
        if !self.observes {
            return Ok(Clocks::default());
        }
        let earlier = Arc::clone(&self.earlier);
        off_thread(move || Clocks::read(&earlier)).await
    }
}

impl Process {
    fn with_number(pid: u32) -> Option<Self> {
        Some(Self { pid, start_ticks: start_ticks(pid)? })
    }
}

impl Clocks {
    fn read(before_run: &BTreeSet<Process>) -> Self {
        let mut clocks =
            Self { of_run: memory::tree(std::process::id()).into_iter().collect(), ..Self::default() };
        // A process that starts during the search must not seem unexplained.
        clocks.busy = busy_ticks().filter(|_| sees_whole_machine()).map(time_of_ticks);
        for process in processes().filter_map(Process::with_number) {
            let Some(ns) = CpuTime::of(&[process.pid]).read().cpu_ns else { continue };
            let of_group = if before_run.contains(&process) { &mut clocks.earlier } else { &mut clocks.new };
            of_group.insert(process, ns);
        }
        clocks.ended = clocks.of_run.iter().filter_map(|&pid| cpu_time_of_ended_children(pid)).sum();
        clocks
    }

    /// The CPU time of the machine that belongs to no present process: processes that began and ended since `before` used it.
    fn unexplained_since(&self, before: &Self) -> Option<Duration> {
        let busy = self.busy?.checked_sub(before.busy?)?;
        let used =
            |before: &BTreeMap<Process, u64>, now| used_between(before, now).map(|(_, used)| used).sum();
        let explained: [Duration; 2] = [used(&before.new, &self.new), used(&before.earlier, &self.earlier)];
        let ended = self.ended.saturating_sub(before.ended);
        Some(busy.saturating_sub(explained.iter().sum::<Duration>() + ended))
    }
}

/// The CPU time that each process used between two readings of its clock.
fn used_between<'a>(
    before: &'a BTreeMap<Process, u64>,
    now: &'a BTreeMap<Process, u64>,
) -> impl Iterator<Item = (Process, Duration)> + 'a {
    now.iter().map(|(&process, &ns)| {
        let earlier_ns = before.get(&process).copied().unwrap_or_default();
        (process, Duration::from_nanos(ns.saturating_sub(earlier_ns)))
    })
}

fn percent(used: Duration, elapsed: Duration) -> f64 {
    100.0 * used.as_secs_f64() / elapsed.as_secs_f64()
}

/// Every process of a launch: those with its mark, and the trees of those that it reports.
async fn own_processes(launched: &Launched) -> Result<BTreeSet<u32>> {
    let (marked, roots) = (launched.conversation.process.all().await, launched.roots());
    off_thread(move || marked.into_iter().chain(roots).flat_map(memory::tree).collect()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_process_with_a_used_number_is_another_process() {
        let process = |start_ticks| Process { pid: 7, start_ticks };
        let before = BTreeMap::from([(process(1), 900 * MS)]);
        let now = BTreeMap::from([(process(2), 300 * MS)]);
        // The clock of the ended process is not subtracted from that of the new one.
        let used: Vec<(Process, Duration)> = used_between(&before, &now).collect();
        assert_eq!(used, [(process(2), Duration::from_millis(300))]);
        let again = BTreeMap::from([(process(1), 1000 * MS)]);
        assert_eq!(used_between(&before, &again).next().unwrap().1, Duration::from_millis(100));
    }

    #[test]
    fn processes_that_are_not_named_are_counted() {
        let with = |count: u32| {
            let disturbing = (0..count).map(|pid| Process { pid, start_ticks: 1 }).collect();
            OtherProcesses { disturbing, ..OtherProcesses::default() }.not_named()
        };
        assert_eq!((with(0), with(5)), (None, None));
        assert!(with(6).unwrap().starts_with("machine: 1 more process that started"));
        assert!(with(12).unwrap().starts_with("machine: 7 more processes that started"));
    }

    #[test]
    fn the_busy_time_that_no_process_explains_is_that_of_processes_which_ended() {
        let clocks = |busy_ms, new_ms: u64, ended_ms| Clocks {
            new: BTreeMap::from([(Process { pid: 7, start_ticks: 1 }, new_ms * MS)]),
            ended: Duration::from_millis(ended_ms),
            busy: Some(Duration::from_millis(busy_ms)),
            ..Clocks::default()
        };
        let before = clocks(1000, 100, 0);
        assert_eq!(clocks(1500, 300, 50).unexplained_since(&before), Some(Duration::from_millis(250)));
        assert_eq!(clocks(1100, 300, 50).unexplained_since(&before), Some(Duration::ZERO));
    }
}
