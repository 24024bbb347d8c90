//! Activations in bf16, the tokens an odd number of lines apart, so that no two of them meet in the same sets of a cache.

use std::sync::Mutex;

/// Numbers of a line.
pub const NUMBERS: usize = 32;

/// Some inputs of a token.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Numbers(pub [u16; NUMBERS]);

/// `[tokens][lines]`. What stands behind a token's last input is anything.
#[derive(Debug, Default)]
pub struct Apart {
    lines: Vec<Numbers>,
    inputs: usize,
    tokens: usize,
}

impl Apart {
    /// What it holds afterwards is anything.
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

    /// From a token's first line to the next's.
    fn stride(&self) -> usize {
        self.inputs.div_ceil(NUMBERS) | 1
    }

    /// Of this token: its inputs, and perhaps more.
    pub fn token(&self, token: usize) -> &[Numbers] {
        &self.lines[token * self.stride()..][..self.stride()]
    }

    /// The tokens, for threads to fill: each under a lock that is taken once.
    pub fn tokens_mut(&mut self) -> Vec<Mutex<&mut [Numbers]>> {
        let stride = self.stride();
        self.lines.chunks_mut(stride).map(Mutex::new).collect()
    }
}
