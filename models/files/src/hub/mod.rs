//! Models of the Hugging Face hub: where its programs keep what they fetched, and, with the feature `hub`, the fetching.
//!
//! A pulled model is found by its name without a network and without the feature. The folder is the usual one in the
//! usual layout, so that what one program has fetched no other fetches again.

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

/// Where a model that was pulled lies, if this names one: `OWNER/NAME`, `OWNER/NAME@REVISION`, `OWNER/NAME/FILE.gguf`.
pub fn find(name: &str) -> Option<std::path::PathBuf> {
    Cache::from_environment().ok()?.find_named(name)
}
