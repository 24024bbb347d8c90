//! What ARM processors can do.

use std::arch::is_aarch64_feature_detected;

use super::{Entry, Instructions};

pub const LEVELS: &[Entry] =
    &[(Instructions::Portable, "portable", || true), (Instructions::Neon, "neon", neon)];

/// No more than what every core of 64 bits has: products of eight bits are `vmull_s8`, since dot products are not stable in Rust.
fn neon() -> bool {
    is_aarch64_feature_detected!("neon")
}
