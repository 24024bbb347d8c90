//! Activations in bf16, in the three layouts that products read: tokens without gaps, tokens with padding, operands of tiles.
#![expect(unsafe_code, reason = "lines viewed as their numbers")]

use std::ops::Range;
use std::sync::Mutex;

/// Numbers of bf16 in a line.
pub const LINE_NUMBERS: usize = 32;

/// 64 bytes of bf16 numbers: activations of one token, or weights of one row.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Bf16Line(pub [u16; LINE_NUMBERS]);

/// Contiguous numbers: activations token after token, or unpacked rows of weights. They are aligned to cache lines, because
/// beyond the first-level cache, a load that crosses two lines takes twice the time.
#[derive(Debug, Default)]
pub struct AlignedBf16 {
    lines: Vec<Bf16Line>,
    count: usize,
}

impl AlignedBf16 {
    /// Changes the length and keeps the memory. The contents are unspecified afterwards.
    pub fn resize(&mut self, count: usize) {
        self.count = count;
        let lines = self.lines.len().max(count.div_ceil(LINE_NUMBERS));
        self.lines.resize(lines, Bf16Line([0; LINE_NUMBERS]));
    }

    pub fn all(&self) -> &[u16] {
        // SAFETY: lines are contiguous numbers without padding, and there are at least `count` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }

    pub fn all_mut(&mut self) -> &mut [u16] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count) }
    }
}

/// `[tokens][lines]`: an odd number of lines for each token, so that the same inputs of neighbouring tokens map to different
/// cache sets. The contents after a token's last input are unspecified.
#[derive(Debug, Default)]
pub struct PaddedRows {
    lines: Vec<Bf16Line>,
    inputs: usize,
    tokens: usize,
}

impl PaddedRows {
    /// Changes the shape. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, inputs: usize) {
        (self.tokens, self.inputs) = (tokens, inputs);
        self.lines.resize(tokens * self.stride(), Bf16Line([0; LINE_NUMBERS]));
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Lines of a token, with padding.
    fn stride(&self) -> usize {
        self.inputs.div_ceil(LINE_NUMBERS) | 1
    }

    /// The lines of a token: its inputs and padding.
    pub fn token(&self, token: usize) -> &[Bf16Line] {
        &self.lines[token * self.stride()..][..self.stride()]
    }

    /// The lines of each token, for threads to fill. A thread locks a token once.
    pub fn tokens_mut(&mut self) -> Vec<Mutex<&mut [Bf16Line]>> {
        let stride = self.stride();
        self.lines.chunks_mut(stride).map(Mutex::new).collect()
    }
}

/// The tokens of a group, whose pairs lie side by side: as many as an AMX tile has columns.
pub const GROUP_TOKENS: usize = 16;
/// Inputs of a step: one pair.
pub const PAIR_INPUTS: usize = 2;
/// The number of steps is padded to a multiple of 16: as many as an AMX tile has.
const STEP_PADDING: usize = 16;

/// 64 bytes as 16 words. Each is a pair of bf16, four bytes, or the bits of an f32 sum.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct U32Line(pub [u32; GROUP_TOKENS]);

/// The padded number of steps.
pub fn steps(inputs: usize) -> usize {
    inputs.div_ceil(PAIR_INPUTS).next_multiple_of(STEP_PADDING)
}

/// `[groups][steps]` lines: pairs of 16 tokens side by side. A step is two inputs. Line k of a group has the numbers 2k and
/// 2k + 1 of token 0, then of token 1, and so on: the order of `vdpbf16ps` and of AMX tiles. Zeros fill incomplete groups of
/// tokens, and steps up to a multiple of `STEP_PADDING`.
#[derive(Debug, Default)]
pub struct TileInput {
    lines: Vec<U32Line>,
    inputs: usize,
    tokens: usize,
}

impl TileInput {
    /// Changes the shape. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, inputs: usize) {
        (self.tokens, self.inputs) = (tokens, inputs);
        self.lines.resize(self.groups() * self.steps(), U32Line([0; GROUP_TOKENS]));
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn groups(&self) -> usize {
        self.tokens.div_ceil(GROUP_TOKENS)
    }

    pub fn steps(&self) -> usize {
        steps(self.inputs)
    }

    pub fn lines(&self, groups: Range<usize>) -> &[U32Line] {
        &self.lines[groups.start * self.steps()..groups.end * self.steps()]
    }

    /// The lines of each group, for threads to fill. A thread locks a group once.
    pub fn groups_mut(&mut self) -> Vec<Mutex<&mut [U32Line]>> {
        let steps = self.steps().max(1);
        self.lines.chunks_mut(steps).map(Mutex::new).collect()
    }
}
