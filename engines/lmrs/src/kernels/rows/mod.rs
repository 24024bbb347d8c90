//! Products with matrices of floats in row layout. Packed formats are unpacked to such rows; for many tokens, panels are
//! widened to such rows. `../README.md` defines row, panel and tile; a level is a set of instructions.
//!
//! ```text
//! dots:     products of a few rows of weights, far apart in the matrix, with the activations of a few tokens
//! blocked:  several tokens use rows that stay in the second-level cache; for levels that multiply pairs of bf16
//! tiles:    for many tokens: activations are packed with tokens side by side, then AMX tiles of outputs x tokens are summed;
//!           panels become rows of bf16, a few rows at a time
//! unpacked: packed formats, whose rows become rows of bf16, a few rows at a time
//! ```
//!
//! `dots` is written once, over `Lanes`. A level has one type of lanes, or two if it multiplies pairs of bf16. `dots` and
//! `blocked` compute each sum in the same order for any number of tokens. So a token's results do not depend on the other
//! tokens of a batch. Levels differ in the number of lanes, and in whether they round a product before they add it.

mod activations;
#[cfg(target_arch = "x86_64")]
mod blocked;
mod dots;
pub(crate) mod lanes;
mod levels;
#[cfg(target_arch = "x86_64")]
pub(crate) mod paired;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod unpacked;

use activations::Bf16Line;
use lanes::Float;

use super::panels::PanelFormat;
use super::{Level, Outputs};
use crate::formats::Format;
use crate::matrix::{Matrix, PANEL_OUTPUTS, Rows};

pub use activations::{AlignedBf16, GROUP_TOKENS, PaddedRows, TileInput, U32Line};
#[cfg(target_arch = "x86_64")]
pub use levels::tiles_compute_correctly;
#[cfg(all(test, target_arch = "x86_64"))]
pub use tiles::amx::tests::emulated_panel_product;
pub(crate) use unpacked::PackedBf16;

/// Batches of up to this number of tokens count as decoding: they never use tiles, and each row of weights is read once.
pub const MAX_DECODE_TOKENS: usize = 8;

/// The fewest tokens for which products with rows of bf16 use `blocked`. (Measured: `MEASURED.md`.)
const MIN_BLOCKED_TOKENS: usize = 5;

/// Rows that `blocked` multiplies at once.
pub const BLOCKED_ROWS: usize = 4;

/// Matrices of at least this size count as in memory, and smaller ones as in a cache.
const MIN_UNCACHED_BYTES: usize = 4 << 20;

/// Activations of a token up to this size stay in the first-level cache until the next row. Larger ones come from the
/// second-level cache for each row, so several rows share each read. (Measured: `MEASURED.md`.)
const MAX_CACHED_TOKEN_BYTES: usize = 12 << 10;

/// The kernels of a format in row layout. Only this module calls them, and it asserts their preconditions.
pub struct RowKernels {
    /// Bytes of a weight in an unpacked row.
    pub number_bytes: usize,
    /// The product with a few tokens in f32.
    dot: fn(Level, &Matrix, &[f32], &mut [Outputs]),
    /// The products with pairs of bf16, if the format has them.
    pairs: Option<PairKernels>,
}

#[derive(Clone, Copy)]
struct PairKernels {
    /// The most tokens for `dot`. Larger batches use `blocked` or tiles.
    max_tokens: usize,
    dot: fn(Level, &Matrix, &[u16], &mut [Outputs]),
    blocked: fn(Level, &Matrix, &PaddedRows, &mut Outputs),
}

impl RowKernels {
    /// The kernels of a format that packs bf16 into fewer bits.
    pub(crate) const fn of_packed<P: PackedBf16>() -> Self {
        let pairs = PairKernels {
            max_tokens: P::MAX_DOT_TOKENS,
            dot: |level, matrix, x, outs| levels::dot_packed::<P>(level, matrix, x, &mut outs[0]),
            blocked: unpacked::multiply_blocked::<P>,
        };
        Self { number_bytes: 2, dot: unpacked::dot::<P>, pairs: Some(pairs) }
    }

