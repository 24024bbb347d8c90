//! The resources of a case apart from time: memory in its parts, cores, energy, a GPU. An unknown value is absent, never zero.

pub mod facts;
mod sources;

pub use facts::Resources;
pub use sources::Sources;

#[cfg(test)]
mod tests;
