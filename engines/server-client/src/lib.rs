//! A client of servers with streams of events. An engine of a server is a `Kind` of server and a `main` that calls `serve`: the
//! engine `openai` measures any server with the OpenAI API, and `llama-server` starts a certain one.

mod client;
mod http;
mod kind;
mod load;
mod model;
mod stream;

use std::process::ExitCode;

pub use kind::{Command, Kind, Piece, Statements, number, prompt_and_sampling};

/// The complete `main` of an engine that is a client of this kind of server.
pub fn serve(kind: Kind) -> ExitCode {
    engine_kit::serve(load::Client { kind })
}
