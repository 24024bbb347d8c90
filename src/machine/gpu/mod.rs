//! GPUs: their properties, and their state while sampled. Plain values and calculations; only `nvml` asks the driver. Without its
//! library or a device there are no GPUs, and no message says so.

mod cuda;
pub mod facts;
mod nvml;
mod samples;
mod warnings;

pub use cuda::{Cuda, Unordered, order_for_processes};
pub use facts::Gpu;
pub use nvml::{counted, energy, held, probe, sample};
pub use samples::{GpuSample, summarise};
pub use warnings::{slowed, warnings};
