//! The levels of ARM processors.

use std::arch::is_aarch64_feature_detected;

use super::{Entry, Instructions};

pub const LEVELS: &[Entry] =
    &[(Instructions::Portable, "portable", || true), (Instructions::Neon, "neon", neon)];

/// Basic NEON, which every 64-bit core has. Products of eight bits use `vmull_s8`, since dot products are not stable in Rust.
fn neon() -> bool {
    is_aarch64_feature_detected!("neon")
}
