//! Models of the Hugging Face hub: finding them in the cache, and, with the feature `hub`, downloading them.
//!
//! A pulled model is found by its name without a network and without the feature. The cache has the usual location and
//! layout, so that programs share their downloads.

mod cache;
mod repository;

#[cfg(feature = "hub")]
mod choose;
#[cfg(feature = "hub")]
mod connection;
#[cfg(feature = "hub")]
mod digest;
#[cfg(feature = "hub")]
mod fetch;
#[cfg(feature = "hub")]
mod listing;
#[cfg(feature = "hub")]
mod pull;
#[cfg(feature = "hub")]
mod settings;

pub use cache::{Cache, Snapshot, name_of};
pub use repository::{MAIN, Repository};

#[cfg(feature = "hub")]
pub use pull::{Event, pull};
#[cfg(feature = "hub")]
pub use settings::Settings;

/// The path of a pulled model with this name: `OWNER/NAME`, `OWNER/NAME@REVISION`, `OWNER/NAME/FILE.gguf`.
pub fn find(name: &str) -> Option<std::path::PathBuf> {
    Cache::from_environment().ok()?.find_named(name)
}
