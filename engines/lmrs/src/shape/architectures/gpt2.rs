//! GPT-2: LayerNorm, learned positions, and a feed-forward without a gate.

use super::{Architecture, llama};
use crate::shape::Activation;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    norms_centre: true,
    norm_epsilon_unsaid: 1e-5,
    learned_positions: true,
    activation: Activation::GeluTanh,
    inner_unsaid: Some(4),
    ..llama::ARCHITECTURE
};
