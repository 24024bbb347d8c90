//! candle as an engine: candle-core and candle-transformers as they come, driven as their own examples drive them.
//!
//! `engine` loads, `model` generates and scores, `network` is candle's four models behind one face. What candle leaves
//! unsaid is checked before it is asked: `shape` for configs, `tensors` and `gguf` for files.

mod about;
mod device;
mod engine;
mod failure;
mod gguf;
mod model;
mod network;
mod safetensors;
mod shape;
mod tensors;
#[cfg(test)]
mod tests;
mod threads;

fn main() -> std::process::ExitCode {
    engine_kit::serve(engine::CandleEngine)
}
