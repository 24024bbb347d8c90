//! A processor that nothing was written for.

use super::{Entry, Level};

pub const LEVELS: &[Entry] = &[(Level::Portable, "portable", || true)];
