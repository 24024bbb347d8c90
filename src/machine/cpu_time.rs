//! CPU time of processes, as the kernel counts it.

use super::kernel::read;

/// The CPU time of processes that were known before a request. Reading it takes a few system calls for each of their threads,
/// and no search for processes, so it is done directly before and after the request.
#[derive(Debug, Default)]
pub struct CpuTime {
    pids: Vec<u32>,
    #[cfg(target_os = "linux")]
    clocks: Vec<Clock>,
}

/// The largest process number of any Linux.
#[cfg(target_os = "linux")]
const MAX_PID: i32 = 1 << 22;

/// The time that processes ran on cores, and the time that they waited for a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuUse {
    pub cpu_ns: Option<u64>,
    pub waited_ns: Option<u64>,
}

impl CpuUse {
    /// The difference to an earlier value. A field is `None` if it fell: the waiting time falls when a thread ends.
    pub fn since(self, before: Self) -> Self {
        let difference = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?);
        Self {
            cpu_ns: difference(self.cpu_ns, before.cpu_ns),
            waited_ns: difference(self.waited_ns, before.waited_ns),
        }
    }
}

impl CpuTime {
    /// The clocks of these processes. A process that has ended has none.
    #[cfg(target_os = "linux")]
    pub fn of(pids: &[u32]) -> Self {
        let clock = |&pid: &u32| {
            // A larger number is no process, and the kernel may return the caller's clock for it.
            let pid = i32::try_from(pid).ok().filter(|pid| (1..=MAX_PID).contains(pid))?;
            Clock::of(pid)
        };
        Self { pids: pids.to_vec(), clocks: pids.iter().filter_map(clock).collect() }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &[u32]) -> Self {
        Self::default()
    }

    pub fn read(&self) -> CpuUse {
        CpuUse { cpu_ns: self.cpu_ns(), waited_ns: self.waited_ns() }
    }

    /// The time that the processes' threads waited for a core, without ended threads. `None` if the kernel does not count it.
    fn waited_ns(&self) -> Option<u64> {
        let threads = self.pids.iter().flat_map(|pid| {
            let folders = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            folders
                .map(|folder| read(folder.path().join("schedstat")).and_then(|text| parse_waited_ns(&text)))
        });
        threads.reduce(|sum, ns| sum?.checked_add(ns?)).flatten()
    }

    /// The CPU time of the processes' threads, including ended ones. `None` if one process cannot be read, because the sum would
    /// then be too small.
    #[cfg(target_os = "linux")]
    fn cpu_ns(&self) -> Option<u64> {
        let times = self.clocks.iter().map(|clock| {
            let time = clock.now()?;
            let (seconds, nanoseconds) =
                (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
            seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
        });
        times.reduce(|sum, ns| sum?.checked_add(ns?)).flatten()
    }

    #[cfg(not(target_os = "linux"))]
    fn cpu_ns(&self) -> Option<u64> {
        None
    }
}

/// The kernel's clock of a process's CPU time.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Clock(libc::clockid_t);

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no safe crate has the clock of another process")]
impl Clock {
    fn of(pid: i32) -> Option<Self> {
        let mut clock = 0;
        // SAFETY: the call writes one clock id.
        (unsafe { libc::clock_getcpuclockid(pid, &mut clock) } == 0).then_some(Self(clock))
    }

    /// `None` after the end of the process.
    fn now(&self) -> Option<libc::timespec> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one time.
        (unsafe { libc::clock_gettime(self.0, &mut time) } == 0).then_some(time)
    }
}

/// Parses the waiting time: the second of three values (time on a core, time in its queue, number of turns).
fn parse_waited_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::io::{Read, Write};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn cpu_time_of_a_process_includes_all_its_threads() {
        let time = CpuTime::of(&[std::process::id()]);
        let before_ns = time.cpu_ns().unwrap();
        let work = || {
            for number in 0..20_000_000_u64 {
                std::hint::black_box(number);
            }
        };
        std::thread::spawn(work).join().unwrap();
        // No processor does this much work in a millisecond, so the test finds a wrong unit.
        let worked_ns = time.cpu_ns().unwrap() - before_ns;
        assert!(worked_ns > 1_000_000, "{worked_ns} ns");
    }

    /// The CPU time of each thread of the child. It is long compared to a kernel tick of at most 10 ms.
    const THREAD_NS: u64 = 50_000_000;
    const CHILD_VARIABLE: &str = "ORCHESTRATE_TEST_TWO_BUSY_THREADS";

    fn thread_ns() -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// The child process of the next test. Two threads besides the main one work until each has used its CPU time. Then the
    /// threads wait for the end of stdin.
    #[test]
    fn this_process_keeps_two_threads_busy_if_the_next_test_starts_it() {
        if std::env::var_os(CHILD_VARIABLE).is_none() {
            return;
        }
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for message in ["one ", "other "] {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    while thread_ns() < THREAD_NS {}
                    std::io::stderr().write_all(message.as_bytes()).unwrap();
                    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
                });
            }
        });
    }

    #[test]
    fn cpu_time_adds_up_threads_that_are_busy_at_once() {
        #[expect(clippy::disallowed_methods, reason = "a child with two threads, ended by the test")]
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "machine::cpu_time::tests::this_process_keeps_two_threads_busy_if_the_next_test_starts_it",
        ]);
        command.arg("--nocapture").env(CHILD_VARIABLE, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let time = CpuTime::of(&[child.id()]);
        let mut output = String::new();
        let mut byte = [0];
        while !(output.contains("one ") && output.contains("other ")) {
            child.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
            output.push(byte[0].into());
        }
        let used = time.read();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(used.cpu_ns.unwrap() >= 2 * THREAD_NS, "{used:?}");
    }

    #[test]
    fn missing_processes_have_no_cpu_time() {
        assert_eq!(CpuTime::of(&[]).read(), CpuUse::default());
        // No kernel gives a process so large a number.
        assert_eq!(CpuTime::of(&[u32::MAX, 1 << 23]).read(), CpuUse::default());
    }

    #[test]
    fn waiting_time_is_the_second_number_and_never_negative() {
        assert_eq!(
            (parse_waited_ns("720446 9975 2\n"), parse_waited_ns("720446"), parse_waited_ns("")),
            (Some(9975), None, None)
        );
        let cpu_use = |cpu_ns, waited_ns| CpuUse { cpu_ns: Some(cpu_ns), waited_ns: Some(waited_ns) };
        assert_eq!(cpu_use(9, 7).since(cpu_use(4, 7)), cpu_use(5, 0));
        assert_eq!(cpu_use(9, 3).since(cpu_use(4, 7)), CpuUse { cpu_ns: Some(5), waited_ns: None });
        assert_eq!(cpu_use(9, 3).since(CpuUse::default()), CpuUse::default());
    }
}
