//! The keeper: a second process of this program that ends all engines of a run, even when SIGKILL ends the orchestrator. It
//! waits for the end of its stdin, which the kernel closes when the orchestrator ends. It ends every process with the run's
//! mark, or in a cgroup of the run, and removes the run's working folders.

use std::io::{Read, Write};
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use protocol::environment;

use super::containment::{end_run, prepare};

/// The run's handle to the keeper. Dropping it ends all leftovers of the run.
pub struct Keeper {
    child: Child,
    run: String,
}

impl Keeper {
    pub fn start(run: &str) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        prepare()?;
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

    pub fn pid(&self) -> u32 {
        self.child.id()
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
    end_run(run, if received.is_empty() { SEARCHES_AFTER_SUDDEN_END } else { 1 });
}

/// After a sudden end of the orchestrator, the keeper ends after this number of empty searches in a row. A process of a
/// set-up that was being started gets its mark only when its program begins, which takes a while on a busy machine.
const SEARCHES_AFTER_SUDDEN_END: u32 = 100;
