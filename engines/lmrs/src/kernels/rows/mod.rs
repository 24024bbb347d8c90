//! Products with matrices of floats, whose rows lie as files have them or are unpacked to that; and of many tokens with panels,
//! widened to such rows.
//!
//! ```text
//! dots   some rows of weights, from far-apart places, are dotted with the activations of a few tokens at a time
//! near   pairs of bf16, where a level multiplies them: all of several tokens pass over rows that stay in a second cache
//! tiles  the same where a level has tiles of AMX: activations are packed once with tokens side by side, then tiles of outputs x
//!        tokens are summed up; panels become rows of bf16, a block at a time
//! ```
//!
//! `dots` is written once, over `Lanes`, and a level is a type of lanes; or two of them, where it multiplies pairs of bf16. It takes
//! each sum in one order, that of its lanes, however many tokens there are, and `near` takes it in the same: so what they compute
//! does not depend on which tokens came together. Levels differ from each other in the number of lanes, and in whether they round
//! a product before they add it.

mod aligned;
mod apart;
mod dots;
pub(crate) mod lanes;
mod packed;
mod portable;
#[cfg(test)]
mod tests;
mod unpacked;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod near;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod paired;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "aarch64")]
#[path = "arm.rs"]
mod machine;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "other.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod machine;

use apart::Numbers;
use lanes::Float;

use super::panels::Numbers as PanelNumbers;
use super::{Level, Outputs};
use crate::formats::Format;
use crate::matrix::{Matrix, PANEL};
use crate::rows::Rows;

pub use aligned::Aligned;
pub use apart::Apart;
#[cfg(target_arch = "x86_64")]
pub use machine::tiles_are_right;
pub use packed::{Line, Packed, TOKENS};
#[cfg(all(test, target_arch = "x86_64"))]
pub use tiles::amx::tests::modelled_panels;
pub(crate) use unpacked::PackedBf16;

/// So many tokens are decoded together: never in tiles, and each row of weights is read once for all of them.
pub const DECODE_TOKENS: usize = 8;

/// From so many tokens on rows of bf16, as pairs, stay near while all of them pass. (Measured: `MEASURED.md`.)
const SEVERAL: usize = 5;

/// Rows that tokens pass over at once.
pub const PASSED_ROWS: usize = 4;

/// Of one row after the other, for one token, this and more is read fastest: a smaller matrix may lie in a cache.
const FROM_MEMORY: usize = 4 << 20;

/// Activations of a token that are in a first cache still when the next row wants them. Larger ones come from the second one for
/// each row, so that several rows are to share them. (Measured: `MEASURED.md`.)
const STAYING_BYTES: usize = 12 << 10;

/// The kernels of a format whose matrices lie in rows. This module alone calls them, and asserts before what they rely on.
pub struct RowKernels {
    /// Of a number as kernels multiply it.
    pub number_bytes: usize,
    /// A few tokens in f32.
    dot: fn(Level, &Matrix, &[f32], &mut [Outputs]),
    /// Where a level multiplies pairs of bf16, of rows that are such numbers.
    pairs: Option<Pairs>,
}

#[derive(Clone, Copy)]
struct Pairs {
    /// Tokens that `dot` takes at most: more of them pass over rows that stay near.
    few: usize,
    dot: fn(Level, &Matrix, &[u16], &mut [Outputs]),
    pass: fn(Level, &Matrix, &Apart, &mut Outputs),
}

impl RowKernels {
    /// Of bf16 in fewer bits.
    pub(crate) const fn of_packed<P: PackedBf16>() -> Self {
        let pairs = Pairs {
            few: P::FEW_TOKENS,
            dot: |level, matrix, x, outs| machine::dot_packed::<P>(level, matrix, x, &mut outs[0]),
            pass: unpacked::pass::<P>,
        };
        Self { number_bytes: 2, dot: unpacked::dot::<P>, pairs: Some(pairs) }
    }

    /// Of numbers that are widened to f32.
    pub(crate) const fn of<F: Float>() -> Self {
        Self {
            number_bytes: F::BYTES,
            dot: |level, matrix, x, outs| machine::dot::<F>(level, &matrix.floats(), x, outs),
            pairs: None,
        }
    }

    /// Those numbers being bf16, as pairs too.
    pub(crate) const fn with_pairs(self) -> Self {
        let pairs = Pairs {
            few: SEVERAL - 1,
            dot: |level, matrix, x, outs| machine::dot_pairs(level, &matrix.floats(), x, outs),
            pass: |level, matrix, x, out| machine::pass(level, &matrix.floats(), x, out),
        };
        Self { pairs: Some(pairs), ..self }
    }
}

/// How a format fills tiles, which this module alone calls, too.
#[derive(Clone, Copy)]
pub struct Tile(fn(Level, &Matrix, &Packed, &mut Outputs));

impl Tile {
    /// Of rows of bf16 as files have them.
    pub const OF_ROWS: Self =
        Self(|level, matrix, packed, out| machine::tile(level, &matrix.floats(), packed, out));

    /// Unpacked to such rows, some at a time.
    pub(crate) const fn of_packed<P: PackedBf16>() -> Self {
        Self(unpacked::tile::<P>)
    }

    /// Widened to rows of bf16, a block at a time.
    pub(crate) const fn of_panels<N: PanelNumbers>() -> Self {
        Self(machine::tile_panels::<N>)
    }
}

