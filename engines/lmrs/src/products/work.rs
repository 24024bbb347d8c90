//! The plan of a product: the kernel, and the pieces for the threads.

use std::ops::Range;

use crate::kernels::outputs::Split;
use crate::kernels::rows::{self, DECODE_TOKENS};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Matrix, PANEL};
use crate::rows::Rows;

/// Bytes of weights in a unit when memory limits the speed: a few microseconds, the longest wait at the end.
const UNIT_BYTES: usize = 64 << 10;
/// Bytes that a thread takes at a time while many are left.
const TAKEN_BYTES: usize = 512 << 10;
/// Bytes that a thread takes at a time when many tokens read the same floats group by group: half of a second-level cache.
const NEAR_BYTES: usize = 512 << 10;
/// Panels that a thread takes at a time when many tokens use each weight.
const TAKEN_PANELS: usize = 16;
/// Outputs of a unit for tiles, and the most outputs of a unit for `Near`.
const TILE_OUTPUTS: usize = 32;
/// Outputs that a thread takes at a time.
const TAKEN_OUTPUTS: usize = 96;

/// One product.
pub struct Work<'a> {
    pub matrix: &'a Matrix,
    pub way: Way,
    /// The number of its first unit among those of all products.
    first: usize,
    /// Positions of a unit.
    unit: usize,
    /// The most units that a thread takes at a time.
    most: usize,
    pub out: Split<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Panel kernels; a position is a panel.
    Panels,
    /// Dot products of this number of stretches, read side by side; a position is one output of each.
    Dots(usize),
    /// Rows in the second-level cache; a position is an output.
    Near,
    /// Tiles; a position is an output, for widened panels too.
    Tiles,
}

impl Way {
    pub fn of(level: Level, matrix: &Matrix, tokens: usize) -> Self {
        match matrix.format {
            format if rows::takes_tiles(level, format, tokens) => Self::Tiles,
            format if rows::takes_near(level, format, tokens) => Self::Near,
            format if format.is_panels() => Self::Panels,
            _ => Self::Dots(rows::stretches(level, matrix, tokens)),
        }
    }

    pub fn places(self, matrix: &Matrix) -> usize {
        match self {
            Self::Panels => matrix.outputs.div_ceil(PANEL),
            Self::Dots(stretches) => matrix.outputs.div_ceil(stretches),
            Self::Near | Self::Tiles => matrix.outputs,
        }
    }

    /// Positions of a unit, and positions that a thread takes at a time.
    pub fn units(self, matrix: &Matrix, tokens: usize) -> (usize, usize) {
        let worth = |bytes: usize| (bytes * self.places(matrix) / matrix.bytes().max(1)).max(1);
        // Packed rows are taken in whole groups.
        let whole = |rows: usize| matrix.format.packed_rows().map_or(rows, |packed| packed.together);
        match self {
            Self::Tiles => (TILE_OUTPUTS, TAKEN_OUTPUTS),
            Self::Near => {
                let unit = worth(UNIT_BYTES).min(TILE_OUTPUTS).next_multiple_of(whole(rows::PASSED_ROWS));
                (unit, worth(TAKEN_BYTES).max(unit))
            }
            Self::Panels if tokens > DECODE_TOKENS => (1, TAKEN_PANELS),
            Self::Dots(_) if tokens > DECODE_TOKENS => {
                (worth(UNIT_BYTES).next_multiple_of(whole(1)), worth(NEAR_BYTES))
            }
            Self::Panels | Self::Dots(_) => {
                (worth(UNIT_BYTES).next_multiple_of(whole(1)), worth(TAKEN_BYTES))
            }
        }
    }
}

/// The plan of all products of one piece of work, one after the other.
pub fn plan<'a>(level: Level, tokens: usize, products: &'a mut [(&Matrix, &mut Rows)]) -> Vec<Work<'a>> {
    let mut first = 0;
    let work = |(matrix, out): &'a mut (&Matrix, &mut Rows)| {
        let way = Way::of(level, matrix, tokens);
        let (unit, taken) = way.units(matrix, tokens);
        let work = Work { matrix, way, first, unit, most: taken.div_ceil(unit), out: Outputs::split(out) };
        first = work.end();
        work
    };
    products.iter_mut().map(work).collect()
}

impl Work<'_> {
    /// The end of its units among those of all products.
    pub fn end(&self) -> usize {
        self.first + self.way.places(self.matrix).div_ceil(self.unit)
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// The positions of its own units within `units`, in pieces of at most `most` units.
    pub fn places(&self, units: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let own = units.start.clamp(self.first, self.end())..units.end.clamp(self.first, self.end());
        let (first, unit, all) = (self.first, self.unit, self.way.places(self.matrix));
        let (end, most) = (own.end, self.most);
        own.step_by(most)
            .map(move |start| (start - first) * unit..((end.min(start + most) - first) * unit).min(all))
    }
}

pub fn stretch(matrix: &Matrix, stretches: usize, at: usize, places: &Range<usize>) -> Range<usize> {
    let first = at * matrix.outputs.div_ceil(stretches);
    let last = ((at + 1) * matrix.outputs.div_ceil(stretches)).min(matrix.outputs);
    (first + places.start).min(last)..(first + places.end).min(last)
}

pub fn panel_outputs(matrix: &Matrix, panels: &Range<usize>) -> Range<usize> {
    panels.start * PANEL..(panels.end * PANEL).min(matrix.outputs)
}
