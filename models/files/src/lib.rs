//! What a model folder is: its config, the headers of its weights, its tokenizer.
//!
//! The orchestrator tokenises with it, engines load with it. It reads headers and never weights, and it knows no tensor
//! framework, no device and no protocol. Sizes inside a file are claims: each is checked against the file before
//! anything is allocated for it.
//!
//! An error whose remedy is known ends in a line of its own that begins with `hint: `.
//!
//! A model is named by a path, or by `embedded` (or nothing) for the small one that comes with this project.

mod config;
pub mod embedded;
mod folder;
pub mod gguf;
pub mod safetensors;
mod tensor;
mod tokenizer;

pub use config::Config;
pub use folder::{Format, ModelFolder, resolve};
pub use tensor::Tensor;
pub use tokenizer::Tokenizer;
