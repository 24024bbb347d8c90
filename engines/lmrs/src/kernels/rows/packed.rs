//! Activations as tiles read them: 16 tokens side by side, a line of 64 bytes for each step.
//!
//! ```text
//! Numbers  a step is an input:      line k of a group has number k of its 16 tokens, as f32
//! Pairs    a step is two inputs:    line k has numbers 2k, 2k+1 of token 0, then of token 1, ... as bf16: the order that
//!                                   `vdpbf16ps` and a tile of AMX want
//! ```
//!
//! Tokens are filled up to whole groups and inputs to `STEPS` steps, with zeros.

use std::ops::Range;
use std::sync::Mutex;

/// Tokens of a group.
pub const TOKENS: usize = 16;
/// Steps are filled up to a multiple of it: what a tile of AMX holds.
pub const STEPS: usize = 16;

/// One step of a group.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u32; TOKENS]);

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Numbers,
    Pairs,
}

impl Kind {
    /// Inputs of a step.
    pub fn inputs(self) -> usize {
        match self {
            Self::Numbers => 1,
            Self::Pairs => 2,
        }
    }

    /// Of so many inputs.
    pub fn steps(self, inputs: usize) -> usize {
        inputs.div_ceil(self.inputs()).next_multiple_of(STEPS)
    }
}

/// `[groups][steps]` lines.
#[derive(Debug, Default)]
pub struct Packed {
    lines: Vec<Line>,
    kind: Kind,
    inputs: usize,
    tokens: usize,
}

impl Packed {
    /// What it holds afterwards is anything.
    pub fn reshape(&mut self, kind: Kind, tokens: usize, inputs: usize) {
        (self.kind, self.tokens, self.inputs) = (kind, tokens, inputs);
        self.lines.resize(self.groups() * self.steps(), Line([0; TOKENS]));
    }

    pub fn kind(&self) -> Kind {
        self.kind
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
        self.kind.steps(self.inputs)
    }

    /// Of these groups.
    pub fn lines(&self, groups: Range<usize>) -> &[Line] {
        &self.lines[groups.start * self.steps()..groups.end * self.steps()]
    }

    /// The groups, for threads to fill: each under a lock that is taken once.
    pub fn groups_mut(&mut self) -> Vec<Mutex<&mut [Line]>> {
        let steps = self.steps().max(1);
        self.lines.chunks_mut(steps).map(Mutex::new).collect()
    }
}

/// 16 steps of 16 tokens, one way round or the other.
pub type Block = [Line; TOKENS];

/// Of one token the numbers of up to 16 steps; those beyond it are zero.
pub fn line(kind: Kind, numbers: &[f32]) -> Line {
    let mut line = Line([0; TOKENS]);
    for (step, numbers) in line.0.iter_mut().zip(numbers.chunks(kind.inputs())) {
        *step = match (kind, numbers) {
            (Kind::Pairs, [first, second]) => {
                u32::from(bf16_from_f32(*first)) | u32::from(bf16_from_f32(*second)) << 16
            }
            (Kind::Pairs, _) => u32::from(bf16_from_f32(numbers[0])),
            (Kind::Numbers, _) => numbers[0].to_bits(),
        };
    }
    line
}

pub fn transpose(block: &mut Block) {
    let from = *block;
    for (row, line) in block.iter_mut().enumerate() {
        for (column, number) in line.0.iter_mut().enumerate() {
            *number = from[column].0[row];
        }
    }
}

/// To the nearest, ties to even; a NaN stays one.
pub fn bf16_from_f32(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
