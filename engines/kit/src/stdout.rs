//! Keeps stdout for the protocol: whatever a library prints goes to stderr.

use std::fs::File;
use std::io;

use rustix::stdio;

/// The real stdout, moved aside; from here on file descriptor 1 is stderr. Call it once, before any library loads.
pub fn take() -> io::Result<File> {
    // Close-on-exec: a child must not hold the protocol's pipe open after its parent.
    let real = rustix::io::fcntl_dupfd_cloexec(stdio::stdout(), 3)?;
    stdio::dup2_stdout(stdio::stderr())?;
    Ok(File::from(real))
}
