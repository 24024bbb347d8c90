//! Gemma: Llama with a scaled embedding and another activation.

use super::{Architecture, llama};
use crate::shape::Activation;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "gemma",
    scales_embedding: true,
    activation: Activation::GeluTanh,
    // Its first configs said so and meant the approximation, as transformers reads them too.
    gelu: Some(Activation::GeluTanh),
    ..llama::ARCHITECTURE
};
