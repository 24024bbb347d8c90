//! Llama, and what the others are told from.

use super::{Architecture, Windows};
use crate::shape::Activation;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    norms_centre: false,
    norm_epsilon_unsaid: 1e-6,
    learned_positions: false,
    scales_embedding: false,
    activation: Activation::Silu,
    gelu: None,
    inner_unsaid: None,
    windows: Windows::None,
};
