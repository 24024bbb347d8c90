//! Arithmetic on slices, with one implementation per processor level. Independent of models and threads.

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
