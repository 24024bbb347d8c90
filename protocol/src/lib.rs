//! The wire between `orchestrate` and every engine: requests, messages, framing, names of environment variables.
//!
//! This crate knows no clock, no process, no file and no runtime. `protocol/README.md` says in prose what these types
//! say in Rust; `protocol/golden/` holds one example of each, which the Rust and the Python tests both read.

pub mod environment;
mod facts;
mod framing;
mod message;
mod parse;
mod request;
#[cfg(feature = "schema")]
mod schema;

pub use facts::{
    Build, Capabilities, Chunk, DeviceMemory, Facts, Finish, HelloFacts, IgnoreEos, Iteration, Loaded,
    Output, Phase, Sequence, Stamp,
};
pub use framing::{Frame, Framer, MAX_LINE_BYTES, encode};
pub use message::{Failed, FailureKind, Generated, Message, Progress, Scored, Token};
pub use parse::{Refused, parse_message, parse_request};
pub use request::{Cancel, Generate, Hello, Id, Load, Padding, Request, Sampling, Score};
#[cfg(feature = "schema")]
pub use schema::schema;

/// The protocol's versions, oldest first. A new field or message is no new version; a changed meaning is.
pub mod version {
    /// The first: everything in `protocol/README.md`.
    pub const V1: u32 = 1;
    /// What this crate speaks.
    pub const CURRENT: u32 = V1;
}
