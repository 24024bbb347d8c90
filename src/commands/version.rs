//! The version of this program, and the commit that it was built from. `build.rs` sets the variables `BUILD_*`.

use std::sync::OnceLock;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, with `-dirty` if the sources of this program had changes. `None` if it was not built in a checkout.
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");
const TARGET: &str = env!("BUILD_TARGET");
const TARGET_FEATURES: &str = env!("BUILD_TARGET_FEATURES");

/// `0.1.0 (daa1294b3a5e)`.
pub fn short() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    let commit = || COMMIT.map_or_else(String::new, |commit| format!(" ({commit})"));
    TEXT.get_or_init(|| format!("{VERSION}{}", commit()))
}

/// The version with the processor that this program was built for. Engines are built separately, with features of their own.
pub fn long() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    let features = TARGET_FEATURES.replace(',', ", ");
    TEXT.get_or_init(|| format!("{}\nbuilt for {TARGET}, with {features}", short()))
}
