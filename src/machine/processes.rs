//! Processes that belong together: by descent, or by a mark in their environment. The processes of a launch are
//! searched often while it is measured, so most searches do not read all processes of the machine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::kernel::read;

/// The process and its current descendants. A process whose parent has ended is not in the tree, but its mark identifies it.
pub fn tree(pid: u32) -> Vec<u32> {
    if lists_children() {
        return descendants(pid, children);
    }
    let parents: Vec<(u32, u32)> =
        all_pids().filter_map(|pid| Some((pid, parent(&read(format!("/proc/{pid}/stat"))?)?))).collect();
    descendants(pid, |ancestor| {
        parents.iter().filter(|(_, parent)| *parent == ancestor).map(|(child, _)| *child).collect()
    })
}

/// All processes of the machine, except this one, whose environment has exactly this entry. Processes of other users cannot be
/// read.
pub fn processes_marked(name: &str, value: &str) -> Vec<u32> {
    let own_pid = std::process::id();
    all_pids().filter(|&pid| pid != own_pid && is_marked(pid, name, value)).collect()
}

pub fn is_marked(pid: u32, name: &str, value: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| has_entry(&environment, name, value))
}

/// Whether the kernel lists the children of a thread. Then only the processes of a tree are read to find it.
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

fn all_pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent's number in the text of `/proc/PID/stat`. It follows the command's name in parentheses, which may contain spaces
/// and parentheses.
fn parent(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a signal or a debugger has stopped the process.
pub fn is_stopped(pid: u32) -> bool {
    read(format!("/proc/{pid}/stat")).is_some_and(|stat| matches!(state(&stat), Some("T" | "t")))
}

/// The letter of the state in the text of `/proc/PID/stat`.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next()
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
/// The longest time between two searches, even after an expensive one.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Processes that carry a mark in their environment, and their descendants.
#[derive(Debug)]
pub struct ProcessFamily {
    name: &'static str,
    value: String,
    /// The marked processes in the last search of the machine. Most descend from the launch's first process; one that left
    /// the tree is known only by its mark.
    marked: Vec<u32>,
    /// The end and the duration of the last search.
    last_search: Option<(Instant, Duration)>,
}

impl ProcessFamily {
    pub fn marked(name: &'static str, value: String) -> Self {
        Self { name, value, marked: Vec::new(), last_search: None }
    }

    /// The process `first`, its descendants, and every marked process.
    pub fn processes(&mut self, first: u32) -> Vec<u32> {
        let (name, value) = (self.name, self.value.clone());
        self.processes_with(first, || processes_marked(name, &value))
    }

    fn processes_with(&mut self, first: u32, search: impl FnOnce() -> Vec<u32>) -> Vec<u32> {
        let started = Instant::now();
        let is_too_soon = |(ended, cost): (Instant, Duration)| {
            started.saturating_duration_since(ended) < MAX_PAUSE.min(cost * MIN_PAUSE_FACTOR)
        };
        if self.last_search.is_some_and(is_too_soon) {
            // The number of an ended process may belong to a new process.
            self.marked.retain(|&pid| is_marked(pid, self.name, &self.value));
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
        assert_eq!(state("41 (a) b (c)) T 17 41 41 0 -1"), Some("T"));
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
    fn a_mark_matches_only_a_complete_environment_entry() {
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
            assert_eq!(processes_marked(NAME, &value), [child.id()]);
            assert_eq!(processes_marked(NAME, &value[..value.len() - 1]), Vec::<u32>::new());
        }

        #[test]
        fn the_machine_is_not_searched_again_soon_after_an_expensive_search() {
            let value = format!("expensive-{}", std::process::id());
            let (first, other) = (MarkedShell::start(&value), MarkedShell::start(&value));
            let mut family = ProcessFamily::marked(NAME, value);
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
            let mut family = ProcessFamily::marked(NAME, "none".into());
            family.processes_with(std::process::id(), Vec::new);
            family.make_search_expensive().unwrap();
            let child = MarkedShell::start("another");
            assert!(family.processes(std::process::id()).contains(&child.id()));
        }
    }
}
