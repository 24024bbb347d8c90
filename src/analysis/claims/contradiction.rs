//! A claim that does not hold, and the words of its values.

use serde::Serialize;

use crate::analysis::metric::Unit;

/// A claim that does not hold: the value that an engine states, and the observed value.
#[derive(Debug, Clone, PartialEq)]
pub struct Contradiction {
    pub configuration: usize,
    /// The label of the configuration.
    pub label: String,
    pub about: About,
    pub reported: String,
    pub observed: String,
    /// Names the engine, both values and the source of the second.
    pub message: String,
    /// Whether the false claim could have improved its results: then no row of it is ranked first.
    pub excludes_from_ranking: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// The dtype of its weights or of its arithmetic.
    Dtype,
    Threads,
    PrefixCache,
    Eos,
    /// The times that it states.
    Clock,
}

pub fn bytes(bytes: f64) -> String {
    Unit::Bytes.show(bytes)
}

pub fn time(ns: f64) -> String {
    Unit::Nanoseconds.show(ns)
}
