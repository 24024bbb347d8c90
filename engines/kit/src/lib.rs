//! The common parts of engines: JSON, clocks, tokenising, iterations and warm-up, streaming, batches, overlapping
//! requests, cancelling, length and end of sequence, failures on the wire.
//!
//! An engine is two types and a `main`. This engine is complete; it repeats the prompt's last token:
//!
//! ```no_run
//! use engine_kit::model_files::ModelFolder;
//! use engine_kit::protocol::{Facts, Failed, HelloFacts, Load};
//! use engine_kit::{Engine, Flow, Job, Model, Options, Phases, Tokens};
//!
//! struct Echo;
//! struct EchoModel;
//!
//! impl Engine for Echo {
//!     type Model = EchoModel;
//!     fn hello(&self) -> Result<HelloFacts, Failed> {
//!         Ok(engine_kit::hello("echo", env!("CARGO_PKG_VERSION")))
//!     }
//!     fn load(&mut self, _: &ModelFolder, load: &Load, phases: &mut Phases) -> Result<EchoModel, Failed> {
//!         Options::new(&load.options).finish()?; // this engine has no options
//!         Ok(phases.phase("weights", || EchoModel))
//!     }
//! }
//!
//! impl Model for EchoModel {
//!     fn facts(&self) -> Facts {
//!         Facts { device: Some("cpu".into()), compute_dtype: Some("f32".into()), ..Facts::default() }
//!     }
//!     fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
//!         let last = job.prompts[0].last().copied().unwrap_or_default();
//!         while tokens.push(0, last) == Flow::More {} // the kit stamps and streams the token, and ends the sequence
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     engine_kit::serve(Echo)
//! }
//! ```
//!
//! An engine in Python is a Python worker and a `main` that calls [`python::host`]. An engine that advances several requests
//! at once adds [`Slots`]. An engine of a server starts it with [`child_server::ChildServer`]. [`Server`] answers in memory as
//! `serve` does in a process, for tests.
//!
//! # Structure
//!
//! ```text
//! stdin -> Inbox (reads, stamps the line, parses; acts on cancel) -> Server (takes requests in order, answers each once)
//!            load -> model::LoadedModel      generate -> RunningGenerate (checks, iterations) -> Model::generate -> Tokens
//!                                    or, with a request id and slots -> overlap -> Slots::step -> Tokens
//! ```
//!
//! The kit does no arithmetic on tensors, except that `sampling` computes with logits. Only `summary`, for
//! a person at a shell, derives metrics; the orchestrator ignores them.

pub mod child_server;
pub mod conversion;
mod engine;
pub mod facts;
pub mod gguf;
mod inbox;
mod load;
mod model;
mod output;
mod overlap;
pub mod python;
mod run;
pub mod sampling;
mod serve;
mod server;
mod summary;
mod tokens;

pub use engine::{Engine, Job, Model, OrFail, Slots};
pub use facts::hello;
pub use inbox::{Inbox, Waker};
pub use load::{Options, Phases};
pub use model::Environment;
pub use output::Output;
pub use serve::serve;
pub use server::Server;
pub use tokens::{Flow, Tokens};
pub use {model_files, protocol};
