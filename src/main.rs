//! `orchestrate`: measures LLM inference engines, and says how sure it is.

// While the rooms are being joined up.
#![allow(dead_code)]

mod event;
mod machine;
mod metric;
mod plan;
mod progress;
mod record;
mod report;
mod scenario;
mod stats;

fn main() {}
