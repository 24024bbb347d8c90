//! The keeper: a second process of this program that outlives it for a moment, so that no engine outlives a run, not
//! even when the orchestrator is killed by SIGKILL and can clean up nothing itself.
//!
//! It waits until its stdin ends, which the kernel sees to however the orchestrator dies, and then ends every process
//! that carries the run's mark in its environment. Children inherit the mark, whatever process group or session they
//! move to, so grandchildren that an engine forgot are found as well.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use protocol::environment;

use super::found::Found;
use super::stream::read_some;
use crate::machine;

/// The run's end of it. Dropping it ends everything that the run left.
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
            reason = "the keeper is no engine; it must outlive what spawned it"
        )]
        let mut command = std::process::Command::new(program);
        // A group of its own: Ctrl-C at the terminal is not meant for it.
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
        // A word before the end: nothing is being started at this moment.
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b".");
        }
        // It ends within milliseconds; if it cannot be waited for, it still does its work.
        let _ = self.child.wait();
    }
}

/// What the keeper process does.
pub fn keep(run: &str) {
    let (mut word, mut is_calm) = ([0; 64], false);
    while read_some(&mut std::io::stdin(), &mut word).is_some() {
        is_calm = true;
    }
    end_all_marked(environment::RUN, run, if is_calm { 1 } else { LOOKS_AFTER_A_SUDDEN_END });
}

/// One that was being started when the run was ended has its mark only once its program has begun: on a busy machine that
/// takes a while.
const LOOKS_AFTER_A_SUDDEN_END: u32 = 100;

/// Ends every process that carries the mark, and whatever they start meanwhile. Gives the number that it found.
pub fn end_marked(name: &str, value: &str) -> usize {
    end_all_marked(name, value, 1)
}

/// Until so many looks in a row have found none.
fn end_all_marked(name: &str, value: &str, enough: u32) -> usize {
    let (mut found, mut empty) = (std::collections::BTreeSet::new(), 0);
    // A process that is being killed is listed until it is reaped; a few looks are enough for any that is not stuck.
    for _ in 0..100 + enough {
        let living: Vec<u32> = machine::processes_marked(name, value);
        empty = if living.is_empty() { empty + 1 } else { 0 };
        if empty >= enough {
            break;
        }
        for pid in living {
            found.insert(pid);
            // It may be gone by now, which is what is wanted; then whoever has its number has no mark.
            if let Some(held) = Found::hold(pid).filter(|_| machine::is_marked(pid, name, value)) {
                held.signal(Signal::SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    found.len()
}
