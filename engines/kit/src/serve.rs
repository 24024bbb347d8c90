//! The `main` of an engine: it moves stdout aside, reads on one thread and works on the main thread.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use crate::model::Environment;
use crate::work::Work;
use crate::{Engine, Inbox, Output, Server, stdout};

/// Serves requests from stdin on stdout until `shutdown` or the end of stdin. The whole `main` of an engine.
pub fn serve<E: Engine>(engine: E) -> ExitCode {
    ending(try_serve(engine))
}

fn try_serve<E: Engine>(engine: E) -> io::Result<()> {
    let (stdout, work) = (stdout::take()?, Work::default());
    end_with_reader(stdout.try_clone()?, work.clone())?;
    greet();
    let inbox = Arc::new(Inbox::default());
    let reading = inbox.clone();
    // Never joined: it may be blocked in a read at the end of the work, and ends with the process.
    thread::Builder::new().name("stdin".into()).spawn(move || reading.read_from(io::stdin().lock()))?;
    Server::new(engine, inbox, Output::new(stdout), Environment::read()).telling(work).run()
}

/// Ends this process once the reader of stdout is gone, even during a request: its answer would reach no reader. Between
/// requests it does not: a reader that has all its answers may leave.
#[expect(
    clippy::disallowed_methods,
    reason = "the main thread computes, and nothing that it started outlives it"
)]
fn end_with_reader(stdout: File, work: Work) -> io::Result<()> {
    let watch = move || {
        // If stdout cannot be watched, the next write shows the error.
        if stdout::wait_until_closed(&stdout).is_ok() {
            work.wait();
            let _ = ending(Err(io::ErrorKind::BrokenPipe.into()));
            std::process::exit(1);
        }
    };
    thread::Builder::new().name("stdout".into()).spawn(watch).map(drop)
}

/// Tells a person who started an engine by hand which input it expects.
pub(crate) fn greet() {
    if io::stdin().is_terminal() {
        let hint = "reads one JSON request per line on stdin, for example: {\"prompt\":\"Hello\"}\n";
        let _ = io::stderr().write_all(hint.as_bytes());
    }
}

pub(crate) fn ending(served: io::Result<()>) -> ExitCode {
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot write answers: {error}");
            ExitCode::FAILURE
        }
    }
}
