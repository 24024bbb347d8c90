//! Lossless bf16 in little more than twelve bits: rows with exponents of four bits.
//!
//! The weights of a row have similar magnitudes, so sixteen exponents cover nearly all of them. A row lists these exponents,
//! and each number has the index of one. The few numbers with other exponents are stored whole, as exceptions.
//!
//! ```text
//! a block   sixteen rows (the last of a matrix may have fewer). Rows of more than 2,048 inputs are cut into equal parts, and
//!           the first parts of all rows come before the second ones
//! a group   a part of four of its rows: their heads, a line of 64 bytes each; then for each 128 inputs a stretch of three
//!           lines of the first row, of the second, the third, the fourth
//!
//! a head    16 exponents; the number of exceptions, u16; from byte 20 on, the position (within the part) and the bits of
//!           each exception, u16
//! stretch   two lines with sign and mantissa of each number, one byte each: word i of the first has inputs i and 32 + i, of the
//!           second 64 + i and 96 + i. One line with exponent indices, four bits each: word i has inputs i, 32 + i, 64 + i and
//!           96 + i
//! ```
//!
//! So each read of the activations serves four rows, and a part of them stays in the first-level cache for sixteen rows. Memory
//! is still read sequentially.
//!
//! A row of 2,048 inputs takes 12.25 bits a number. A matrix with too many exceptions for a head stays unpacked.
//!
//! `pack` writes the format. Readers are a plain loop here, and code for each x86 level. `fused` multiplies one or two tokens
//! from registers; more tokens use rows that were unpacked into a cache.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "instructions of a level"))]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
#[cfg(target_arch = "x86_64")]
mod fused;
#[cfg_attr(target_arch = "x86_64", path = "x86.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "other.rs")]
mod levels;
mod pack;
#[cfg(test)]
mod tests;

use std::ops::Range;

use model_files::Dtype;

use super::{Format, Storage, Unfit};
use crate::kernels::Level;
#[cfg(target_arch = "x86_64")]
use crate::kernels::Outputs;
use crate::kernels::rows::{PackedBf16, Tile};
use crate::matrix;
#[cfg(target_arch = "x86_64")]
use crate::matrix::Matrix;
use block::Place;
use pack::pack;

pub use block::{Block, Group};

pub static BF16Z: Format = Format {
    name: "bf16z",
    dtype: Dtype::BF16,
    by_name: true,
    storage: Storage::packed_rows::<InBf16z>(),
    tile: Some(Tile::of_packed::<InBf16z>()),
    #[cfg(test)]
    packed: Some((2, "1d168c4316bc8bce")),
};

pub struct InBf16z;

impl PackedBf16 for InBf16z {
    const BLOCK: usize = BLOCK;
    const FEW_TOKENS: usize = FUSED;

    /// Rows of whole stretches.
    fn takes(inputs: usize) -> bool {
        takes(inputs)
    }

    fn row_bytes(inputs: usize) -> usize {
        row_bytes(inputs)
    }

    /// A whole block if rows have several parts.
    fn unpacked_together(inputs: usize) -> usize {
        if parts(inputs).count() > 1 { BLOCK } else { TOGETHER }
    }

    fn pack(inputs: usize, rows: &[u8], block: &mut [u8]) -> Result<(), Unfit> {
        pack(inputs, rows, block)
    }

    fn unpack(level: Level, block: matrix::Block, rows: Range<usize>, into: &mut [u16]) {
        Block::of(block).unpack(level, rows, into);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn dot(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
        // SAFETY: the caller guarantees this.
        unsafe { fused::multiply(matrix, x, out) }
    }
}

/// The most tokens that are multiplied from registers.
const FUSED: usize = 2;

/// Rows that are packed together, as a group.
const TOGETHER: usize = 4;
/// Rows of a block: groups whose parts are interleaved.
const BLOCK: usize = 16;

/// Bytes of a line.
const LINE: usize = 64;
/// The most inputs of a part: such activations and four rows of them are half of a first-level cache.
const PART: usize = 2048;
/// Inputs of a stretch, and its bytes.
const STRETCH: usize = 128;
const STRETCH_BYTES: usize = 3 * LINE;
/// Exponents in the list of a row.
const EXPONENTS: usize = 16;
/// Offsets in the head: the number of exceptions, and the first exception.
const COUNT: usize = EXPONENTS;
const ASIDE: usize = 20;

/// Whether rows with this number of inputs can be packed: they must be whole stretches.
fn takes(inputs: usize) -> bool {
    inputs.is_multiple_of(STRETCH)
}

/// The parts of a row: as few as possible, all as long as the first, except for the last.
fn parts(inputs: usize) -> impl Iterator<Item = Range<usize>> {
    let count = inputs.div_ceil(PART).max(1);
    let each = inputs.div_ceil(count).next_multiple_of(STRETCH).max(1);
    (0..inputs).step_by(each).map(move |start| start..inputs.min(start + each))
}

fn row_bytes(inputs: usize) -> usize {
    parts(inputs).map(|part| part_bytes(part.len())).sum()
}

fn part_bytes(inputs: usize) -> usize {
    LINE + inputs / STRETCH * STRETCH_BYTES
}

/// A number that is stored whole: an exception.
#[derive(Debug, Clone, Copy)]
pub struct Aside([u8; 4]);

impl Aside {
    pub fn place(self) -> usize {
        usize::from(u16::from_le_bytes([self.0[0], self.0[1]]))
    }

    pub fn bits(self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
}

/// The exceptions of a head, in the order of their positions.
fn asides(head: &[u8]) -> impl Iterator<Item = Aside> {
    let count = usize::from(u16::from_le_bytes([head[COUNT], head[COUNT + 1]]));
    head[ASIDE..].as_chunks::<4>().0.iter().take(count).map(|bytes| Aside(*bytes))
}

/// The portable unpacking, number by number.
fn unpack_plainly<const ROWS: usize>(heads: [&[u8]; ROWS], group: &Group, first: usize, into: &mut Place) {
    group.each_stretch::<ROWS>(first, into, |row, stretch, into| {
        for (at, number) in into.iter_mut().enumerate() {
            let (set, word) = (at / 32, at % 32);
            let byte = u16::from(stretch[set / 2 * LINE + 2 * word + set % 2]);
            let exponent = stretch[2 * LINE + 2 * word + set / 2] >> (set % 2 * 4) & 15;
            *number = (byte & 0x80) << 8 | u16::from(heads[row][usize::from(exponent)]) << 7 | byte & 0x7f;
        }
    });
}
