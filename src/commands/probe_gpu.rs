//! `orchestrate probe-gpu`, hidden: the limits of GPUs, as JSON. A run starts it, so that no context of its own stays on a GPU.

use anyhow::Result;
use clap::Args;

use super::output;
use crate::cli::exit_code::DONE;
use crate::machine::gpu_limits;

#[derive(Debug, Args)]
pub struct ProbeGpuArgs {
    /// By CUDA's index; all unless given
    pub devices: Vec<u32>,
}

pub fn probe_gpu(arguments: ProbeGpuArgs) -> Result<u8> {
    let mut line = serde_json::to_vec(&gpu_limits::answer(arguments.devices))?;
    line.push(b'\n');
    output::print(&line)?;
    Ok(DONE)
}
