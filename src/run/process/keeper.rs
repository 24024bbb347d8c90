//! The keeper: a second process of this program that starts the engines of a run, and ends all of their processes even when
//! SIGKILL ends the orchestrator. It adopts processes whose parent has ended, so no process of an engine leaves its tree.
//!
//! Its stdin is a socket, which the kernel closes when the orchestrator ends. Then the keeper ends its own descendants, and
//! every process with the run's mark or in a cgroup of the run. It removes the run's working folders.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use protocol::environment;

use super::containment::{adopt_orphans, end_run, prepare};
use super::spawn::{ENDS, KeeperHandle, Message, Spawner, receive};

/// The run's handle to the keeper. Dropping it ends all leftovers of the run.
pub struct Keeper {
    child: Child,
    control: Arc<UnixStream>,
    run: String,
}

impl Keeper {
    pub fn start(run: &str) -> Result<Self> {
        prepare()?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the keeper is no engine; it must outlive the process that spawned it"
        )]
        let mut command = std::process::Command::new(program);
        // The keeper has its own group, because Ctrl-C at the terminal must not end it.
        command.arg("keeper").arg(run).process_group(0);
        let (control, stdin) = UnixStream::pair()?;
        let child = command.stdin(OwnedFd::from(stdin)).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.context("cannot start the keeper process")?;
        Ok(Self { child, control: control.into(), run: run.to_string() })
    }

    /// The handle through which launches start their processes.
    pub fn handle(&self) -> KeeperHandle {
        KeeperHandle { pid: self.child.id(), control: Arc::clone(&self.control) }
    }

    /// The variable that marks every process of the run.
    pub fn mark(&self) -> (&'static str, &str) {
        (environment::RUN, &self.run)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // This byte tells the keeper that no process is being started at this moment.
        let _ = self.control.as_ref().write_all(&[ENDS]);
        // Without this, a handle that exists would keep the socket open.
        let _ = self.control.shutdown(std::net::Shutdown::Write);
        // The keeper ends within milliseconds. If waiting fails, it still does its work.
        let _ = self.child.wait();
    }
}

/// The work of the keeper process.
pub fn keep(run: &str) {
    adopt_orphans();
    take_signals_of_children();
    let spawner = Arc::new(Spawner::default());
    let ended_in_order = serve(&spawner);
    // After this, every program that was being started has a process.
    spawner.close();
    end_run(run, if ended_in_order { 1 } else { SEARCHES_AFTER_SUDDEN_END });
}

/// Some service managers ignore SIGCHLD, and so do their children. The system then keeps no status of an ended engine.
#[expect(unsafe_code, reason = "no safe function sets the default action of a signal")]
fn take_signals_of_children() {
    // SAFETY: the default action runs no code of this program.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Starts programs until the orchestrator ends. False if it ended suddenly.
fn serve(spawner: &Arc<Spawner>) -> bool {
    let Ok(control) = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return false;
    };
    let mut ended_in_order = false;
    while let Some(message) = receive(&control) {
        match message {
            Message::Ends => ended_in_order = true,
            Message::Launch(socket, streams) => {
                let spawner = Arc::clone(spawner);
                // Without a thread, the socket closes and this launch fails. The keeper must go on.
                let _ = std::thread::Builder::new().spawn(move || {
                    spawner.serve(socket, streams);
                    spawner.reap_adopted();
                });
            }
        }
    }
    ended_in_order
}

/// After a sudden end of the orchestrator, the keeper ends after this number of empty searches in a row. A process of a
/// set-up that was being started gets its mark only when its program begins, which takes a while on a busy machine.
const SEARCHES_AFTER_SUDDEN_END: u32 = 100;
