//! The well-known tests without pairing: each side's blocks on their own.

mod holm;
mod mann_whitney;
mod welch;

pub use holm::holm;
pub use mann_whitney::mann_whitney;
pub use welch::{Difference, welch};
