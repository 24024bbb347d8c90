//! Lossless bf16 in little more than twelve bits: each number has a four-bit index in place of its exponent.
//!
//! The weights of a row have similar magnitudes, so sixteen exponents cover nearly all of them. A row lists these exponents,
//! and each number stores an index into this list. The few numbers with other exponents are stored whole, as exceptions.
//!
//! ```text
//! a block   sixteen rows (the last of a matrix may have fewer). Rows of more than 2,048 inputs are cut into parts, and
//!           the first parts of all rows come before the second ones
//! a group   one part of four rows (the last of a block may have fewer): their headers, a line of 64 bytes each; then for
//!           each 128 inputs the section of the first row, of the second, the third, the fourth
//!
//! a header  16 exponents; the number of exceptions, u16; from byte 20 on, for each exception its position within the part,
//!           u16, and its bits, u16
//! a section three lines for 128 inputs of a row. Two lines have the sign and mantissa of each number, one byte each: 16-bit
//!           word i of the first line has inputs i and 32 + i, of the second 64 + i and 96 + i. The third line has the exponent
//!           indices, four bits each: word i has inputs i, 32 + i, 64 + i and 96 + i
//! ```
//!
//! So each read of the activations serves four rows, and a part of the activations stays in the first-level cache for sixteen
//! rows. Memory is still read sequentially.
//!
//! A row of 2,048 inputs takes 12.25 bits a number. If a header has no room for its exceptions, the whole matrix stays unpacked.
//!
//! `pack` writes the format. The portable reader is here (NEON uses it too), and the readers of the x86 levels are in `x86`. For
//! one or two tokens, `x86` also multiplies numbers that it unpacks in registers. More tokens use rows that were unpacked into a
//! cache.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vector instructions"))]

#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use model_files::Dtype;

use super::{Format, Storage, Unfit};
use crate::kernels::Level;
use crate::kernels::rows::{PackedBf16, TileKernel};
#[cfg(target_arch = "x86_64")]
use crate::kernels::{Instructions, Outputs};
use crate::matrix;
#[cfg(target_arch = "x86_64")]
use crate::matrix::Matrix;

pub static BF16Z: Format = Format {
    name: "bf16z",
    dtype: Dtype::BF16,
    is_requestable: true,
    storage: Storage::packed_rows::<InBf16z>(),
    tile: Some(TileKernel::of_packed::<InBf16z>()),
    packed: Some((2, "1d168c4316bc8bce")),
};

/// The type parameter of generic kernels for weights in this format.
pub struct InBf16z;

impl PackedBf16 for InBf16z {
    const BLOCK_ROWS: usize = BLOCK_ROWS;
    const MAX_DOT_TOKENS: usize = MAX_FUSED_TOKENS;

    fn can_pack(inputs: usize) -> bool {
        can_pack(inputs)
    }

    fn row_bytes(inputs: usize) -> usize {
        row_bytes(inputs)
    }

    /// A whole block if rows have several parts, otherwise a group.
    fn rows_unpacked_together(inputs: usize) -> usize {
        if parts(inputs).count() > 1 { BLOCK_ROWS } else { GROUP_ROWS }
    }

    fn pack(inputs: usize, rows: &[u8], block: &mut [u8]) -> Result<(), Unfit> {
        pack(inputs, rows, block)
    }

