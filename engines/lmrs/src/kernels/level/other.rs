//! Processors without kernels of their own.

use super::{Entry, Instructions};

pub const LEVELS: &[Entry] = &[(Instructions::Portable, "portable", || true)];
