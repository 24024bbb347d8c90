//! Qwen 3: Qwen 2 with norms of heads (known from the tensors).

use super::{Architecture, qwen2};

pub const ARCHITECTURE: Architecture = Architecture { name: "qwen3", ..qwen2::ARCHITECTURE };
