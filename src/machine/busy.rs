//! Processor time of processes, as the kernel counts it.

/// Of processes that were known before a request: asking takes two system calls for each and looks for none, so that it
/// can be done right beside the request.
#[derive(Debug, Default)]
pub struct ProcessorTime {
    #[cfg(target_os = "linux")]
    clocks: Vec<nix::time::ClockId>,
}

/// Of any Linux.
#[cfg(target_os = "linux")]
const LARGEST_PID: i32 = 1 << 22;

impl ProcessorTime {
    /// The clocks of these processes. One that has ended has none.
    #[cfg(target_os = "linux")]
    pub fn of(pids: &[u32]) -> Self {
        let clock = |&pid: &u32| {
            // A larger number is no process, and some of them the kernel would take for the clock of the asker.
            let pid = i32::try_from(pid).ok().filter(|pid| (1..=LARGEST_PID).contains(pid))?;
            let pid = nix::unistd::Pid::from_raw(pid);
            nix::time::clock_getcpuclockid(pid).ok()
        };
        Self { clocks: pids.iter().filter_map(clock).collect() }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &[u32]) -> Self {
        Self::default()
    }

    /// What all their threads, the ended ones too, have had so far; `None` when one of the processes cannot be asked: a sum
    /// over fewer would look like less work.
    #[cfg(target_os = "linux")]
    pub fn so_far_ns(&self) -> Option<u64> {
        let each = self.clocks.iter().map(|clock| {
            let time = clock.now().ok()?;
            let (seconds, rest) = (u64::try_from(time.tv_sec()).ok()?, u64::try_from(time.tv_nsec()).ok()?);
            seconds.checked_mul(1_000_000_000)?.checked_add(rest)
        });
        each.reduce(|sum, ns| sum?.checked_add(ns?)).flatten()
    }

    #[cfg(not(target_os = "linux"))]
    pub fn so_far_ns(&self) -> Option<u64> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn work_of_any_thread_of_a_process_is_processor_time_of_it() {
        let own = ProcessorTime::of(&[std::process::id()]);
        let before_ns = own.so_far_ns().unwrap();
        let work = || {
            for number in 0..20_000_000_u64 {
                std::hint::black_box(number);
            }
        };
        std::thread::spawn(work).join().unwrap();
        // No processor does so much in a millisecond, so a unit that is wrong shows.
        let worked_ns = own.so_far_ns().unwrap() - before_ns;
        assert!(worked_ns > 1_000_000, "{worked_ns} ns");
    }

    #[test]
    fn processes_that_are_not_there_have_had_no_time_that_is_known() {
        assert_eq!(ProcessorTime::of(&[]).so_far_ns(), None);
        assert_eq!(ProcessorTime::of(&[u32::MAX, i32::MAX as u32]).so_far_ns(), None);
    }
}