    /// The kernels of a format whose numbers are widened to f32.
    pub(crate) const fn of<F: Float>() -> Self {
        Self {
            number_bytes: F::BYTES,
            dot: |level, matrix, x, outs| levels::dot::<F>(level, &matrix.floats(), x, outs),
            pairs: None,
        }
    }

    /// The same kernels, with products of bf16 pairs added.
    pub(crate) const fn with_pairs(self) -> Self {
        let pairs = PairKernels {
            max_tokens: MIN_BLOCKED_TOKENS - 1,
            dot: |level, matrix, x, outs| levels::dot_pairs(level, &matrix.floats(), x, outs),
            blocked: |level, matrix, x, out| levels::multiply_blocked(level, &matrix.floats(), x, out),
        };
        Self { pairs: Some(pairs), ..self }
    }
}

/// The function of a format that multiplies through tiles. Only this module calls it.
#[derive(Clone, Copy)]
pub struct TileKernel(fn(Level, &Matrix, &TileInput, &mut Outputs));

impl TileKernel {
    /// Tiles from rows of bf16 as files store them.
    pub const OF_BF16_ROWS: Self =
        Self(|level, matrix, packed, out| levels::tile(level, &matrix.floats(), packed, out));

    /// Tiles from packed rows, unpacked a few at a time.
    pub(crate) const fn of_packed<P: PackedBf16>() -> Self {
        Self(unpacked::tile::<P>)
    }

    /// Tiles from panels, widened to rows of bf16 a few at a time.
    pub(crate) const fn of_panels<N: PanelFormat>() -> Self {
        Self(levels::tile_panels::<N>)
    }
}

/// The number of streams: ranges of the matrix's rows that `dot` reads at once. Rows of several streams share each read of the
/// activations. If one token's activations stay in the first-level cache, this saves little. A matrix in memory is then one
/// stream, which a Zen 4 reads fastest. A Sapphire Rapids reads several streams faster, so the level `amx` keeps them
/// (`MEASURED.md`). Packed rows are always one stream.
pub fn streams(level: Level, matrix: &Matrix, tokens: usize) -> usize {
    if matrix.format.packed_rows().is_some() {
        return 1;
    }
    let number_bytes = if uses_bf16(level, matrix.format) { 2 } else { 4 };
    let fits_first_cache = matrix.inputs * number_bytes <= MAX_CACHED_TOKEN_BYTES;
    let is_sequential = tokens == 1
        && fits_first_cache
        && matrix.bytes() >= MIN_UNCACHED_BYTES
        && !levels::several_streams_are_faster(level);
    if is_sequential { 1 } else { levels::rows_at_once(level) }
}

/// Activations `[tokens][inputs]` in the number type of `dot`.
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

/// Whether `dot` takes bf16 activations: if both the level and the format have products of pairs.
pub fn uses_bf16(level: Level, format: &Format) -> bool {
    pair_kernels(format).is_some() && has_pairs(level)
}

fn pair_kernels(format: &Format) -> Option<PairKernels> {
    format.rows()?.pairs
}

/// Rounds to the nearest bf16, ties to even.
pub fn narrow(level: Level, x: &[f32], narrowed: &mut AlignedBf16) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    narrowed.resize(x.len());
    levels::narrow(level, x, narrowed.all_mut());
}

