//! What an engine's author does not have to write.

mod clock;
mod engine;
pub mod facts;
mod failing;
mod inbox;
mod model;
mod options;
mod output;
mod overlap;
mod phases;
pub mod python;
mod run;
pub mod sampling;
mod serve;
mod server;
mod stdout;
mod summary;
mod tokens;

pub use engine::{Engine, Job, Model, Slots};
pub use facts::hello;
pub use failing::OrFail;
pub use inbox::Inbox;
pub use model::Environment;
pub use options::Options;
pub use output::Output;
pub use phases::Phases;
pub use serve::serve;
pub use server::Server;
pub use tokens::{Flow, Tokens};
pub use {model_files, protocol};
