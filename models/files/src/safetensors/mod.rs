//! safetensors: eight bytes of length, a header of JSON, and the tensors one after the other.

mod read;
mod shards;
mod write;

pub use read::{parse_header, read_header};
pub(crate) use shards::shards;
pub(crate) use write::{INDEX, plan};
