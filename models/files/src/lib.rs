//! What a model folder is: its config, the headers of its weights, its tokenizer.
//!
//! The orchestrator tokenises with it, engines load with it. Opening a model reads headers and never weights; what
//! synthesises, converts and names weights reads them row by row. It knows no tensor framework, no device and no protocol. Sizes inside a file are claims: each is checked against the file before
//! anything is allocated for it.
//!
//! An error whose remedy is known ends in a line of its own that begins with `hint: `.
//!
//! A model is named by a path, by `OWNER/NAME` when it was pulled from the hub, or by `embedded` (or nothing) for the
//! small one that comes with this project.

mod architecture;
pub mod blocks;
mod complete;
mod config;
pub mod conversions;
mod convert;
mod detect;
mod dtype;
pub mod embedded;
mod facts;
mod folder;
pub mod gguf;
pub mod hub;
mod identity;
mod ids;
pub mod safetensors;
mod shown;
mod size;
mod space;
mod synth;
mod tensor;
pub mod tokenizer;
mod weights;
mod write;

pub use architecture::{ARCHITECTURES, Architecture, Kind, Layout, Order, Part, Place};
pub use config::Config;
pub use convert::{convert, own_dtype};
pub use dtype::Dtype;
pub use facts::{ModelFacts, PlaceFacts};
pub use folder::{Format, ModelFolder, resolve};
pub use shown::shown_value;
pub use size::size;
pub use synth::{SHAPES, Shape, synthesise};
pub use tensor::Tensor;
pub use tokenizer::{Tokenizer, TokenizerFacts, TokenizerTables};
pub use weights::{FileWeights, Weights};
pub use write::Watch;
pub use write::model::{Goal, Written, check as check_writable};
