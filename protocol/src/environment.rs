//! Names of the environment variables that the orchestrator sets for the engines that it starts.

/// The model folder (or file) that a `generate` before any `load` uses.
pub const MODEL: &str = "ORCHESTRATE_MODEL";
pub const DEVICE: &str = "ORCHESTRATE_DEVICE";
pub const DTYPE: &str = "ORCHESTRATE_DTYPE";
pub const THREADS: &str = "ORCHESTRATE_THREADS";
/// Marks every process of a run, so that the orchestrator finds and ends leftover processes. Engines ignore it.
pub const RUN: &str = "ORCHESTRATE_RUN";
/// Marks every process of one launch, in the same way.
pub const LAUNCH: &str = "ORCHESTRATE_LAUNCH";