/// Multiplies a few tokens. `outs` has an entry for each of the `streams`: ranges of outputs, none longer than the first. Above
/// `MAX_DECODE_TOKENS` tokens the weights are read more than once, so they should fit into the second-level cache.
pub fn dot(level: Level, matrix: &Matrix, x: Activations, outs: &mut [Outputs]) {
    let is_bf16 = matches!(x, Activations::Bf16(_));
    assert_eq!(is_bf16, uses_bf16(level, matrix.format), "the number type of `dot`");
    let tokens = outs[0].tokens();
    assert_eq!(x.len(), tokens * matrix.inputs, "activations for the inputs of the matrix");
    assert!(
        outs.len() == streams(level, matrix, tokens) && !matrix.format.is_panels(),
        "the streams of the matrix"
    );
    let longest = outs[0].outputs().len();
    assert!(outs.iter().all(|out| out.outputs().len() <= longest && out.tokens() == tokens));
    assert!(outs.iter().all(|out| out.outputs().end <= matrix.outputs), "outputs of the matrix");
    let kernels = matrix.format.rows().expect("a matrix in rows");
    match (x, kernels.pairs) {
        (Activations::F32(x), _) => (kernels.dot)(level, matrix, x, outs),
        (Activations::Bf16(x), Some(pairs)) => (pairs.dot)(level, matrix, x, outs),
        (Activations::Bf16(_), None) => unreachable!("the number type of `dot`"),
    }
}

/// Whether products with this number of tokens use tiles, which are faster. Activations are then rounded to bf16, and so are
/// the weights of panels: each product is off by at most 2^-8 of itself, with panels 2^-7. The sums are f32.
pub fn uses_tiles(level: Level, format: &Format, tokens: usize) -> bool {
    format.tile.is_some() && tokens > MAX_DECODE_TOKENS && levels::has_tiles(level)
}

/// Whether products with this number of tokens use `multiply_blocked`, which gives the same bits as `dot` in less time.
pub fn uses_blocked(level: Level, format: &Format, tokens: usize) -> bool {
    let is_large_batch = pair_kernels(format).is_some_and(|pairs| tokens > pairs.max_tokens);
    is_large_batch && has_pairs(level) && !uses_tiles(level, format, tokens)
}

/// Prepares one token for `multiply_blocked`: rounds to the nearest bf16, ties to even.
pub fn narrow_lines(level: Level, x: &[f32], lines: &mut [Bf16Line]) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    assert!(x.len() <= lines.len() * activations::LINE_NUMBERS, "lines of a token");
    levels::narrow_lines(level, x, lines);
}

/// Multiplies all tokens of `x` with the rows of `out`'s outputs, and prefetches the following rows for the next call.
pub fn multiply_blocked(level: Level, matrix: &Matrix, x: &PaddedRows, out: &mut Outputs) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    let pairs = pair_kernels(matrix.format).expect("weights with products of pairs");
    assert_eq!(x.inputs(), matrix.inputs, "activations for the inputs of the matrix");
    assert!(
        x.tokens() == out.tokens() && x.tokens() > pairs.max_tokens && out.outputs().end <= matrix.outputs
    );
    (pairs.blocked)(level, matrix, x, out);
}

/// Whether a level multiplies pairs of bf16. `pack` and `tile` require it.
pub fn has_pairs(level: Level) -> bool {
    levels::has_pairs(level)
}

/// Packs the tokens from `first` on into the lines of one group of a `TileInput`.
pub fn pack(level: Level, x: &Rows, first: usize, lines: &mut [U32Line]) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    assert!(first < x.tokens() && lines.len() == activations::steps(x.width), "a group of the tokens");
    levels::pack(level, x, first, lines);
}

/// Multiplies all tokens of `packed` with the rows of `out`'s outputs, through tiles.
pub fn tile(level: Level, matrix: &Matrix, packed: &TileInput, out: &mut Outputs) {
    assert!(has_pairs(level), "{level} has no products of pairs");
    let TileKernel(tile) = matrix.format.tile.expect("weights with a tile function");
    assert_eq!(packed.inputs(), matrix.inputs, "activations for the inputs of the matrix");
    assert!(packed.tokens() == out.tokens() && out.outputs().end <= matrix.outputs);
    if matrix.format.is_panels() {
        assert!(out.outputs().start.is_multiple_of(PANEL_OUTPUTS), "the first output of a panel");
    }
    tile(level, matrix, packed, out);
}
