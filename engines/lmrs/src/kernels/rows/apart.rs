//! Activations in bf16 with an odd number of lines between tokens, so that no two tokens map to the same cache sets.

use std::sync::Mutex;

/// Numbers in a line.
pub const NUMBERS: usize = 32;

/// A line of a token's inputs.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Numbers(pub [u16; NUMBERS]);

/// `[tokens][lines]`. The contents after a token's last input are unspecified.
#[derive(Debug, Default)]
pub struct Apart {
    lines: Vec<Numbers>,
    inputs: usize,
    tokens: usize,
}

impl Apart {
    /// Changes the shape. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, inputs: usize) {
        (self.tokens, self.inputs) = (tokens, inputs);
        self.lines.resize(tokens * self.stride(), Numbers([0; NUMBERS]));
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Lines between the starts of two tokens.
    fn stride(&self) -> usize {
        self.inputs.div_ceil(NUMBERS) | 1
    }

    /// The lines of a token: its inputs and padding.
    pub fn token(&self, token: usize) -> &[Numbers] {
        &self.lines[token * self.stride()..][..self.stride()]
    }

    /// The tokens, for threads to fill. Each is under a lock that is taken once.
    pub fn tokens_mut(&mut self) -> Vec<Mutex<&mut [Numbers]>> {
        let stride = self.stride();
        self.lines.chunks_mut(stride).map(Mutex::new).collect()
    }
}
