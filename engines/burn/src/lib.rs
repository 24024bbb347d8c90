//! Burn as an engine: decoders of the Llama family in Burn's own modules, on its CPU backend `flex` or on CUDA.
//!
//! `engine` loads, `model` generates and scores. `network` is the decoder: Burn's modules and attention, with a cache for keys
//! and values. `weights` reads its tensors with the crate `model_files`, and `config` refuses models that the network does not
//! compute. `device` opens the device of a load.

mod config;
mod device;
mod engine;
mod model;
mod network;
#[cfg(test)]
mod tests;
mod weights;

/// The `main` of the program.
pub fn run() -> std::process::ExitCode {
    engine_kit::serve(engine::BurnEngine)
}
