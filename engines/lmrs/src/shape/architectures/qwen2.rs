//! Qwen 2: Llama with biases (known from the tensors), and windows in some layers.

use super::{Architecture, Windows, llama};

pub const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    windows: Windows::SomeLayers { unsaid: Some(4096), first_unsaid: 28 },
    ..llama::ARCHITECTURE
};
