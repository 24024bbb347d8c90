//! The engines that exist, and how each is built and set up: manifests, the registry, set-up, environments.

pub mod load_values;
pub mod manifest;
pub mod registry;
pub mod setup;

pub use registry::{Candidate, Start};
