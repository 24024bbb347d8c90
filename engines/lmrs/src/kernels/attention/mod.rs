//! Attention over tiles of keys and values: queries times keys, the softmax, and weights times values.
//!
//! Both products are `sums += left * right`, where `right` is a tile of the KV cache. In a tile of keys, a row is one dimension
//! of all positions of the tile. In a tile of values, a row is one position. So one kernel serves both, and no sum crosses vector
//! lanes.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "SIMD instructions"))]

#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use model_files::{Dtype, blocks};

#[cfg(target_arch = "x86_64")]
use super::Instructions;
use super::Level;
use super::lanes::exp;
#[cfg(target_arch = "x86_64")]
use x86::{avx2, avx512};

/// The number of positions in a block of the KV cache. A tile is the keys or the values of one head in one block.
pub const BLOCK_POSITIONS: usize = 64;

/// The number type of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDtype {
    F16,
    F32,
}

/// The keys of a tile of the KV cache, or a strip of its values (at most 64 dimensions side by side): consecutive rows of `width`
/// numbers. `width` is a multiple of 16 and at most 64.
#[derive(Debug, Clone, Copy)]
pub struct CacheRows<'a> {
    pub bytes: &'a [u8],
    pub kv_dtype: KvDtype,
    pub width: usize,
    /// The distance in bytes to the tile that is read next, which is prefetched; 0 prefetches nothing.
    pub ahead: usize,
}

/// Rows of f32 whose starts are `stride` numbers apart.
#[derive(Debug, Clone, Copy)]
pub struct LeftRows<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub rows: usize,
}

/// The sums that products are added to: rows of f32 whose starts are `stride` numbers apart.
#[derive(Debug)]
pub struct Sums<'a> {
    pub numbers: &'a mut [f32],
    pub stride: usize,
}

/// The operands of a product: some rows times the first `depth` rows of a tile.
#[derive(Debug)]
pub struct Product<'a> {
    pub left: LeftRows<'a>,
    pub right: CacheRows<'a>,
    pub depth: usize,
    pub sums: Sums<'a>,
}

/// `sums[row][column] += sum over k of left[row][k] * right[k][column]`, for `k` below `depth`.
pub fn accumulate(level: Level, product: Product) {
    let Product { left: a, right: b, depth, sums: c } = &product;
    let depth = *depth;
    assert!(b.width.is_multiple_of(16) && b.width <= BLOCK_POSITIONS, "tiles are whole vectors");
    assert!(b.bytes.len() >= depth * b.width * b.kv_dtype.bytes(), "a tile has its rows");
    if a.rows == 0 || depth == 0 {
        return;
    }
    assert!(a.numbers.len() >= (a.rows - 1) * a.stride + depth, "the rows of the left operand");
    assert!(c.numbers.len() >= (a.rows - 1) * c.stride + b.width, "the rows of the sums");
    match level.instructions() {
        // SAFETY: a `Level` value exists only on a machine that has the level, and all row lengths were checked.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { avx2::accumulate(product) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 | Instructions::Amx => unsafe { avx512::accumulate(product) },
        _ => accumulate_portable(product),
    }
}

/// The softmax state of one query, which is updated tile by tile.
#[derive(Debug, Clone, Copy)]
pub struct Softmax {
    /// The largest score so far.
    pub largest: f32,
    /// The sum of `e^(score - largest)` so far.
    pub sum: f32,
}

impl Softmax {
    pub const EMPTY: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// Turns a tile's scores into weights `e^(score - largest)`; positions of the tile outside of `visible` get 0. Returns the
    /// factor by which the caller multiplies the outputs of earlier tiles.
    pub fn step(&mut self, level: Level, scores: &mut [f32; BLOCK_POSITIONS], visible: Range<usize>) -> f32 {
        match level.instructions() {
            // SAFETY: a `Level` value exists only on a machine that has the level.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { avx2::step(self, scores, visible) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Amx => unsafe { avx512::step(self, scores, visible) },
            _ => step(self, scores, visible),
        }
    }

    /// Adds the state of another partition of positions. Returns two factors, by which the caller multiplies the outputs before
    /// it adds them: for those of `self` and for those of `other`.
    pub fn join(&mut self, other: Self) -> (f32, f32) {
        let largest = if self.largest > other.largest { self.largest } else { other.largest };
        let scale = |score: f32| if score == f32::NEG_INFINITY { 0.0 } else { exp(score - largest) };
        let (self_scale, other_scale) = (scale(self.largest), scale(other.largest));
        *self = Self { largest, sum: self.sum * self_scale + other.sum * other_scale };
        (self_scale, other_scale)
    }
}

