//! candle as an engine: candle-core and candle-transformers as they come, driven as their own examples drive them.
//!
//! `engine` loads, `model` generates and scores, `network` is candle's models behind one face. `architectures` has a file
//! for each of them. `device` knows what a load runs on; what speaks of CUDA itself is one file in it. What candle leaves
//! unsaid is checked before it is asked: `config` and `sizes` for what a model asks for, `model_files` for what its files
//! hold.
//!
//! Two programs are made of this: `candle-engine`, and with the feature `cuda` `candle-cuda`.

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

/// All of `main`.
pub fn run() -> std::process::ExitCode {
    engine_kit::serve(engine::CandleEngine)
}
