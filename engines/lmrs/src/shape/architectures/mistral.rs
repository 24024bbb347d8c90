//! Mistral: Llama with a window.

use super::{Architecture, Windows, llama};

pub const ARCHITECTURE: Architecture = Architecture {
    name: "mistral",
    // The first release has a window, and its configs may omit the field.
    windows: Windows::All { unsaid: Some(4096) },
    ..llama::ARCHITECTURE
};
