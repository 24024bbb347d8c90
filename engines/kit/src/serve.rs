//! `main` of an engine: stdout aside, a thread that reads, the main thread that works.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use crate::model::Environment;
use crate::{Engine, Inbox, Output, Server, stdout};

/// Serves requests from stdin on stdout until `shutdown` or the end of stdin. All of an engine's `main`.
pub fn serve<E: Engine>(engine: E) -> ExitCode {
    ending(try_serve(engine))
}

fn try_serve<E: Engine>(engine: E) -> io::Result<()> {
    let output = Output::new(stdout::take()?);
    greet();
    let inbox = Arc::new(Inbox::default());
    let reading = inbox.clone();
    // Never joined: it may be blocked in a read when the work is over, and ends with the process.
    std::thread::Builder::new().name("stdin".into()).spawn(move || reading.read_from(io::stdin().lock()))?;
    Server::new(engine, inbox, output, Environment::read()).run()
}

/// Tells a person who started an engine by hand what it waits for.
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
