//! Which engines exist, how each comes to be, and what makes it ready: manifests, the registry, set-up, environments.

mod candidate;
pub mod manifest;
pub mod own_python;
pub mod registry;
pub mod setup;

pub use candidate::{Candidate, Start};
