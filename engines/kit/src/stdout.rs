//! Keeps stdout for the protocol: whatever a library prints goes to stderr. And tells when nobody reads it any more.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::dup2_stdout;

/// The real stdout, moved aside; from here on file descriptor 1 is stderr. Call it once, before any library loads.
pub fn take() -> io::Result<File> {
    // The clone is close-on-exec: a child must not hold the protocol's pipe open after its parent.
    let real = io::stdout().as_fd().try_clone_to_owned()?;
    dup2_stdout(io::stderr())?;
    Ok(File::from(real))
}

/// Returns when the other end of a pipe, a socket or a terminal is closed; never for a file.
pub fn wait_until_closed(stdout: &File) -> io::Result<()> {
    loop {
        // No event is asked for: what is left is an error or the other end's going.
        let mut watched = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        match poll(&mut watched, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}
