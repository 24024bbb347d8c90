//! The layout of a block: the position of each row's data.

use std::ops::Range;

use super::{
    Aside, LINE, STRETCH, STRETCH_BYTES, TOGETHER, asides, levels, part_bytes, parts, row_bytes, takes,
};
use crate::kernels::Level;
use crate::matrix;

/// Packed rows of one block: `BLOCK` of them or, at the end of a matrix, fewer.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    bytes: &'a [u8],
    rows: usize,
    inputs: usize,
}

impl<'a> Block<'a> {
    /// Panics if the bytes do not match the number of rows.
    pub fn new(bytes: &'a [u8], rows: usize, inputs: usize) -> Self {
        assert!(takes(inputs) && bytes.len() == rows * row_bytes(inputs), "packed rows and their bytes");
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
        let first = row / TOGETHER * TOGETHER;
        let rows = TOGETHER.min(self.rows - first);
        // Earlier parts come first, with all rows and the length of the first part; then the earlier groups of this part.
        let before: usize =
            parts(self.inputs).take_while(|it| it.start < part.start).map(|it| part_bytes(it.len())).sum();
        let bytes = part_bytes(part.len());
        Group {
            bytes: &self.bytes[self.rows * before + first * bytes..][..rows * bytes],
            rows,
            inputs: part.len(),
        }
    }

    pub fn unpack(&self, level: Level, rows: Range<usize>, into: &mut [u16]) {
        assert!(
            rows.end <= self.rows && into.len() == rows.len() * self.inputs,
            "packed rows and their numbers"
        );
        for part in parts(self.inputs) {
            let mut row = rows.start;
            while row < rows.end {
                let (group, first) = (self.group(&part, row), row % TOGETHER);
                let into = Place {
                    numbers: &mut into[(row - rows.start) * self.inputs + part.start..],
                    stride: self.inputs,
                };
                if first == 0 && group.rows() == TOGETHER && rows.end - row >= TOGETHER {
                    group.unpack::<TOGETHER>(level, first, into);
                    row += TOGETHER;
                } else {
                    group.unpack::<1>(level, first, into);
                    row += 1;
                }
            }
        }
    }
}

/// The destination of unpacked rows: the first number of the first row, and the distance between rows.
pub(super) struct Place<'a> {
    pub numbers: &'a mut [u16],
    pub stride: usize,
}

/// A part of the inputs of rows that are packed together.
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

    pub fn head(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "a row of the group");
        &self.bytes[row * LINE..][..LINE]
    }

    pub fn asides(&self, row: usize) -> impl Iterator<Item = Aside> + use<'a> {
        asides(self.head(row))
    }

    /// Bytes from one stretch of a row to its next.
    pub fn step(&self) -> usize {
        self.rows * STRETCH_BYTES
    }

    /// The memory from the row's first stretch to the end of the group; other rows' stretches lie between.
    pub fn stretches(&self, row: usize) -> &'a [u8] {
        &self.bytes[self.rows * LINE + row * STRETCH_BYTES..]
    }

    fn unpack<const ROWS: usize>(&self, level: Level, first: usize, mut into: Place) {
        let heads: [_; ROWS] = std::array::from_fn(|row| self.head(first + row));
        levels::unpack(level, heads, self, first, &mut into);
        for row in 0..ROWS {
            let into = &mut into.numbers[row * into.stride..][..self.inputs];
            for aside in self.asides(first + row) {
                // A position beyond the row comes only from damaged data.
                if let Some(number) = into.get_mut(aside.place()) {
                    *number = aside.bits();
                }
            }
        }
    }

    /// Visits the stretches in memory order: the first of each of `ROWS` rows, then the second of each, and so on.
    #[inline(always)]
    pub(super) fn each_stretch<const ROWS: usize>(
        &self,
        first: usize,
        into: &mut Place,
        unpack: impl Fn(usize, &[u8; STRETCH_BYTES], &mut [u16; STRETCH]),
    ) {
        let stretches = self.stretches(first).chunks(self.step()).take(self.inputs / STRETCH);
        for (number, stretches) in stretches.enumerate() {
            let (stretches, _) = stretches.as_chunks::<STRETCH_BYTES>();
            for (row, stretch) in stretches.iter().take(ROWS).enumerate() {
                let into = into.numbers[row * into.stride + number * STRETCH..].first_chunk_mut();
                unpack(row, stretch, into.expect("numbers of each stretch"));
            }
        }
    }
}