impl KvDtype {
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Narrows at most 64 numbers. Numbers beyond the range of f16 become the nearest finite f16.
    pub fn narrow<'a>(self, numbers: &[f32], bytes: &'a mut [u8; 4 * BLOCK_POSITIONS]) -> &'a [u8] {
        let bytes = &mut bytes[..self.bytes() * numbers.len()];
        // Neither conversion can fail: the lengths agree, and every number is within bounds or NaN.
        match self {
            Self::F16 => {
                let mut clamped = [0.0; BLOCK_POSITIONS];
                let clamped = &mut clamped[..numbers.len()];
                for (clamped, number) in clamped.iter_mut().zip(numbers) {
                    *clamped = number.clamp(-65504.0, 65504.0);
                }
                blocks::narrow(Dtype::F16, clamped, bytes).unwrap_or_default();
            }
            Self::F32 => blocks::narrow(Dtype::F32, numbers, bytes).unwrap_or_default(),
        }
        bytes
    }
}

/// `accumulate` at the levels `portable` and `neon`.
fn accumulate_portable(product: Product) {
    let Product { left: a, right: b, depth, sums: Sums { numbers: c, stride: c_stride } } = product;
    let mut right_row = [0.0; BLOCK_POSITIONS];
    let right_row = &mut right_row[..b.width];
    let row_bytes = b.width * b.kv_dtype.bytes();
    for (k, stored) in b.bytes.chunks_exact(row_bytes).take(depth).enumerate() {
        widen(b.kv_dtype, stored, right_row);
        for row in 0..a.rows {
            let factor = a.numbers[row * a.stride + k];
            let sums = &mut c[row * c_stride..][..b.width];
            sums.iter_mut().zip(&*right_row).for_each(|(sum, number)| *sum += factor * number);
        }
    }
}

fn widen(kv_dtype: KvDtype, bytes: &[u8], numbers: &mut [f32]) {
    let dtype = match kv_dtype {
        KvDtype::F16 => Dtype::F16,
        KvDtype::F32 => Dtype::F32,
    };
    // Widening fails only if the lengths disagree, which cannot happen here.
    blocks::widen(dtype, bytes, numbers).unwrap_or_default();
}

const LANES: usize = 16;

/// The body of `Softmax::step`. Each level inlines it, so the compiler uses the vectors of that level.
#[inline(always)]
fn step(state: &mut Softmax, scores: &mut [f32; BLOCK_POSITIONS], visible: Range<usize>) -> f32 {
    if visible.start == 0 && visible.end >= BLOCK_POSITIONS {
        return weigh::<false>(state, scores);
    }
    if visible.is_empty() {
        scores.fill(0.0);
        return 1.0;
    }
    for (position, score) in scores.iter_mut().enumerate() {
        let hidden = position < visible.start || position >= visible.end;
        *score = if hidden { f32::NEG_INFINITY } else { *score };
    }
    weigh::<true>(state, scores)
}

/// Turns scores into weights, and returns the factor for the outputs of earlier tiles. Hidden positions have the score -infinity.
#[inline(always)]
fn weigh<const HAS_HIDDEN: bool>(state: &mut Softmax, scores: &mut [f32; BLOCK_POSITIONS]) -> f32 {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for (maximum, score) in maxima.iter_mut().zip(chunk) {
            *maximum = larger(*score, *maximum);
        }
    }
    let largest = larger(reduce(maxima, larger), state.largest);
    // The exponential is seldom needed: in most tiles, no score is larger than all earlier scores.
    let correction = if largest == state.largest { 1.0 } else { exp(state.largest - largest) };
    let mut sums = [0.0; LANES];
    for chunk in scores.as_chunks_mut::<LANES>().0 {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = if HAS_HIDDEN && *score == f32::NEG_INFINITY { 0.0 } else { exp(*score - largest) };
            *sum += *score;
        }
    }
    state.largest = largest;
    state.sum = state.sum * correction + reduce(sums, |a, b| a + b);
    correction
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Reduces the lanes to one number: combines the two halves until one lane is left, as vector instructions do.
#[inline(always)]
fn reduce(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
    }
    lanes[0]
}
