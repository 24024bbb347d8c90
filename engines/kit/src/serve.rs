//! The `main` of an engine: it reserves stdout for the protocol, reads stdin on one thread, works on the main thread, and
//! ends when an answer would have no reader.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::dup2_stdout;

use crate::model::Environment;
use crate::{Engine, Inbox, Output, Server, child_server};

/// Serves requests from stdin on stdout until `shutdown` or the end of stdin. The complete `main` of an engine.
pub fn serve<E: Engine>(engine: E) -> ExitCode {
    exit_code(try_serve(engine))
}

fn try_serve<E: Engine>(engine: E) -> io::Result<()> {
    let (stdout, work) = (redirect_stdout()?, Work::default());
    end_if_stdout_closes(stdout.try_clone()?, work.clone())?;
    let mut server = Server::new(engine, read_stdin()?, Output::new(stdout), Environment::read());
    server.work = work;
    server.run()
}

/// Starts the thread that reads stdin into an inbox. No code joins this thread, because a read may still block it at the end
/// of the work. The thread ends with the process.
pub(crate) fn read_stdin() -> io::Result<Arc<Inbox>> {
    print_usage();
    let inbox = Arc::new(Inbox::default());
    let reader_inbox = inbox.clone();
    thread::Builder::new().name("stdin".into()).spawn(move || reader_inbox.read_from(io::stdin().lock()))?;
    Ok(inbox)
}

/// Ends this process if the reader closes stdout during a request, because no reader is left for the answer. Between
/// requests the process continues: a reader that has all its answers may close the pipe.
#[expect(
    clippy::disallowed_methods,
    reason = "the main thread computes and cannot return, so this thread ends the process"
)]
fn end_if_stdout_closes(stdout: File, work: Work) -> io::Result<()> {
    let end_process = move || {
        // If `poll` fails, only the next write can notice that the reader is gone.
        if wait_until_closed(&stdout).is_ok() {
            work.wait_until_begun();
            // `exit_code` prints the error.
            let _ = exit_code(Err(io::ErrorKind::BrokenPipe.into()));
            child_server::end_all();
            std::process::exit(1);
        }
    };
    thread::Builder::new().name("stdout".into()).spawn(end_process).map(drop)
}

/// Prints the expected input for a person who started the engine in a terminal.
fn print_usage() {
    if io::stdin().is_terminal() {
        let hint =
            "this engine reads one JSON request per line on stdin, for example: {\"prompt\":\"Hello\"}\n";
        let _ = io::stderr().write_all(hint.as_bytes());
    }
}

pub(crate) fn exit_code(served: io::Result<()>) -> ExitCode {
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot write answers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the real stdout, and redirects file descriptor 1 to stderr. Called once, before the first call into the engine.
fn redirect_stdout() -> io::Result<File> {
    // The clone is close-on-exec: a child that outlives this process must not keep the protocol's pipe open.
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    dup2_stdout(io::stderr())?;
    Ok(File::from(stdout))
}

/// Returns when the other end of a pipe, a socket or a terminal is closed. For a file it never returns.
fn wait_until_closed(stdout: &File) -> io::Result<()> {
    loop {
        // `poll` always reports errors and hang-ups, so no event is requested.
        let mut descriptors = [PollFd::new(stdout, PollFlags::empty())];
        match poll(&mut descriptors, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Whether an answer is in progress, for the thread that waits for a closed stdout. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct Work(Arc<Shared>);

#[derive(Default)]
struct Shared {
    in_progress: Mutex<bool>,
    began: Condvar,
}

impl Work {
    /// Marks an answer as in progress. Notifies only on a change, because the server calls this for every step.
    pub fn begin(&self) {
        let mut in_progress = self.lock();
        if !*in_progress {
            *in_progress = true;
            self.0.began.notify_all();
        }
    }

    /// Marks the answer as finished. The server calls this before it sends the answer: a reader that has its answer may close
    /// the pipe, and then the process must continue.
    pub fn end(&self) {
        *self.lock() = false;
    }

    pub fn wait_until_begun(&self) {
        let mut in_progress = self.lock();
        while !*in_progress {
            in_progress = self.0.began.wait(in_progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
