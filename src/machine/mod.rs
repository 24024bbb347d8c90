//! The machine's description, from /proc, /sys and NVIDIA's library, and samplers of processes and GPUs. Outside Linux most facts
//! are absent.
//!
//! Nothing here changes the machine. Only `versions` and `gpu_limits` start processes.

pub mod cpu;
pub mod cpu_time;
mod description;
mod device;
pub mod driver;
pub mod energy;
pub mod gpu;
pub mod gpu_limits;
mod kernel;
pub mod memory;
pub mod observed;
mod processes;
mod quiet;
pub mod sampler;
mod used_gpus;
pub mod versions;

pub use cpu::Cpu;
pub use description::Machine;
pub use device::{CPU, Device};
pub use gpu::Gpu;
pub use processes::{
    Mark, ProcessFamily, command_line, cpu_time_of_ended_children, descendants_of, is_kernel_thread,
    is_stopped, processes, reap_ended_children, sees_whole_machine, start_ticks, time_of_ticks,
};
pub use quiet::{PlannedEngine, QuietCheck, busy_ticks};
pub use used_gpus::gpus_of;
