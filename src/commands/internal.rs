//! `orchestrate keeper`, `probe-gpu` and `null-engine`, hidden: this program starts them itself, as processes of their own.

use anyhow::Result;
use clap::Args;

use super::output;
use crate::cli::exit_code::DONE;
use crate::machine::gpu_limits;
use crate::run::process::keep;

#[derive(Debug, Args)]
pub struct KeeperArgs {
    /// The id of the run
    pub run: String,
}

/// Ends the remaining processes of a run.
pub fn keeper(arguments: &KeeperArgs) -> Result<u8> {
    keep(&arguments.run);
    Ok(DONE)
}

#[derive(Debug, Args)]
pub struct ProbeGpuArgs {
    /// CUDA indices of the GPUs; default: all
    pub devices: Vec<u32>,
}

/// Prints the limits of GPUs as JSON. It runs in a process of its own, so that the run keeps no CUDA context on a GPU.
pub fn probe_gpu(arguments: ProbeGpuArgs) -> Result<u8> {
    output::succeed(serde_json::to_string(&gpu_limits::probe(arguments.devices))? + "\n")
}

/// Answers requests as an engine that computes nothing does.
pub fn null_engine() -> Result<u8> {
    null_engine::answer_requests(&mut std::io::stdin().lock(), &mut |bytes| output::print(bytes))?;
    Ok(DONE)
}
