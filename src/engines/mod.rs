//! The engines that exist, and how each is built and set up: manifests, the registry, set-up, environments.

mod candidate;
pub mod manifest;
pub mod own_python;
pub mod registry;
pub mod setup;

pub use candidate::{Candidate, Start};
