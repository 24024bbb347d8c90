//! Attention over tiles of keys and values: products of a few rows with a tile, and the softmax between them.
//!
//! Both products are `sums += left * right`, where `right` is a part of a cache. A row of keys has one dimension of all
//! positions; a row of values has one position. So one kernel serves both, and no sum crosses the lanes of a vector.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(not(target_arch = "x86_64"))]
#[path = "other.rs"]
mod levels;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod levels;
mod portable;

use model_files::{Dtype, blocks};

use super::Level;

pub const TILE: usize = 64;

/// The number type of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    F16,
    F32,
}

/// A matrix of a cache: consecutive rows of `width` numbers. `width` is a multiple of 16 and at most 64.
#[derive(Debug, Clone, Copy)]
pub struct Numbers<'a> {
    pub bytes: &'a [u8],
    pub stored: Stored,
    pub width: usize,
    /// The distance in bytes from each number to the next one that will be read, for prefetch; 0 if unknown.
    pub ahead: usize,
}

/// Rows of f32 with a stride.
#[derive(Debug, Clone, Copy)]
pub struct Left<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
    pub rows: usize,
}

/// The sums that products are added to: rows of f32 with a stride.
#[derive(Debug)]
pub struct Sums<'a> {
    pub numbers: &'a mut [f32],
    pub stride: usize,
}

/// The operands of a product: some rows times the first `depth` rows of a tile.
#[derive(Debug)]
pub struct Product<'a> {
    pub left: Left<'a>,
    pub right: Numbers<'a>,
    pub depth: usize,
    pub sums: Sums<'a>,
}

/// `sums[row][column] += sum over k of left[row][k] * right[k][column]`, for `k` below `depth`.
pub fn accumulate(level: Level, product: Product) {
    let Product { left: a, right: b, depth, sums: c } = &product;
    let depth = *depth;
    assert!(b.width.is_multiple_of(16) && b.width <= TILE, "tiles are whole vectors");
    assert!(b.bytes.len() >= depth * b.width * b.stored.bytes(), "a tile has its rows");
    if a.rows == 0 || depth == 0 {
        return;
    }
    assert!(a.numbers.len() >= (a.rows - 1) * a.stride + depth, "rows lie within what is given");
    assert!(c.numbers.len() >= (a.rows - 1) * c.stride + b.width, "rows lie within what is written");
    levels::accumulate(level, product);
}

/// The softmax state of one row, which is updated tile by tile.
#[derive(Debug, Clone, Copy)]
pub struct Softmax {
    pub largest: f32,
    pub sum: f32,
}

impl Softmax {
    pub const BEGIN: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// Turns scores into weights; positions outside of `seen` get 0. Returns the factor for the outputs so far.
    pub fn step(&mut self, level: Level, scores: &mut [f32; TILE], seen: std::ops::Range<usize>) -> f32 {
        levels::step(level, self, scores, seen)
    }

    /// The factors for these outputs and for those of another stretch of positions, before the two are added.
    pub fn join(&mut self, other: Self) -> (f32, f32) {
        let largest = if self.largest > other.largest { self.largest } else { other.largest };
        let scale = |of: f32| if of == f32::NEG_INFINITY { 0.0 } else { super::lanes::exp(of - largest) };
        let (own, others) = (scale(self.largest), scale(other.largest));
        *self = Self { largest, sum: self.sum * own + other.sum * others };
        (own, others)
    }
}

impl Stored {
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Narrows at most 64 numbers. Numbers beyond f16 become the nearest f16.
    pub fn narrow<'a>(self, numbers: &[f32], bytes: &'a mut [u8; 4 * TILE]) -> &'a [u8] {
        let bytes = &mut bytes[..self.bytes() * numbers.len()];
        // Neither conversion can fail: the lengths agree, and every number is within bounds or NaN.
        match self {
            Self::F16 => {
                let mut held = [0.0; TILE];
                let held = &mut held[..numbers.len()];
                for (held, number) in held.iter_mut().zip(numbers) {
                    *held = number.clamp(-65504.0, 65504.0);
                }
                blocks::narrow(Dtype::F16, held, bytes).unwrap_or_default();
            }
            Self::F32 => blocks::narrow(Dtype::F32, numbers, bytes).unwrap_or_default(),
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
