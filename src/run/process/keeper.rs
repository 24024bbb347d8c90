//! The keeper: a second process of this program that ends all engines of a run, even when SIGKILL ends the orchestrator. It
//! waits for the end of its stdin, which the kernel closes when the orchestrator ends. It ends every process with the run's
//! mark in its environment, which children inherit in any process group or session.

use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::environment;
use rustix::process::Signal;

use super::handles::ProcessHandle;
use crate::machine;

/// The run's handle to the keeper. Dropping it ends all leftovers of the run.
pub struct Keeper {
    child: Child,
    run: String,
}

impl Keeper {
    pub fn start(run: &str) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the keeper is no engine; it must outlive the process that spawned it"
        )]
        let mut command = std::process::Command::new(program);
        // The keeper has its own group, because Ctrl-C at the terminal must not end it.
        command.arg("keeper").arg(run).process_group(0);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self { child: child.context("cannot start the keeper process")?, run: run.to_string() })
    }

    /// The variable that marks every process of the run.
    pub fn mark(&self) -> (&'static str, &str) {
        (environment::RUN, &self.run)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // This byte tells the keeper that no process is being started at this moment.
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b".");
        }
        // The keeper ends within milliseconds. If waiting fails, it still does its work.
        let _ = self.child.wait();
    }
}

/// The work of the keeper process.
pub fn keep(run: &str) {
    let mut received = Vec::new();
    // An error ends the wait too. Bytes that arrived before it still count.
    let _ = std::io::stdin().read_to_end(&mut received);
    let empty_searches = if received.is_empty() { SEARCHES_AFTER_SUDDEN_END } else { 1 };
    end_all_marked(environment::RUN, run, empty_searches);
}

/// After a sudden end of the orchestrator, the keeper ends after this number of empty searches in a row. A process that was being
/// started gets its mark only when its program begins, which takes a while on a busy machine.
const SEARCHES_AFTER_SUDDEN_END: u32 = 100;

/// Ends every process with the mark, and the processes that these start meanwhile. Gives the number of processes found.
pub fn end_marked(name: &str, value: &str) -> usize {
    end_all_marked(name, value, 1)
}

/// Ends marked processes until `empty_searches` searches in a row find no process.
fn end_all_marked(name: &str, value: &str, empty_searches: u32) -> usize {
    let (mut found, mut empty) = (std::collections::BTreeSet::new(), 0);
    // A killed process is listed until it is reaped. A few searches are enough, unless a process is stuck in the kernel.
    for _ in 0..100 + empty_searches {
        let living: Vec<u32> = machine::processes_marked(name, value);
        empty = if living.is_empty() { empty + 1 } else { 0 };
        if empty >= empty_searches {
            break;
        }
        for pid in living {
            found.insert(pid);
            // The process may have ended by now. A process that reuses its number has no mark.
            if let Some(handle) = ProcessHandle::open(pid).filter(|_| machine::is_marked(pid, name, value)) {
                handle.signal(Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    found.len()
}
