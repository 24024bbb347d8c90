//! What ARM processors can do.

use std::arch::is_aarch64_feature_detected;

use super::{Entry, Instructions};

pub const LEVELS: &[Entry] =
    &[(Instructions::Portable, "portable", || true), (Instructions::Neon, "neon", neon)];

/// With dot products of eight bits: the first cores without them are from before 2017.
fn neon() -> bool {
    is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod")
}