    fn unpack(level: Level, block: matrix::Block, rows: Range<usize>, destination: &mut [u16]) {
        Block::of(block).unpack(level, rows, destination);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn dot(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
        // SAFETY: the caller guarantees this.
        unsafe { x86::multiply(matrix, x, out) }
    }
}

/// The most tokens for products that unpack in registers.
const MAX_FUSED_TOKENS: usize = 2;

/// Rows that are packed together, as a group.
const GROUP_ROWS: usize = 4;
/// Rows of a block: groups whose parts are interleaved.
const BLOCK_ROWS: usize = 16;

const LINE_BYTES: usize = 64;
/// The most inputs of a part: these activations and four rows of such parts fill half of a first-level cache.
const MAX_PART_INPUTS: usize = 2048;
const SECTION_INPUTS: usize = 128;
const SECTION_BYTES: usize = 3 * LINE_BYTES;
/// The number of exponents in a header.
const EXPONENTS: usize = 16;
/// Offsets in the header: of the number of exceptions, and of the first exception.
const COUNT_OFFSET: usize = EXPONENTS;
const EXCEPTIONS_OFFSET: usize = 20;

/// Whether rows with this number of inputs can be packed: they must be whole sections.
fn can_pack(inputs: usize) -> bool {
    inputs.is_multiple_of(SECTION_INPUTS)
}

/// The parts of a row: as few as possible, and of equal length except for the last.
fn parts(inputs: usize) -> impl Iterator<Item = Range<usize>> {
    let count = inputs.div_ceil(MAX_PART_INPUTS).max(1);
    let length = inputs.div_ceil(count).next_multiple_of(SECTION_INPUTS).max(1);
    (0..inputs).step_by(length).map(move |start| start..inputs.min(start + length))
}

fn row_bytes(inputs: usize) -> usize {
    parts(inputs).map(|part| part_bytes(part.len())).sum()
}

fn part_bytes(inputs: usize) -> usize {
    LINE_BYTES + inputs / SECTION_INPUTS * SECTION_BYTES
}

/// A number that is stored whole: an exception.
#[derive(Debug, Clone, Copy)]
pub struct Exception([u8; 4]);

impl Exception {
    pub fn position(self) -> usize {
        usize::from(u16::from_le_bytes([self.0[0], self.0[1]]))
    }

    pub fn bits(self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
}

/// The exceptions of a header, in the order of their positions.
fn exceptions(header: &[u8]) -> impl Iterator<Item = Exception> {
    let count = usize::from(u16::from_le_bytes([header[COUNT_OFFSET], header[COUNT_OFFSET + 1]]));
    header[EXCEPTIONS_OFFSET..].as_chunks::<4>().0.iter().take(count).map(|bytes| Exception(*bytes))
}

/// Packed rows of one block: `BLOCK_ROWS`, or fewer at the end of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    bytes: &'a [u8],
    rows: usize,
    inputs: usize,
}

impl<'a> Block<'a> {
    /// Panics if the bytes do not match the number of rows.
    pub fn new(bytes: &'a [u8], rows: usize, inputs: usize) -> Self {
        assert!(can_pack(inputs) && bytes.len() == rows * row_bytes(inputs), "packed rows of a wrong size");
        Self { bytes, rows, inputs }
    }

    pub fn of(matrix::Block { bytes, rows, inputs }: matrix::Block<'a>) -> Self {
        Self::new(bytes, rows, inputs)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The group that contains this row, for one part of the inputs.
    pub fn group(&self, part: &Range<usize>, row: usize) -> Group<'a> {
        let first_row = row / GROUP_ROWS * GROUP_ROWS;
        let rows = GROUP_ROWS.min(self.rows - first_row);
        // The earlier parts of all rows come first, then the earlier groups of this part.
        let earlier_bytes: usize = parts(self.inputs)
            .take_while(|other| other.start < part.start)
            .map(|other| part_bytes(other.len()))
            .sum();
        let bytes = part_bytes(part.len());
        Group {
            bytes: &self.bytes[self.rows * earlier_bytes + first_row * bytes..][..rows * bytes],
            rows,
            inputs: part.len(),
        }
    }

    pub fn unpack(&self, level: Level, rows: Range<usize>, destination: &mut [u16]) {
        assert!(
            rows.end <= self.rows && destination.len() == rows.len() * self.inputs,
            "the rows or the destination do not match the block"
        );
        for part in parts(self.inputs) {
            let mut row = rows.start;
            while row < rows.end {
                let (group, first_row) = (self.group(&part, row), row % GROUP_ROWS);
                let destination = Destination {
                    numbers: &mut destination[(row - rows.start) * self.inputs + part.start..],
                    stride: self.inputs,
                };
                if first_row == 0 && group.rows() == GROUP_ROWS && rows.end - row >= GROUP_ROWS {
                    group.unpack::<GROUP_ROWS>(level, first_row, destination);
                    row += GROUP_ROWS;
                } else {
                    group.unpack::<1>(level, first_row, destination);
                    row += 1;
                }
            }
        }
    }
}

/// The destination of unpacked rows. The first row begins at the start of `numbers`.
pub(super) struct Destination<'a> {
    pub numbers: &'a mut [u16],
    /// The distance in numbers from the start of one row to the start of the next row.
    pub stride: usize,
}

