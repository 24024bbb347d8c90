//! candle as an engine: unmodified candle-core and candle-transformers, run like their own examples.
//!
//! `engine` loads, `model` generates and scores, `network` is the common interface of candle's models. `architectures` has
//! a file for each model. `device` knows the device of a load, with one file for CUDA. `config`, `sizes` and `model_files`
//! check what candle does not check itself: the features and the files of a model.
//!
//! Two programs use it: `candle-engine`, and with the feature `cuda` `candle-cuda`.

mod about;
mod architectures;
mod config;
mod device;
mod engine;
mod failure;
mod gguf;
mod model;
mod network;
mod safetensors;
mod sizes;
#[cfg(test)]
mod tests;
mod threads;

/// The whole of `main`.
pub fn run() -> std::process::ExitCode {
    engine_kit::serve(engine::CandleEngine)
}
