//! Activations in the layout of tiles: pairs of bf16 of 16 tokens side by side, one 64-byte line for each step.
//!
//! A step is two inputs. Line k of a group has the numbers 2k and 2k+1 of token 0, then of token 1, and so on: the order of
//! `vdpbf16ps` and of AMX tiles. Zeros fill incomplete groups of tokens, and steps up to a multiple of `STEPS`.

use std::ops::Range;
use std::sync::Mutex;

/// Tokens of a group.
pub const TOKENS: usize = 16;
/// Inputs of a step.
pub const PAIR: usize = 2;
/// Steps are padded to a multiple of this number: the steps of an AMX tile.
const STEPS: usize = 16;

/// One step of a group.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u32; TOKENS]);

pub fn steps(inputs: usize) -> usize {
    inputs.div_ceil(PAIR).next_multiple_of(STEPS)
}

/// `[groups][steps]` lines.
#[derive(Debug, Default)]
pub struct Packed {
    lines: Vec<Line>,
    inputs: usize,
    tokens: usize,
}

impl Packed {
    /// Changes the shape. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, inputs: usize) {
        (self.tokens, self.inputs) = (tokens, inputs);
        self.lines.resize(self.groups() * self.steps(), Line([0; TOKENS]));
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn groups(&self) -> usize {
        self.tokens.div_ceil(TOKENS)
    }

    pub fn steps(&self) -> usize {
        steps(self.inputs)
    }

    pub fn lines(&self, groups: Range<usize>) -> &[Line] {
        &self.lines[groups.start * self.steps()..groups.end * self.steps()]
    }

    /// The groups, for threads to fill. Each is under a lock that is taken once.
    pub fn groups_mut(&mut self) -> Vec<Mutex<&mut [Line]>> {
        let steps = self.steps().max(1);
        self.lines.chunks_mut(steps).map(Mutex::new).collect()
    }
}
