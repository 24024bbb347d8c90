//! Phi-3: Llama with fused matrices, which are tensors, and a window where a config gives one.

use super::{Architecture, Windows, llama};

pub const ARCHITECTURE: Architecture =
    Architecture { name: "phi3", windows: Windows::All { unsaid: None }, ..llama::ARCHITECTURE };
