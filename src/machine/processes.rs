//! Processes that belong together: by descent, or by a mark that children inherit. The processes of a launch are
//! searched often while it is measured, so most searches do not read all processes of the machine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::kernel::read;
use crate::text;

/// The process and its current descendants. A process whose parent has ended leaves its launch's tree, but keeps its mark.
pub fn tree(pid: u32) -> Vec<u32> {
    if lists_children() {
        return descendants(pid, children);
    }
    let parents: Vec<(u32, u32)> =
        processes().filter_map(|pid| Some((pid, parent(&read(format!("/proc/{pid}/stat"))?)?))).collect();
    descendants(pid, |ancestor| {
        parents.iter().filter(|(_, parent)| *parent == ancestor).map(|(child, _)| *child).collect()
    })
}

/// The living descendants of a process.
pub fn descendants_of(pid: u32) -> impl Iterator<Item = u32> {
    tree(pid).into_iter().skip(1).filter(|&pid| is_living(pid))
}

/// The process that starts the threads of the kernel.
const KTHREADD: u32 = 2;

/// Whether a process is a thread of the kernel: a child of `kthreadd`. A container sees no such threads.
pub fn is_kernel_thread(pid: u32) -> bool {
    let is_child = read(format!("/proc/{pid}/stat")).and_then(|stat| parent(&stat)) == Some(KTHREADD);
    is_child && sees_whole_machine()
}

/// The most characters of a command line in a message.
const MAX_COMMAND_CHARS: usize = 60;

/// The beginning of a process's command line, in one safe line, without the folders of the program and of absolute paths. For a
/// process without a command line, its name.
pub fn command_line(pid: u32) -> String {
    let words = read(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    let text = match words.trim() {
        "" => read(format!("/proc/{pid}/comm")).unwrap_or_default(),
        words => words.to_string(),
    };
    let line = text::line(text.trim());
    let mut words = line.split(' ');
    // The name of a program or a file says more than the beginning of its path.
    let program = words.next().map(|program| name_of_path(program).unwrap_or(program).to_string());
    let arguments = words.map(|word| match name_of_path(word) {
        Some(name) if word.starts_with('/') => format!(".../{name}"),
        _ => word.to_string(),
    });
    let line = program.into_iter().chain(arguments).collect::<Vec<_>>().join(" ");
    let start: String = line.chars().take(MAX_COMMAND_CHARS).collect();
    if start.len() < line.len() { format!("{start}...") } else { start }
}

fn name_of_path(word: &str) -> Option<&str> {
    word.rsplit_once('/').map(|(_, name)| name).filter(|name| !name.is_empty())
}

/// The mark of all processes of a run, or of one launch in it. Children inherit it twice: as an entry of their environment, and
/// as their limit of file locks, which no kernel since 2004 enforces. A process with an emptied environment keeps the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The name and the value of the environment's entry.
    name: &'static str,
    value: String,
    /// The bits of the limit where `mask` has ones: the upper half identifies the run, the lower half the launch.
    limit: u64,
    mask: u64,
}

impl Mark {
    pub fn of_run(name: &'static str, run: &str) -> Self {
        Self { name, value: run.into(), limit: identifier(run) << 32, mask: u64::MAX << 32 }
    }

    pub fn of_launch(name: &'static str, run: &str, launch: &str) -> Self {
        Self { name, value: launch.into(), limit: identifier(run) << 32 | identifier(launch), mask: u64::MAX }
    }

    /// All living processes of the machine, except this one, that have the mark. The environment of other users' processes
    /// cannot be read, but their limits can.
    pub fn processes(&self) -> Vec<u32> {
        let own_pid = std::process::id();
        processes().filter(|&pid| pid != own_pid && self.is_on(pid)).collect()
    }

    /// Whether a living process has the mark.
    pub fn is_on(&self, pid: u32) -> bool {
        let is_in_environment = || {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| has_entry(&environment, self.name, &self.value))
        };
        // The environment of an ended process is empty, its limits are not.
        self.is_in_limits(pid) && is_living(pid) || is_in_environment()
    }

    fn is_in_limits(&self, pid: u32) -> bool {
        let limit = read(format!("/proc/{pid}/limits")).and_then(|limits| file_locks_limit(&limits));
        limit.is_some_and(|limit| limit & self.mask == self.limit)
    }

    /// The soft limit of file locks that marks a process.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Removes the ended children of this process from the process table, except those for which something else waits.
pub fn reap_ended_children(is_waited_for: impl Fn(u32) -> bool) {
    let ended =
        children(std::process::id()).into_iter().filter(|&pid| !is_waited_for(pid) && !is_living(pid));
    for pid in ended {
        let _ = waitpid(Pid::from_raw(pid as i32), WaitOptions::NOHANG);
    }
}

/// A number between 1 and 2^31 for a text, so that no limit is zero or means `unlimited`.
fn identifier(text: &str) -> u64 {
    u64::from_str_radix(&paths::digest(text.as_bytes()), 16).unwrap_or_default() >> 33 | 1
}

