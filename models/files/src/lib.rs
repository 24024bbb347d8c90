//! Model folders: config, headers of the weights, tokenizer.
//!
//! The orchestrator tokenises with this crate, and engines load models with it. Opening a model reads headers and never
//! weights. A conversion and the digest of a model's content read weights, a few rows or one transposed matrix at a time. The
//! crate depends on no tensor framework, device or protocol. Sizes inside a file are untrusted: each is checked against the
//! file before anything is allocated.
//!
//! An error with a known remedy is a `Problem`. Its text ends in a separate line that begins with `hint: `. Only errors of the
//! hub have such lines without a field, because they may have several.
//!
//! A model is named by a path, by `OWNER/NAME` if it was pulled from the hub, or by `embedded`, the small model
//! of this project, which is also the default.

mod architecture;
pub mod blocks;
mod config;
pub mod conversions;
mod convert;
pub mod embedded;
mod facts;
mod folder;
pub mod gguf;
pub mod hub;
mod identity;
mod problem;
pub mod safetensors;
mod synth;
mod text;
pub mod tokenizer;
mod weights;
mod write;

pub use architecture::{ARCHITECTURES, Architecture, Component, GgufLayout, Kind, TensorSpec};
pub use blocks::Dtype;
pub use config::Config;
pub use convert::{Goal, Written, check as check_writable, convert, own_dtype};
pub use facts::{ComponentFacts, ModelFacts};
pub use folder::{Format, ModelFolder, resolve};
pub use problem::{Problem, hint_of};
pub use synth::{SHAPES, Shape, synthesise};
pub use text::{json_text, size};
pub use tokenizer::{Tokenizer, TokenizerFacts, TokenizerTables};
pub use weights::{FileWeights, Tensor, Weights};
pub use write::OnProgress;