/// How many far-apart places are read at once. Several rows at once share what is read of the tokens; but a single token's
/// rows are read from memory, which on most processors gives most to who walks on. (Measured: `MEASURED.md`.)
pub fn stretches(level: Level, matrix: &Matrix, tokens: usize) -> usize {
    if matrix.format.packed_rows().is_some() {
        return 1;
    }
    let number_bytes = if takes_bf16(level, matrix.format) { 2 } else { 4 };
    let stays = matrix.inputs * number_bytes <= STAYING_BYTES;
    let walks_on = tokens == 1 && stays && matrix.bytes() >= FROM_MEMORY && !machine::reads_apart(level);
    if walks_on { 1 } else { machine::rows(level) }
}

/// Activations `[tokens][inputs]`, as `dot` wants them.
#[derive(Debug, Clone, Copy)]
pub enum Activations<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
}

impl Activations<'_> {
    fn len(self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
        }
    }
}

/// Whether they are to be bf16, beside weights of this format: where a level multiplies pairs of them.
pub fn takes_bf16(level: Level, format: &Format) -> bool {
    pairs(format).is_some() && has_pairs(level)
}

fn pairs(format: &Format) -> Option<Pairs> {
    format.rows()?.pairs
}

/// To the nearest number in bf16, ties to even.
pub fn narrow(level: Level, x: &[f32], narrowed: &mut Aligned) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    narrowed.resize(x.len());
    machine::narrow(level, x, narrowed.all_mut());
}

/// `outs` are `stretches` ranges of outputs, none longer than the first, walked side by
/// side. More than `DECODE_TOKENS` tokens read the weights more than once: they are to fit into a second cache.
pub fn dot(level: Level, matrix: &Matrix, x: Activations, outs: &mut [Outputs]) {
    let narrowed = matches!(x, Activations::Bf16(_));
    assert_eq!(narrowed, takes_bf16(level, matrix.format), "activations as the level wants them");
    let tokens = outs[0].tokens();
    assert_eq!(x.len(), tokens * matrix.inputs, "activations and the inputs of a matrix");
    assert!(
        outs.len() == stretches(level, matrix, tokens) && !matrix.format.is_panels(),
        "how `dot` is called"
    );
    let longest = outs[0].outputs().len();
    assert!(outs.iter().all(|out| out.outputs().len() <= longest && out.tokens() == tokens));
    assert!(outs.iter().all(|out| out.outputs().end <= matrix.outputs), "outputs of the matrix");
    let kernels = matrix.format.rows().expect("a matrix in rows");
    match (x, kernels.pairs) {
        (Activations::F32(x), _) => (kernels.dot)(level, matrix, x, outs),
        (Activations::Bf16(x), Some(pairs)) => (pairs.dot)(level, matrix, x, outs),
        (Activations::Bf16(_), None) => unreachable!("activations as the level wants them"),
    }
}

/// Whether so many tokens go through tiles, because that is the faster way to their product with such weights. Both operands are
/// rounded to bf16 then: each product is off by at most 2^-8 of itself, beside panels 2^-7, and the sums are f32.
pub fn takes_tiles(level: Level, format: &Format, tokens: usize) -> bool {
    format.tile.is_some() && tokens > DECODE_TOKENS && machine::takes_tiles(level)
}

/// Whether so many tokens pass over rows of such weights that stay near, which gives the bits that `dot` gives, sooner.
pub fn takes_near(level: Level, format: &Format, tokens: usize) -> bool {
    let several = pairs(format).is_some_and(|pairs| tokens > pairs.few);
    several && has_pairs(level) && !takes_tiles(level, format, tokens)
}

/// Of one token what `pass` wants, to the nearest number in bf16, ties to even.
pub fn narrow_lines(level: Level, x: &[f32], lines: &mut [Numbers]) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    assert!(x.len() <= lines.len() * apart::NUMBERS, "lines of a token");
    machine::narrow_lines(level, x, lines);
}

/// `x` has all tokens of `out`. Whoever goes on where its outputs end finds the next rows fetched.
pub fn pass(level: Level, matrix: &Matrix, x: &Apart, out: &mut Outputs) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    let pairs = pairs(matrix.format).expect("weights with products of pairs");
    assert_eq!(x.inputs(), matrix.inputs, "activations and the inputs of a matrix");
    assert!(x.tokens() == out.tokens() && x.tokens() > pairs.few && out.outputs().end <= matrix.outputs);
    (pairs.pass)(level, matrix, x, out);
}

/// Whether a level multiplies pairs of bf16: `pack` and `tile` are for such levels alone.
pub fn has_pairs(level: Level) -> bool {
    machine::has_pairs(level)
}

/// The tokens from `first` on into a group of `packed`.
pub fn pack(level: Level, x: &Rows, first: usize, lines: &mut [Line]) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    assert!(first < x.tokens() && lines.len() == packed::steps(x.width), "a group of the tokens");
    machine::pack(level, x, first, lines);
}

/// `packed` has all tokens of `out`.
pub fn tile(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    let Tile(tile) = matrix.format.tile.expect("weights that bf16 holds");
    assert_eq!(packed.inputs(), matrix.inputs, "activations and the inputs of a matrix");
    assert!(packed.tokens() == out.tokens() && out.outputs().end <= matrix.outputs);
    if matrix.format.is_panels() {
        assert!(out.outputs().start.is_multiple_of(PANEL), "the first output of a panel");
    }
    tile(level, matrix, packed, out);
}
