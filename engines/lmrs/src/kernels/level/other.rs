//! A processor that nothing was written for.

use super::{Entry, Instructions};

pub const LEVELS: &[Entry] = &[(Instructions::Portable, "portable", || true)];
