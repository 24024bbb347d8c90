//! candle as an engine: candle-core and candle-transformers as they come, driven as their own examples drive them.
//!
//! `engine` loads, `model` generates and scores, `network` is candle's models behind one face. `architectures` has a file
//! for each of them. What candle leaves unsaid is checked before it is asked: `config` and `sizes` for what a model
//! asks for, `model_files` for what its files hold.

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

fn main() -> std::process::ExitCode {
    engine_kit::serve(engine::CandleEngine)
}
