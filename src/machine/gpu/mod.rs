//! GPUs: their properties, and their state while sampled. Only `nvml` asks the driver. Without the driver's library or
//! a device there are no GPUs, and this is no error.

mod cuda;
mod data_sheet;
pub mod facts;
mod nvml;
mod samples;
mod warnings;

pub use cuda::{Cuda, UnknownOrder, order_for_processes};
pub use data_sheet::DataSheet;
pub use facts::Gpu;
pub use nvml::{count, energy, probe, sample, used_memory};
pub use samples::{GpuSample, summarise};
pub use warnings::{slowdown_warning, warnings};
