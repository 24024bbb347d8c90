//! One file a subcommand: a straight pipeline over the rooms below.

pub mod baseline;
pub mod calibrate;
pub mod check;
pub mod compare;
mod dry_run;
mod experiment;
pub mod interrupts;
pub mod listing;
pub mod machine;
pub mod measure;
pub mod model;
pub mod null_engine;
pub mod output;
pub mod overhead;
mod progress;
pub mod request;
pub mod setup;
