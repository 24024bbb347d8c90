//! Products with matrices of floats, whose rows lie as files have them; and of many tokens with panels, widened to such rows.
//!
//! ```text
//! decode   up to 8 tokens: some rows of weights, from far-apart places, are dotted with the activations as they are
//! prefill  any number: activations are packed once with tokens side by side, then tiles of outputs x tokens are summed up
//! widened  panels as rows of bf16, a block at a time, where a level has products of pairs of them
//! ```
//!
//! `dots` and `tiles` are written once, over `Lanes`; a level is a type of lanes, and where it has products of pairs of
//! bf16, another way to fill a tile. Every sum of one output is taken in the order of its inputs, whichever the tokens
//! beside it, so that a token's outputs do not depend on how many others are decoded with it.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod dots;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod portable;
#[cfg(test)]
mod tests;
mod tiles;
mod widened;

#[cfg(target_arch = "aarch64")]
#[path = "arm.rs"]
mod machine;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "other.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod machine;

use packed::Line;

use super::{Level, Outputs};
use crate::matrix::{Format, Matrix, PANEL};
use crate::rows::Rows;

pub use packed::{Kind, Packed, TOKENS};

/// As many tokens as `decode` takes.
pub const DECODE_TOKENS: usize = 8;

/// How many far-apart places are read at once with so many tokens: memory gives more to who walks several, up to
/// four, and registers hold sums of so many rows for each token. (Measured: notes/k1.md.)
pub fn stretches(tokens: usize) -> usize {
    match tokens {
        0..=6 => 4,
        _ => 3,
    }
}

/// `x` is `[tokens][inputs]`; `outs` are `stretches(tokens)` ranges of outputs, none longer than the first, walked side by
/// side.
pub fn decode(level: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    let tokens = outs[0].tokens();
    assert_eq!(x.len(), tokens * matrix.inputs, "activations and the inputs of a matrix");
    assert!((1..=DECODE_TOKENS).contains(&tokens), "tokens that are decoded at once");
    assert!(outs.len() == stretches(tokens) && !matrix.format.is_panels(), "how `decode` is called");
    let longest = outs[0].outputs().len();
    assert!(outs.iter().all(|out| out.outputs().len() <= longest && out.tokens() == tokens));
    assert!(outs.iter().all(|out| out.outputs().end <= matrix.outputs), "outputs of the matrix");
    machine::decode(level, matrix, x, outs);
}

/// Whether `prefill` takes panels of such numbers, for so many tokens, and is the faster way to their product. Both operands are
/// rounded to bf16 then: each product is off by at most 2^-8 of itself, and the sums are f32.
pub fn widens(level: Level, format: Format, tokens: usize) -> bool {
    format.is_panels() && machine::widens(level, format, tokens)
}

/// How `prefill` wants the activations for such weights.
pub fn packing(level: Level, format: Format) -> Kind {
    machine::packing(level, format)
}

/// The tokens from `first` on into a group of `packed`.
pub fn pack(level: Level, kind: Kind, x: &Rows, first: usize, lines: &mut [Line]) {
    assert!(first < x.tokens() && lines.len() == kind.steps(x.width), "a group of the tokens");
    machine::pack(level, kind, x, first, lines);
}

/// `packed` has all tokens of `out`, of the kind that `packing` says.
pub fn prefill(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    assert_eq!(packed.inputs(), matrix.inputs, "activations and the inputs of a matrix");
    assert_eq!(packed.kind(), packing(level, matrix.format), "how activations are packed");
    assert!(packed.tokens() == out.tokens() && out.outputs().end <= matrix.outputs);
    if matrix.format.is_panels() {
        assert!(packed.kind() == Kind::Pairs, "{level} has no products of pairs");
        assert!(out.outputs().start.is_multiple_of(PANEL), "the first output of a panel");
    }
    machine::prefill(level, matrix, packed, out);
}
