//! Attention over tiles of keys and values: products of a few rows with a tile, and the softmax between them.
//!
//! Both products are `sums += left * right` where the rows of `right` are what a cache holds: keys with one dimension of all positions in a
//! row, values with one position in a row. So one kernel does both, and no sum ever goes across a vector.

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

/// Positions of a tile.
pub const TILE: usize = 64;

/// How the numbers of a cache are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    F16,
    F32,
}

/// A matrix of a cache: rows of `width` numbers, one after the other. `width` is a multiple of 16 and at most 64.
#[derive(Debug, Clone, Copy)]
pub struct Numbers<'a> {
    pub bytes: &'a [u8],
    pub stored: Stored,
    pub width: usize,
    /// How far after each number lies the one that is read next, in bytes: it is fetched meanwhile. 0 where nobody knows.
    pub ahead: usize,
}

/// Rows of f32 that lie so far apart.
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

/// Some rows by the first `depth` rows of a tile.
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

/// One row's way through the softmax, tile by tile.
#[derive(Debug, Clone, Copy)]
pub struct Softmax {
    pub largest: f32,
    pub sum: f32,
}

impl Softmax {
    pub const BEGIN: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// Scores become weights, all of those outside of `seen` 0. Gives what the outputs so far are to be multiplied with.
    pub fn step(&mut self, level: Level, scores: &mut [f32; TILE], seen: std::ops::Range<usize>) -> f32 {
        levels::step(level, self, scores, seen)
    }

    /// What the outputs of another stretch of positions, and these, are to be multiplied with when they are added up.
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

    /// At most 64 numbers. What f16 cannot hold becomes the nearest that it can.
    pub fn narrow<'a>(self, numbers: &[f32], bytes: &'a mut [u8; 4 * TILE]) -> &'a [u8] {
        let bytes = &mut bytes[..self.bytes() * numbers.len()];
        // Neither can refuse: lengths agree, and every number is within bounds or none.
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
