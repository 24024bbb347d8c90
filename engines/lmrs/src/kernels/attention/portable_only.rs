//! Where there is no level but the portable one.

pub use super::portable::{accumulate_at as accumulate, step_at as step};
