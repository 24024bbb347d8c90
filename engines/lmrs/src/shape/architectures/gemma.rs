//! Gemma: Llama with a scaled embedding and another activation.

use super::{Architecture, llama};
use crate::shape::Activation;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "gemma",
    scales_embedding: true,
    activation: Activation::GeluTanh,
    // Its first configs wrote `gelu` for the approximation; transformers reads them in the same way.
    gelu: Some(Activation::GeluTanh),
    ..llama::ARCHITECTURE
};
