//! Rows of bf16 with exponents of four bits: what is read again is every bit of what was packed.
//!
//! The numbers of a row of weights are of much the same size, so that sixteen exponents are nearly all that it has. A row
//! lists those, and each number names one of them; the few numbers with others are kept aside, whole.
//!
//! ```text
//! four rows: their heads, each a line of 64 bytes and one more for each 4,096 inputs; then for each 128 inputs a stretch of
//!            three lines of the first row, of the second, the third, the fourth. What is read of the activations serves all
//!            of them, and memory is still read from one end to the other. The last of a matrix may be fewer than four
//!
//! the head         16 exponents; how many numbers are kept aside, u16; from byte 20 on the place and the bits of each, u16
//! two lines        of a stretch: of each number sign and mantissa, a byte: word i of the first line has those of inputs i and 32 + i, of the
//!                  second those of 64 + i and 96 + i
//! one line         word i has which exponents inputs i, 32 + i, 64 + i and 96 + i have, four bits each
//! ```
//!
//! A row of 2,048 inputs takes 12.25 bits a number, one of 8,192 12.19. One that has more numbers aside than its head has room for
//! cannot be packed; its matrix stays what it is.
//!
//! `pack` is how it is written. Of reading it there is a plain loop here, and one in the instructions of each level of x86.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx512;
#[cfg_attr(target_arch = "x86_64", path = "x86.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "other.rs")]
mod levels;
mod pack;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::Level;

pub use pack::{Unfit, pack};

/// Rows that stand together.
pub const TOGETHER: usize = 4;

/// Bytes of a line.
const LINE: usize = 64;
/// Inputs that stand together, and their bytes.
pub const STRETCH: usize = 128;
pub const STRETCH_BYTES: usize = 3 * LINE;
/// That a row may have, but for the numbers that are kept aside.
const EXPONENTS: usize = 16;
/// Inputs for which the head has a line more.
const HEADED: usize = 4096;
/// Where in the head it says how many are kept aside, and where they begin.
const COUNT: usize = EXPONENTS;
const ASIDE: usize = 20;

/// Whether rows of so many inputs can be packed: whole stretches, and places that two bytes hold.
pub fn takes(inputs: usize) -> bool {
    inputs.is_multiple_of(STRETCH) && inputs <= 1 << 16
}

pub fn row_bytes(inputs: usize) -> usize {
    head_bytes(inputs) + inputs / STRETCH * STRETCH_BYTES
}

fn head_bytes(inputs: usize) -> usize {
    LINE + inputs / HEADED * LINE
}

/// Rows that stand together.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    bytes: &'a [u8],
    rows: usize,
    inputs: usize,
}

impl<'a> Group<'a> {
    /// Panics where the bytes are not those of so many rows.
    pub fn new(bytes: &'a [u8], rows: usize, inputs: usize) -> Self {
        assert!(takes(inputs) && bytes.len() == rows * row_bytes(inputs), "packed rows and their bytes");
        Self { bytes, rows, inputs }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn head(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "a row of the group");
        &self.bytes[row * head_bytes(self.inputs)..][..head_bytes(self.inputs)]
    }

    /// From the first stretch of this row on to the end; what lies between is other rows'. From one to the next it is as many
    /// stretches as there are rows.
    pub fn stretches(&self, row: usize) -> &'a [u8] {
        let first = self.rows * head_bytes(self.inputs) + row * STRETCH_BYTES;
        self.bytes.get(first..).unwrap_or_default()
    }

    /// All numbers of some rows, row after row.
    pub fn unpack(&self, level: Level, rows: Range<usize>, into: &mut [u16]) {
        assert_eq!(into.len(), rows.len() * self.inputs, "packed rows and their numbers");
        if rows == (0..TOGETHER) {
            self.unpack_some::<TOGETHER>(level, 0, into);
        } else {
            for (row, into) in rows.zip(into.chunks_exact_mut(self.inputs.max(1))) {
                self.unpack_some::<1>(level, row, into);
            }
        }
    }

    fn unpack_some<const ROWS: usize>(&self, level: Level, first: usize, into: &mut [u16]) {
        let heads: [_; ROWS] = std::array::from_fn(|row| self.head(first + row));
        levels::unpack(level, heads, self.stretches(first), self.rows * STRETCH_BYTES, into);
        for (head, into) in heads.into_iter().zip(into.chunks_exact_mut(self.inputs.max(1))) {
            for aside in asides(head) {
                // A place that the row does not have is of nobody's making.
                if let Some(number) = into.get_mut(aside.place()) {
                    *number = aside.bits();
                }
            }
        }
    }
}

/// A number that is kept aside.
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

/// By their places.
pub fn asides(head: &[u8]) -> impl Iterator<Item = Aside> {
    let count = usize::from(u16::from_le_bytes([head[COUNT], head[COUNT + 1]]));
    head[ASIDE..].as_chunks::<4>().0.iter().take(count).map(|bytes| Aside(*bytes))
}

/// What all levels do, number by number. From one stretch of a row to its next it is `step` bytes.
fn unpack_plainly<const ROWS: usize>(heads: [&[u8]; ROWS], stretches: &[u8], step: usize, into: &mut [u16]) {
    each_stretch::<ROWS>(stretches, step, into, |row, stretch, into| {
        for (at, number) in into.iter_mut().enumerate() {
            let (set, word) = (at / 32, at % 32);
            let byte = u16::from(stretch[set / 2 * LINE + 2 * word + set % 2]);
            let exponent = stretch[2 * LINE + 2 * word + set / 2] >> (set % 2 * 4) & 15;
            *number = (byte & 0x80) << 8 | u16::from(heads[row][usize::from(exponent)]) << 7 | byte & 0x7f;
        }
    });
}

/// As they lie: the first stretch of each row, then the second of each, with the row and the place of the numbers.
#[inline(always)]
fn each_stretch<const ROWS: usize>(
    stretches: &[u8],
    step: usize,
    into: &mut [u16],
    unpack: impl Fn(usize, &[u8; STRETCH_BYTES], &mut [u16; STRETCH]),
) {
    let inputs = into.len() / ROWS;
    for (number, stretches) in stretches.chunks(step).take(inputs / STRETCH).enumerate() {
        let (stretches, _) = stretches.as_chunks::<STRETCH_BYTES>();
        for (row, stretch) in stretches.iter().take(ROWS).enumerate() {
            let into = into[row * inputs + number * STRETCH..].first_chunk_mut();
            unpack(row, stretch, into.expect("numbers of each stretch"));
        }
    }
}
