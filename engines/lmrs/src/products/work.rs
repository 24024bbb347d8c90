//! How a product is computed, and in which pieces it is shared out.

use std::ops::Range;

use crate::kernels::outputs::Split;
use crate::kernels::rows::{self, DECODE_TOKENS};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Matrix, PANEL};
use crate::rows::Rows;

/// Bytes of weights in a unit where memory sets the pace: a few microseconds' worth, the most that others wait at the end.
const UNIT_BYTES: usize = 64 << 10;
/// And those that a thread takes at a time while there are many.
const TAKEN_BYTES: usize = 512 << 10;
/// When many tokens read the same floats, group by group: half of a second cache.
const NEAR_BYTES: usize = 512 << 10;
/// Panels that a thread takes at a time when many tokens use each weight.
const TAKEN_PANELS: usize = 16;
/// Outputs of a unit when tiles are filled: whole tiles. And at most when tokens pass over rows.
const TILE_OUTPUTS: usize = 32;
/// And those that a thread takes at a time.
const TAKEN_OUTPUTS: usize = 96;

/// One product.
pub struct Work<'a> {
    pub matrix: &'a Matrix,
    pub way: Way,
    /// Where its units begin among those of all products.
    first: usize,
    /// Places of a unit.
    unit: usize,
    /// Units that a thread takes at a time, at most.
    most: usize,
    pub out: Split<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A place is a panel.
    Panels,
    /// The outputs are cut into so many stretches that are read side by side; a place is one output of each.
    Dots(usize),
    /// A place is an output.
    Near,
    /// A place is an output; of panels, too, where they are widened.
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

    /// Places of a unit, and of what a thread takes at a time.
    pub fn units(self, matrix: &Matrix, tokens: usize) -> (usize, usize) {
        let worth = |bytes: usize| (bytes * self.places(matrix) / matrix.bytes().max(1)).max(1);
        // Packed rows by those that stand together.
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

/// All products of one piece of work, one after the other.
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
    /// Where its units end among those of all products.
    pub fn end(&self) -> usize {
        self.first + self.way.places(self.matrix).div_ceil(self.unit)
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// The places of those units that are its own, in pieces of at most what a thread takes at a time.
    pub fn places(&self, units: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let own = units.start.clamp(self.first, self.end())..units.end.clamp(self.first, self.end());
        let (first, unit, all) = (self.first, self.unit, self.way.places(self.matrix));
        let (end, most) = (own.end, self.most);
        own.step_by(most)
            .map(move |start| (start - first) * unit..((end.min(start + most) - first) * unit).min(all))
    }
}

/// Of one stretch the outputs at these places.
pub fn stretch(matrix: &Matrix, stretches: usize, at: usize, places: &Range<usize>) -> Range<usize> {
    let first = at * matrix.outputs.div_ceil(stretches);
    let last = ((at + 1) * matrix.outputs.div_ceil(stretches)).min(matrix.outputs);
    (first + places.start).min(last)..(first + places.end).min(last)
}

pub fn panel_outputs(matrix: &Matrix, panels: &Range<usize>) -> Range<usize> {
    panels.start * PANEL..(panels.end * PANEL).min(matrix.outputs)
}
