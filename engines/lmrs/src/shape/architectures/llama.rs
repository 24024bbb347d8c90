//! Llama, the base of the other architectures.

use super::{Architecture, Windows};
use crate::shape::Activation;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    norms_centre: false,
    learned_positions: false,
    scales_embedding: false,
    activation: Activation::Silu,
    gelu: None,
    windows: Windows::None,
};
