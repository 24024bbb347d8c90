//! The processes of one launch, searched again and again while it is measured. The cost of a search depends on those processes,
//! not on all processes of the machine.

use std::time::{Duration, Instant};

use super::processes::{is_marked, processes_marked, tree};

/// Searches of all processes may take one part in this many of the time.
const SHARE_OF_TIME: u32 = 100;
/// The longest time between two searches, even after an expensive one.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Processes that carry a mark in their environment, and their descendants.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    value: String,
    /// The marked processes in the last search of the machine. Most descend from the first one; a process that left the tree is
    /// known only by its mark.
    marked: Vec<u32>,
    /// The end and the duration of that search.
    searched: Option<(Instant, Duration)>,
}

impl Family {
    pub fn marked(name: &'static str, value: String) -> Self {
        Self { name, value, marked: Vec::new(), searched: None }
    }

    /// The descendants of `first`, itself included, and every marked process.
    pub fn processes(&mut self, first: u32) -> Vec<u32> {
        let (name, value) = (self.name, self.value.clone());
        self.processes_with(first, || processes_marked(name, &value))
    }

    fn processes_with(&mut self, first: u32, search: impl FnOnce() -> Vec<u32>) -> Vec<u32> {
        let begun = Instant::now();
        let is_expensive = |(ended, cost): (Instant, Duration)| {
            begun.saturating_duration_since(ended) < LONGEST_PAUSE.min(cost * SHARE_OF_TIME)
        };
        if self.searched.is_some_and(is_expensive) {
            // The number of an ended process may belong to another one.
            self.marked.retain(|&pid| is_marked(pid, self.name, &self.value));
        } else {
            self.marked = search();
            let ended = Instant::now();
            self.searched = Some((ended, ended.saturating_duration_since(begun)));
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

    /// The end of the last search, which counts as an expensive one from now on.
    #[cfg(test)]
    pub fn make_search_expensive(&mut self) -> Option<Instant> {
        let (ended, cost) = self.searched.as_mut()?;
        *cost = Duration::from_secs(3600);
        Some(*ended)
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const NAME: &str = "ORCHESTRATE_TEST_FAMILY";

    /// A shell that waits for ever, with the mark.
    struct Marked(Child);

    impl Marked {
        #[expect(clippy::disallowed_methods, reason = "a child to be found, ended by the test")]
        fn start(value: &str) -> Self {
            let mut command = Command::new("sh");
            // `echo` says that the shell runs and so carries its own environment.
            command.args(["-c", "echo; read forever"]).env(NAME, value);
            let mut child = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
            child.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            child
        }

        fn end(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    impl Drop for Marked {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn the_machine_is_not_searched_again_soon_after_an_expensive_search() {
        let value = format!("dear-{}", std::process::id());
        let (mut first, mut other) = (Marked::start(&value), Marked::start(&value));
        let mut family = Family::marked(NAME, value);
        let both = family.processes(first.0.id());
        assert!(both.contains(&first.0.id()) && both.contains(&other.0.id()), "{both:?}");
        family.make_search_expensive().unwrap();
        // A process that was found outside the tree stays known while it carries the mark.
        let never = || -> Vec<u32> { panic!("the whole machine was searched") };
        assert_eq!(family.processes_with(first.0.id(), never), both);
        other.end();
        assert_eq!(family.processes_with(first.0.id(), never), [first.0.id()]);
        family.searched = Some((Instant::now(), Duration::ZERO));
        assert_eq!(family.processes_with(first.0.id(), || vec![1, first.0.id()]).first(), Some(&1));
        first.end();
    }

    #[test]
    fn a_child_started_after_the_search_is_found_by_descent() {
        let mut family = Family::marked(NAME, "nobody".into());
        family.processes_with(std::process::id(), Vec::new);
        family.make_search_expensive().unwrap();
        let child = Marked::start("somebody");
        assert!(family.processes(std::process::id()).contains(&child.0.id()));
    }
}