/// One part of the inputs, for up to `GROUP_ROWS` rows that are packed together.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    bytes: &'a [u8],
    rows: usize,
    inputs: usize,
}

impl<'a> Group<'a> {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn header(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "a row beyond the group");
        &self.bytes[row * LINE_BYTES..][..LINE_BYTES]
    }

    pub fn exceptions(&self, row: usize) -> impl Iterator<Item = Exception> + use<'a> {
        exceptions(self.header(row))
    }

    /// Bytes from one section of a row to the next section of the same row.
    pub fn section_distance(&self) -> usize {
        self.rows * SECTION_BYTES
    }

    /// The memory from the row's first section to the end of the group. Between the sections of this row lie those of other rows.
    pub fn sections(&self, row: usize) -> &'a [u8] {
        &self.bytes[self.rows * LINE_BYTES + row * SECTION_BYTES..]
    }

    fn unpack<const ROWS: usize>(&self, level: Level, first_row: usize, mut destination: Destination) {
        let headers: [_; ROWS] = std::array::from_fn(|row| self.header(first_row + row));
        unpack(level, headers, self, first_row, &mut destination);
        for row in 0..ROWS {
            let destination = &mut destination.numbers[row * destination.stride..][..self.inputs];
            for exception in self.exceptions(first_row + row) {
                // A position beyond the row comes only from damaged data.
                if let Some(number) = destination.get_mut(exception.position()) {
                    *number = exception.bits();
                }
            }
        }
    }

    /// Calls `unpack(row, section, numbers)` in memory order: for the first section of each of `ROWS` rows, then for the second.
    #[inline(always)]
    pub(super) fn for_each_section<const ROWS: usize>(
        &self,
        first_row: usize,
        destination: &mut Destination,
        unpack: impl Fn(usize, &[u8; SECTION_BYTES], &mut [u16; SECTION_INPUTS]),
    ) {
        let sections =
            self.sections(first_row).chunks(self.section_distance()).take(self.inputs / SECTION_INPUTS);
        for (index, sections) in sections.enumerate() {
            let (sections, _) = sections.as_chunks::<SECTION_BYTES>();
            for (row, section) in sections.iter().take(ROWS).enumerate() {
                let destination = destination.numbers[row * destination.stride + index * SECTION_INPUTS..]
                    .first_chunk_mut();
                unpack(row, section, destination.expect("room for the numbers of each section"));
            }
        }
    }
}

/// Unpacks whole sections with the instructions of the level, without the exceptions.
fn unpack<const ROWS: usize>(
    level: Level,
    headers: [&[u8]; ROWS],
    group: &Group,
    first_row: usize,
    destination: &mut Destination,
) {
    match level.instructions() {
        // SAFETY: a `Level` value exists only on a machine that has the level.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { x86::unpack_avx2(headers, group, first_row, destination) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 | Instructions::Amx => unsafe {
            x86::unpack_avx512(headers, group, first_row, destination)
        },
        _ => unpack_portable(headers, group, first_row, destination),
    }
}

/// Unpacks at the levels `portable` and `neon`, number by number.
fn unpack_portable<const ROWS: usize>(
    headers: [&[u8]; ROWS],
    group: &Group,
    first_row: usize,
    destination: &mut Destination,
) {
    group.for_each_section::<ROWS>(first_row, destination, |row, section, destination| {
        for (at, number) in destination.iter_mut().enumerate() {
            // A set is 32 consecutive inputs.
            let (set, word) = (at / 32, at % 32);
            let byte = u16::from(section[set / 2 * LINE_BYTES + 2 * word + set % 2]);
            let exponent = section[2 * LINE_BYTES + 2 * word + set / 2] >> (set % 2 * 4) & 15;
            *number = (byte & 0x80) << 8 | u16::from(headers[row][usize::from(exponent)]) << 7 | byte & 0x7f;
        }
    });
}

