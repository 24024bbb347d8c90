//! Arithmetic on slices, once for each level of what a processor can do. Knows no model and no thread.

pub mod attention;
#[cfg(test)]
mod chance;
pub(crate) mod half;
pub mod lanes;
pub mod level;
pub mod outputs;
pub mod panels;
pub mod rows;
pub mod zipped;

pub use level::{Instructions, Level};
pub use outputs::Outputs;
