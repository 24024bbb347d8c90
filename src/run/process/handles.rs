//! Signals to exactly the processes that are meant, although the kernel reuses the number of a process that has ended.

use std::net::Shutdown;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

#[cfg(target_os = "linux")]
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::watch;

use super::spawn::Connection;

/// The process that a launch starts, which leads its own process group. An ended process keeps its number until its parent
/// reaps it, so the leader stays unreaped until its group has ended. After that no signal is sent to the group.
#[derive(Debug)]
pub struct Leader {
    pub pid: u32,
    state: watch::Receiver<State>,
    /// The leader is reaped once this is shut down.
    connection: Option<UnixStream>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// The leader has ended, and its number is still reserved.
    Ended(ExitStatus),
    /// The exit status is not available: the keeper has ended, or was started with SIGCHLD ignored.
    Lost,
}

impl Leader {
    /// Watches a process that leads its own process group.
    pub fn new(pid: u32, mut connection: Connection) -> std::io::Result<Self> {
        let (sender, state) = watch::channel(State::Runs);
        let handle = connection.handle()?;
        std::thread::spawn(move || {
            let status = connection.status().map(ExitStatus::from_raw);
            // The receiver may be gone.
            let _ = sender.send(status.map_or(State::Lost, State::Ended));
        });
        Ok(Self { pid, state, connection: Some(handle) })
    }

    /// Waits for the end of the leader and gives its exit status. The leader is not reaped.
    pub async fn ended(&mut self) -> Option<ExitStatus> {
        match *self.state.wait_for(|state| *state != State::Runs).await.ok()? {
            State::Ended(status) => Some(status),
            State::Runs | State::Lost => None,
        }
    }

    /// Signals the leader's group, unless the number may belong to another process.
    pub fn signal_group(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32).filter(|_| self.keeps_its_number()) {
            // The group may be empty already.
            let _ = kill_process_group(pid, signal);
        }
    }

    pub fn keeps_its_number(&self) -> bool {
        self.pid > 1 && self.connection.is_some() && *self.state.borrow() != State::Lost
    }

    pub fn is_lost(&self) -> bool {
        *self.state.borrow() == State::Lost
    }

    /// Ends the group. After this the group gets no signal, so the leader can be reaped.
    pub fn end_group(&mut self) {
        self.signal_group(Signal::KILL);
        if let Some(connection) = self.connection.take() {
            let _ = connection.shutdown(Shutdown::Write);
        }
    }
}

/// The group ends with the launch, even after a failure, Ctrl-C or a panic.
impl Drop for Leader {
    fn drop(&mut self) {
        self.end_group();
    }
}

/// A process that a search of the machine found. It need not be a child of this program, so its number may be reused as soon as
/// it has ended. A signal through its handle reaches this process or none.
#[derive(Debug)]
pub struct ProcessHandle {
    pub pid: u32,
    /// `None` where the kernel gives no handles (Linux before 5.3). Then only the number is known.
    #[cfg(target_os = "linux")]
    handle: Option<OwnedFd>,
}

impl ProcessHandle {
    /// Opens the process that has the number now, or `None` if there is none. After a search the number may have been reused,
    /// so the caller searches again before it sends a signal.
    pub fn open(pid: u32) -> Option<Self> {
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{PidfdFlags, pidfd_open};
            match pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()) {
                Ok(handle) => Some(Self { pid, handle: Some(handle) }),
                Err(Errno::SRCH) => None,
                Err(_) => Some(Self { pid, handle: None }),
            }
        }
        #[cfg(not(target_os = "linux"))]
        Some(Self { pid })
    }

    /// Sends a signal. It is no error if the process has ended.
    pub fn signal(&self, signal: Signal) {
        #[cfg(target_os = "linux")]
        if let Some(handle) = &self.handle {
            let _ = rustix::process::pidfd_send_signal(handle, signal);
            return;
        }
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            let _ = kill_process(pid, signal);
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a child to be signalled, ended by the test")]
    #[test]
    fn a_signal_reaches_only_the_process_that_was_opened() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let handle = ProcessHandle::open(child.id()).unwrap();
        handle.signal(Signal::KILL);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        // The process is reaped: its number is free, and the handle refers to none.
        handle.signal(Signal::KILL);
        assert!(ProcessHandle::open(child.id()).is_none());
        assert!(ProcessHandle::open(0).is_none());
    }
}
