//! GPT-2: LayerNorm, learned positions, and a feed-forward without a gate.

use super::{Architecture, llama};
use crate::shape::Activation;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    norms_centre: true,
    learned_positions: true,
    activation: Activation::GeluTanh,
    ..llama::ARCHITECTURE
};
