//! safetensors: eight bytes of length, a JSON header, and the tensors in sequence.

mod read;
mod shards;
mod write;

pub(crate) use read::DTYPES;
pub use read::{parse_header, read_header};
pub(crate) use shards::shards;
pub(crate) use write::{INDEX, plan};
