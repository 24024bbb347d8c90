//! Arithmetic on slices, once for each level of what a processor can do. Knows no model and no thread.

pub mod attention;
pub mod lanes;
pub mod level;
pub mod outputs;
pub mod panels;
pub mod rows;

pub use level::Level;
pub use outputs::Outputs;
