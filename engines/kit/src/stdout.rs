//! Keeps stdout for the protocol: output of libraries goes to stderr. It also reports when stdout has lost its reader.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::dup2_stdout;

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
        // No event is requested: errors and hang-ups are always reported.
        let mut watched = [PollFd::new(stdout, PollFlags::empty())];
        match poll(&mut watched, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}
