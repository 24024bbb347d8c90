//! candle as an engine: unmodified candle-core and candle-transformers, run like their own examples.
//!
//! `engine` loads, `model` generates and scores. `architectures` has an entry for each supported architecture. `device` opens
//! the device of a load; only its file `cuda.rs` calls CUDA. `config` checks the features of a model, and the crate
//! `model_files` its files, because candle does not.
//!
//! Two programs use this library: `candle-engine`, and `candle-cuda` with the feature `cuda`.

mod architectures;
mod config;
mod device;
mod engine;
mod failure;
mod gguf;
mod model;
mod safetensors;
#[cfg(test)]
mod tests;

/// The `main` of both programs.
pub fn run() -> std::process::ExitCode {
    engine_kit::serve(engine::CandleEngine)
}