/// Packs the rows of a block, with `inputs` numbers each in the file layout of bf16. Panics if a size is wrong. Fails if a row
/// has too many exceptions.
pub fn pack(inputs: usize, numbers: &[u8], mut block: &mut [u8]) -> Result<(), Unfit> {
    let rows = block.len() / row_bytes(inputs).max(1);
    let fits = numbers.len() == rows * inputs * 2 && block.len() == rows * row_bytes(inputs);
    assert!(can_pack(inputs) && fits, "the numbers do not match the packed rows");
    for part in parts(inputs) {
        let (part_block, rest) = block.split_at_mut(rows * part_bytes(part.len()));
        block = rest;
        for (index, group) in part_block.chunks_mut(GROUP_ROWS * part_bytes(part.len())).enumerate() {
            let group_rows = group.len() / part_bytes(part.len());
            let (headers, sections) = group.split_at_mut(group_rows * LINE_BYTES);
            for (row, header) in headers.chunks_exact_mut(LINE_BYTES).enumerate() {
                let first_number = (index * GROUP_ROWS + row) * inputs + part.start;
                let numbers = numbers[first_number * 2..][..part.len() * 2].as_chunks::<2>().0;
                let sections = sections.chunks_exact_mut(SECTION_BYTES).skip(row).step_by(group_rows);
                pack_row(numbers, header, sections)?;
            }
        }
    }
    Ok(())
}

fn pack_row<'a>(
    numbers: &[[u8; 2]],
    header: &mut [u8],
    sections: impl Iterator<Item = &'a mut [u8]>,
) -> Result<(), Unfit> {
    header.fill(0);
    let exponents = most_frequent(numbers);
    header[..EXPONENTS].copy_from_slice(&exponents);
    let mut indices = [None; 256];
    // If a row has few exponents, zeros fill the list, so 0 occurs several times. In reverse order, its first index is set last.
    for (index, exponent) in (0..EXPONENTS as u8).zip(exponents).rev() {
        indices[usize::from(exponent)] = Some(index);
    }
    let (start, exceptions) = header.split_at_mut(EXCEPTIONS_OFFSET);
    let (mut exceptions, mut count) = (exceptions.as_chunks_mut::<4>().0.iter_mut(), 0_u16);
    for (section_index, (numbers, section)) in numbers.chunks_exact(SECTION_INPUTS).zip(sections).enumerate()
    {
        section[2 * LINE_BYTES..].fill(0);
        for (at, bytes) in numbers.iter().enumerate() {
            let (set, word) = (at / 32, at % 32);
            let bits = u16::from_le_bytes(*bytes);
            section[set / 2 * LINE_BYTES + 2 * word + set % 2] = (bits >> 8 & 0x80 | bits & 0x7f) as u8;
            let index: u8 = match indices[exponent(bits)] {
                Some(index) => index,
                None => {
                    let position = ((section_index * SECTION_INPUTS + at) as u16).to_le_bytes();
                    *exceptions.next().ok_or(Unfit)? = [position[0], position[1], bytes[0], bytes[1]];
                    count += 1;
                    0
                }
            };
            section[2 * LINE_BYTES + 2 * word + set / 2] |= index << (set % 2 * 4);
        }
    }
    start[COUNT_OFFSET..COUNT_OFFSET + 2].copy_from_slice(&count.to_le_bytes());
    Ok(())
}

fn exponent(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

/// The most frequent exponents. If there are fewer than `EXPONENTS`, zeros fill the list.
fn most_frequent(numbers: &[[u8; 2]]) -> [u8; EXPONENTS] {
    // Neighbouring numbers often have the same exponent. With two tables in turn, the increment of a count need not wait for the
    // increment before it.
    let mut counts = [[0_u32; 256]; 2];
    for (at, bytes) in numbers.iter().enumerate() {
        counts[at % 2][exponent(u16::from_le_bytes(*bytes))] += 1;
    }
    let count = |exponent: usize| counts[0][exponent] + counts[1][exponent];
    let mut all: Vec<u8> = (0..=255).filter(|exponent| count(usize::from(*exponent)) > 0).collect();
    all.sort_by_key(|exponent| std::cmp::Reverse(count(usize::from(*exponent))));
    let mut exponents = [0; EXPONENTS];
    for (listed, exponent) in exponents.iter_mut().zip(all) {
        *listed = exponent;
    }
    exponents
}
