//! Phi-3: Llama with fused matrices (known from the tensors), and a window if a config has one.

use super::{Architecture, Windows, llama};

pub const ARCHITECTURE: Architecture =
    Architecture { name: "phi3", windows: Windows::All { unsaid: None }, ..llama::ARCHITECTURE };
