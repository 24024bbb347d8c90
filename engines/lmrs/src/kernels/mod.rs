//! Arithmetic on slices, once for each level of what a processor can do. Knows no model and no thread.

pub mod attention;
#[cfg(test)]
pub(crate) mod chance;
pub(crate) mod half;
pub mod lanes;
pub mod level;
pub mod outputs;
pub mod panels;
pub mod rows;

pub use level::{Instructions, Level};
pub use outputs::Outputs;
