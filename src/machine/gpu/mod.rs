//! GPUs: their properties, and their state while sampled. Plain values and calculations; only `nvml` asks the driver. Without its
//! library or a device there are no GPUs, and no message says so.

mod cuda;
pub mod facts;
mod looks;
mod nvml;
mod trouble;

pub use cuda::{Cuda, Unordered, order_for_processes};
pub use facts::Gpu;
pub use looks::{Look, over};
pub use nvml::{counted, energy, held, look, probe};
pub use trouble::{before, slowed};
