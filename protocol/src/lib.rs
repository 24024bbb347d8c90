//! The protocol between `orchestrate` and every engine: requests, messages, framing, names of environment variables.
//!
//! This crate uses no clock, process, file or runtime. `protocol/README.md` describes these types in prose.
//! `protocol/golden/` holds an example of each request and message; the Rust and the Python tests read these files.

pub mod environment;
mod facts;
mod framing;
mod message;
mod parse;
mod request;
#[cfg(test)]
mod schema;

pub use facts::{
    Build, Capabilities, Chunk, DeviceMemory, Facts, Finish, HelloFacts, IgnoreEos, Iteration, Loaded,
    Output, Phase, Sequence, Stamp,
};
pub use framing::{Frame, Framer, MAX_LINE_BYTES, encode};
pub use message::{Failed, FailureKind, Generated, Message, Progress, Scored, Token, split_hints};
pub use parse::{parse_message, parse_request};
pub use request::{Cancel, Generate, Hello, Id, Load, Padding, Request, Sampling, Score, Speculation};

/// The JSON Schema of the requests and messages. A test compares it with the types, so that only tests need the generator.
pub const SCHEMA: &str = include_str!("../schema/protocol.schema.json");

/// A load option that every kit has. It delays each token of a sequence except the first, to test the detection of slowdowns.
/// The kit does not pass it to the engine, so `hello` does not list it.
pub const PLANTED_DELAY_OPTION: &str = "planted_delay_us";

/// The largest number as an `id`, and the largest `seed`: 2^53 - 1. JavaScript may round larger integers.
pub const MAX_INTEGER: u64 = (1 << 53) - 1;

/// The versions of the protocol, oldest first. A new field or message keeps the version; a changed meaning needs a new one.
pub mod version {
    /// The first: everything in `protocol/README.md`.
    pub const V1: u32 = 1;
    /// The version of this crate.
    pub const CURRENT: u32 = V1;
}
