//! CPU time of processes, as the kernel counts it.

use super::kernel::read;

/// The CPU time of processes that were known before a request. Reading it takes a few system calls for each process and no
/// search, so it can be done right next to the request.
#[derive(Debug, Default)]
pub struct CpuTime {
    pids: Vec<u32>,
    #[cfg(target_os = "linux")]
    clocks: Vec<Clock>,
}

/// The largest process number of any Linux.
#[cfg(target_os = "linux")]
const LARGEST_PID: i32 = 1 << 22;

/// The time that processes had on cores, and the time that they waited for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Worked {
    pub cpu_ns: Option<u64>,
    pub waited_ns: Option<u64>,
}

impl Worked {
    /// The difference to an earlier value. `None` if a count fell, because a thread ended with its time.
    pub fn since(self, before: Self) -> Self {
        let passed = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
        Self {
            cpu_ns: passed(self.cpu_ns, before.cpu_ns),
            waited_ns: passed(self.waited_ns, before.waited_ns),
        }
    }
}

impl CpuTime {
    /// The clocks of these processes. A process that has ended has none.
    #[cfg(target_os = "linux")]
    pub fn of(pids: &[u32]) -> Self {
        let clock = |&pid: &u32| {
            // A larger number is no process, and the kernel takes some for the clock of the caller.
            let pid = i32::try_from(pid).ok().filter(|pid| (1..=LARGEST_PID).contains(pid))?;
            Clock::of(pid)
        };
        Self { pids: pids.to_vec(), clocks: pids.iter().filter_map(clock).collect() }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &[u32]) -> Self {
        Self::default()
    }

    pub fn so_far(&self) -> Worked {
        Worked { cpu_ns: self.so_far_ns(), waited_ns: self.waited_ns() }
    }

    /// The time that their living threads could have run but had no core, as far as the kernel counts it.
    fn waited_ns(&self) -> Option<u64> {
        let threads = self.pids.iter().flat_map(|pid| {
            let folders = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            folders.map(|folder| read(folder.path().join("schedstat")).and_then(|text| waited(&text)))
        });
        threads.reduce(|sum, ns| sum?.checked_add(ns?)).flatten()
    }

    /// The time of all their threads, including ended ones. `None` if one process cannot be read: a sum over fewer would look
    /// like less work.
    #[cfg(target_os = "linux")]
    fn so_far_ns(&self) -> Option<u64> {
        let each = self.clocks.iter().map(|clock| {
            let time = clock.now()?;
            let (seconds, rest) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
            seconds.checked_mul(1_000_000_000)?.checked_add(rest)
        });
        each.reduce(|sum, ns| sum?.checked_add(ns?)).flatten()
    }

    #[cfg(not(target_os = "linux"))]
    fn so_far_ns(&self) -> Option<u64> {
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

/// The second of three values: time on a core, time in its queue, turns.
fn waited(schedstat: &str) -> Option<u64> {
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
        let own = CpuTime::of(&[std::process::id()]);
        let before_ns = own.so_far_ns().unwrap();
        let work = || {
            for number in 0..20_000_000_u64 {
                std::hint::black_box(number);
            }
        };
        std::thread::spawn(work).join().unwrap();
        // No processor does this much in a millisecond, so a wrong unit shows.
        let worked_ns = own.so_far_ns().unwrap() - before_ns;
        assert!(worked_ns > 1_000_000, "{worked_ns} ns");
    }

    /// The time of each thread of the child, long compared to a kernel tick of at most 10 ms.
    const EACH_NS: u64 = 50_000_000;
    const CHILD: &str = "ORCHESTRATE_TEST_TWO_BUSY_THREADS";

    fn thread_ns() -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// The child process of the next test. Two threads besides the main one work until each has used its time. Both live until
    /// the other has too, and the process waits for the end of its stdin.
    #[test]
    fn two_threads_are_busy_if_the_next_test_requests_it() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let both = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for message in ["one ", "other "] {
                let both = &both;
                scope.spawn(move || {
                    both.wait();
                    while thread_ns() < EACH_NS {}
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
        command
            .args(["--exact", "machine::cpu_time::tests::two_threads_are_busy_if_the_next_test_requests_it"]);
        command.arg("--nocapture").env(CHILD, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let time = CpuTime::of(&[child.id()]);
        let mut output = String::new();
        let mut byte = [0];
        while !(output.contains("one ") && output.contains("other ")) {
            child.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
            output.push(byte[0].into());
        }
        let worked = time.so_far();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(worked.cpu_ns.unwrap() >= 2 * EACH_NS, "{worked:?}");
    }

    #[test]
    fn missing_processes_have_no_cpu_time() {
        assert_eq!(CpuTime::of(&[]).so_far(), Worked::default());
        // No kernel gives a process so large a number.
        assert_eq!(CpuTime::of(&[u32::MAX, 1 << 23]).so_far(), Worked::default());
    }

    #[test]
    fn waiting_time_is_the_second_number_and_never_negative() {
        assert_eq!((waited("720446 9975 2\n"), waited("720446"), waited("")), (Some(9975), None, None));
        let at = |cpu_ns, waited_ns| Worked { cpu_ns: Some(cpu_ns), waited_ns: Some(waited_ns) };
        assert_eq!(at(9, 7).since(at(4, 7)), at(5, 0));
        assert_eq!(at(9, 3).since(at(4, 7)), Worked { cpu_ns: Some(5), waited_ns: None });
        assert_eq!(at(9, 3).since(Worked::default()), Worked::default());
    }
}