/// The soft limit of file locks in the text of `/proc/PID/limits`. `None` if there is none.
fn file_locks_limit(limits: &str) -> Option<u64> {
    let values = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    values.split_ascii_whitespace().next()?.parse().ok()
}

/// False for a process that has ended, even if its parent has not waited for it yet.
fn is_living(pid: u32) -> bool {
    let stat = read(format!("/proc/{pid}/stat"));
    stat.and_then(|stat| state(&stat)).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Whether the kernel lists the children of a thread. Then a tree is found without a search of all processes.
fn lists_children() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| std::path::Path::new("/proc/thread-self/children").exists())
}

/// The children of all threads of a process, because a child belongs to the thread that started it.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| read(thread.path().join("children")));
    lists.flat_map(|list| numbers(&list)).collect()
}

fn numbers(list: &str) -> Vec<u32> {
    list.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// All processes of the machine.
pub fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The fields of `/proc/PID/stat` after the command's name in parentheses, which may contain spaces and parentheses.
fn fields_after_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

fn state(stat: &str) -> Option<char> {
    fields_after_name(stat)?.next()?.chars().next()
}

fn parent(stat: &str) -> Option<u32> {
    fields_after_name(stat)?.nth(1)?.parse().ok()
}

/// The start of a process, in ticks since the start of the machine. Only number and start together identify a process, because
/// the kernel reuses numbers.
pub fn start_ticks(pid: u32) -> Option<u64> {
    fields_after_name(&read(format!("/proc/{pid}/stat"))?)?.nth(19)?.parse().ok()
}

/// The CPU time of the ended children of a process for which it has waited.
pub fn cpu_time_of_ended_children(pid: u32) -> Option<Duration> {
    let stat = read(format!("/proc/{pid}/stat"))?;
    let ticks: Vec<u64> =
        fields_after_name(&stat)?.skip(13).take(2).filter_map(|it| it.parse().ok()).collect();
    Some(time_of_ticks(ticks.iter().sum()))
}

/// The time of a number of ticks of the kernel's counters.
pub fn time_of_ticks(ticks: u64) -> Duration {
    Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100).max(1)
}

/// Whether this process sees the processes of the whole machine, as the kernel's counters do. A container does not.
pub fn sees_whole_machine() -> bool {
    read(format!("/proc/{KTHREADD}/comm")).is_some_and(|name| name.trim() == "kthreadd")
}

/// Whether a signal or a debugger has stopped the process.
pub fn is_stopped(pid: u32) -> bool {
    read(format!("/proc/{pid}/stat")).is_some_and(|stat| matches!(state(&stat), Some('T' | 't')))
}

/// A process and its descendants. The first is `pid` itself.
fn descendants(pid: u32, children: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(&ancestor) = pids.get(next) {
        next += 1;
        for child in children(ancestor) {
            if !pids.contains(&child) {
                pids.push(child);
            }
        }
    }
    pids
}

fn has_entry(environment: &[u8], name: &str, value: &str) -> bool {
    let matches = |entry: &[u8]| {
        entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) == Some(value.as_bytes())
    };
    environment.split(|&byte| byte == 0).any(matches)
}

/// The time between two searches of all processes is at least this many times the duration of a search.
const MIN_PAUSE_FACTOR: u32 = 100;
/// The longest pause that an expensive search causes.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Processes that carry a mark, and their descendants.
#[derive(Debug)]
pub struct ProcessFamily {
    mark: Mark,
    /// The marked processes in the last search of the machine. Most descend from the launch's first process; one that left
    /// the tree is known only by its mark.
    marked: Vec<u32>,
    /// The end and the duration of the last search.
    last_search: Option<(Instant, Duration)>,
}

impl ProcessFamily {
    pub fn marked(mark: Mark) -> Self {
        Self { mark, marked: Vec::new(), last_search: None }
    }

    /// The process `first`, the marked processes of the last search, and their descendants.
    pub fn processes(&mut self, first: u32) -> Vec<u32> {
        let mark = self.mark.clone();
        self.processes_with(first, || mark.processes())
    }

