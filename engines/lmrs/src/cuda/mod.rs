//! The computation on an NVIDIA GPU, with kernels of our own in `kernels`.
//!
//! ```text
//! load     -> weights, step   a load: refusals, the device, the weights, the kernels
//! decoder  -> step, prefill   ids in, logits out: the interface of `model`
//! step     -> kernels         one token of one sequence, in one kernel
//! prefill  -> kernels         many rows at once, with products by cuBLAS
//! kernels  -> nvrtc           the sources, their sizes, and their compiled images
//! driver   -> library         the device: memory, kernels, events; the libraries of NVIDIA
//! ```
//!
//! A load refuses every model that the kernels do not compute. The CPU computes these models.

pub mod cache;
pub mod decoder;
pub mod driver;
pub mod kernels;
pub mod library;
pub mod load;
pub mod nvrtc;
pub mod prefill;
pub mod step;
pub mod weights;

use protocol::{Failed, FailureKind};

/// The failure for a model or a setting that only the CPU computes.
fn only_on_cpu(feature: &str) -> Failed {
    Failed::new(FailureKind::Unsupported, format!("lmrs computes {feature} only on a CPU"))
        .hint("--device cpu")
}
