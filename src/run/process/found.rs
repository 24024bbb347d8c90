//! A process that a search of the machine found. It is no child of this one, so its number may be reused as soon as it has ended.
//! A signal through its handle reaches this process or none.

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, kill_process};

#[derive(Debug)]
pub struct ProcessHandle {
    pub pid: u32,
    /// `None` where the kernel gives no handles (Linux before 5.3). Then only the number is known.
    #[cfg(target_os = "linux")]
    handle: Option<OwnedFd>,
}

impl ProcessHandle {
    /// Opens the process that has the number now. The caller must search again to know that it is the process found before.
    /// `None` if no process has the number.
    pub fn open(pid: u32) -> Option<Self> {
        #[cfg(target_os = "linux")]
        {
            use rustix::io::Errno;
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

    /// The process may have ended meanwhile, which is no error.
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
        use std::os::unix::process::ExitStatusExt;
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let held = ProcessHandle::open(child.id()).unwrap();
        held.signal(Signal::KILL);
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        // The process is reaped: its number is free, and the handle refers to none.
        held.signal(Signal::KILL);
        assert!(ProcessHandle::open(child.id()).is_none());
        assert!(ProcessHandle::open(0).is_none());
    }
}