    fn processes_with(&mut self, first: u32, search: impl FnOnce() -> Vec<u32>) -> Vec<u32> {
        let started = Instant::now();
        let is_too_soon = |(ended, cost): (Instant, Duration)| {
            started.saturating_duration_since(ended) < MAX_PAUSE.min(cost * MIN_PAUSE_FACTOR)
        };
        if self.last_search.is_some_and(is_too_soon) {
            // The number of an ended process may belong to a new process.
            self.marked.retain(|&pid| self.mark.is_on(pid));
        } else {
            self.marked = search();
            let ended = Instant::now();
            self.last_search = Some((ended, ended.saturating_duration_since(started)));
        }
        let mut all = tree(first);
        for &pid in &self.marked {
            if !all.contains(&pid) {
                all.extend(tree(pid));
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Makes the last search count as expensive, and returns its end.
    #[cfg(test)]
    pub fn make_search_expensive(&mut self) -> Option<Instant> {
        let (ended, cost) = self.last_search.as_mut()?;
        *cost = Duration::from_secs(3600);
        Some(*ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_past_a_name_with_parentheses_and_spaces() {
        assert_eq!(parent("41 (a) b (c)) S 17 41 41 0 -1"), Some(17));
        assert_eq!(parent("41 (sh) S 1 41"), Some(1));
        assert_eq!(parent("41 (sh)"), None);
        assert_eq!(parent(""), None);
        assert_eq!(state("41 (a) b (c)) T 17 41 41 0 -1"), Some('T'));
    }

    #[test]
    fn a_tree_has_all_descendants_and_no_others_even_in_a_circle() {
        let parents = [(2, 1), (3, 2), (4, 2), (5, 1), (6, 3), (7, 8), (8, 7)];
        let children = |wanted| -> Vec<u32> {
            parents.iter().filter(|(_, parent)| *parent == wanted).map(|(child, _)| *child).collect()
        };
        assert_eq!(descendants(2, children), [2, 3, 4, 6]);
        assert_eq!(descendants(7, children), [7, 8]);
        assert_eq!(descendants(9, children), [9]);
    }

    #[test]
    fn children_are_parsed_from_numbers_between_spaces() {
        assert_eq!(numbers("12 34 \n"), [12, 34]);
        assert_eq!(numbers(""), [0_u32; 0]);
    }

    #[test]
    fn the_limit_of_file_locks_is_read_or_absent() {
        let limits =
            "Limit   Soft Limit  Hard Limit  Units\nMax file locks            7   unlimited   locks     \n";
        assert_eq!(file_locks_limit(limits), Some(7));
        assert_eq!(file_locks_limit("Max file locks   unlimited   unlimited   locks\n"), None);
        assert_eq!(file_locks_limit(""), None);
        let limit = |text: &str| Mark::of_launch("X", text, text).limit;
        assert!(["", "a", "run/0"].iter().all(|text| (1..u64::MAX >> 1).contains(&limit(text))));
    }

    #[test]
    fn a_process_has_a_mark_only_if_a_whole_environment_entry_matches() {
        let environment = b"A=1\0RUN=abc\0B=RUN=abcd\0";
        assert!(has_entry(environment, "RUN", "abc"));
        assert!(!has_entry(environment, "RUN", "ab"));
        assert!(!has_entry(environment, "RUN", "abcd"));
        assert!(!has_entry(b"", "RUN", "abc"));
    }

    #[cfg(target_os = "linux")]
    mod on_linux {
        use std::io::Read;
        use std::process::{Child, Command, Stdio};

        use super::*;

        const NAME: &str = "ORCHESTRATE_TEST_MARK";

        /// A shell that waits for input, with the mark.
        struct MarkedShell(Child);

        impl MarkedShell {
            #[expect(clippy::disallowed_methods, reason = "a child to be found, ended by the test")]
            fn start(value: &str) -> Self {
                let mut command = Command::new("sh");
                // The output of `echo` shows that the shell runs with its own environment.
                command.args(["-c", "echo; read forever"]).env(NAME, value);
                let mut child = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
                child.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
                child
            }

            fn id(&self) -> u32 {
                self.0.id()
            }
        }

        impl Drop for MarkedShell {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }

        #[test]
        fn a_child_is_found_by_descent_and_by_its_mark() {
            let value = format!("test-{}", std::process::id());
            let child = MarkedShell::start(&value);
            assert!(tree(std::process::id()).contains(&child.id()));
            assert_eq!(Mark::of_run(NAME, &value).processes(), [child.id()]);
            assert_eq!(Mark::of_run(NAME, &value[..value.len() - 1]).processes(), Vec::<u32>::new());
        }

        #[test]
        fn the_machine_is_not_searched_again_soon_after_an_expensive_search() {
            let value = format!("expensive-{}", std::process::id());
            let (first, other) = (MarkedShell::start(&value), MarkedShell::start(&value));
            let mut family = ProcessFamily::marked(Mark::of_run(NAME, &value));
            let pids = family.processes(first.id());
            assert!(pids.contains(&first.id()) && pids.contains(&other.id()), "{pids:?}");
            family.make_search_expensive().unwrap();
            // A process that was found outside the tree stays known while it carries the mark.
            let refuse_search = || -> Vec<u32> { panic!("the whole machine was searched") };
            assert_eq!(family.processes_with(first.id(), refuse_search), pids);
            drop(other);
            assert_eq!(family.processes_with(first.id(), refuse_search), [first.id()]);
            family.last_search = Some((Instant::now(), Duration::ZERO));
            assert_eq!(family.processes_with(first.id(), || vec![1, first.id()]).first(), Some(&1));
        }

        #[test]
        fn a_child_started_after_the_search_is_found_by_descent() {
            let mut family = ProcessFamily::marked(Mark::of_run(NAME, "none"));
            family.processes_with(std::process::id(), Vec::new);
            family.make_search_expensive().unwrap();
            let child = MarkedShell::start("another");
            assert!(family.processes(std::process::id()).contains(&child.id()));
        }
    }
}
