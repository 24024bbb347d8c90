//! The order in which panels and tokens are visited.
//!
//! With few tokens, memory limits the speed. Most processors read fastest sequentially, panel by panel. For processors that
//! read faster from several streams, a range of panels is divided into eight parts; one panel of each part is read at once,
//! line by line in turn.
//!
//! With many tokens, arithmetic limits the speed. As many panels as fit into the second-level cache are multiplied with all
//! tokens before the next panels are read.
#![expect(unsafe_code, reason = "hands addresses to the kernels")]

use std::marker::PhantomData;
use std::ops::Range;

use super::input::{BLOCK, Block, Input, TILE};
use super::lanes::Lanes;
use super::numbers::Numbers;
use super::tile;
use crate::kernels::outputs::Outputs;
use crate::matrix::{GROUP, Matrix, PANEL};

/// Bytes of panels that stay in the second-level cache: half of a small one.
const NEAR_BYTES: usize = 512 << 10;

/// Asserts the preconditions of all levels.
pub fn check(matrix: &Matrix, panels: &Range<usize>, input: &Input, out: &Outputs<'_>) {
    assert_eq!(matrix.inputs, input.inputs(), "inputs of a matrix and of its input");
    assert_eq!(input.tokens(), out.tokens(), "tokens of an input and of its outputs");
    let outputs = panels.start * PANEL..matrix.outputs.min(panels.end * PANEL);
    assert_eq!(outputs, out.outputs(), "columns of panels {panels:?}");
}

/// Multiplies panels with an input. `places` is the best number of panels at once for one token, 8 or 1, if registers suffice.
///
/// # Safety
/// The processor has the features of `L`, `check` has passed, and `N` is the matrix's format.
#[inline(always)]
pub unsafe fn multiply<L: Lanes, N: Numbers>(
    places: usize,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    let walk = Walk::<N> {
        panels: matrix.panels(),
        stretches: matrix.inputs.div_ceil(N::GROUPS * GROUP),
        numbers: PhantomData,
    };
    // SAFETY: the caller guarantees this.
    unsafe {
        if input.tokens() <= TILE {
            for tile in input.tiles() {
                walk.few::<L>(places.min(L::SUMS / tile.0.len()), panels.clone(), &tile, out);
            }
        } else {
            let near = (NEAR_BYTES / (walk.stretches * N::STRETCH_BYTES).max(1)).max(1);
            for start in panels.clone().step_by(near) {
                for tile in input.tiles() {
                    for panel in start..panels.end.min(start + near) {
                        walk.tokens::<L, 1>([panel], &tile, out);
                    }
                }
            }
        }
    }
}

type Tile<'a> = (Range<usize>, &'a [Block]);

/// A matrix whose format is `N`.
struct Walk<'a, N> {
    /// All panels, one after the other.
    panels: &'a [u8],
    stretches: usize,
    numbers: PhantomData<N>,
}

impl<N: Numbers> Walk<'_, N> {
    /// Multiplies all panels of the range: eight at once if `places` is 8, the rest one by one.
    ///
    /// # Safety
    /// As of `tokens`.
    #[inline(always)]
    unsafe fn few<L: Lanes>(
        &self,
        places: usize,
        mut panels: Range<usize>,
        tile: &Tile<'_>,
        out: &mut Outputs<'_>,
    ) {
        // SAFETY: the caller guarantees this.
        unsafe {
            if places >= 8 {
                self.apart::<L, 8>(&mut panels, tile, out);
            }
            self.apart::<L, 1>(&mut panels, tile, out);
        }
    }

    /// Takes as many multiples of `PANELS` panels from the range as possible, and multiplies one panel of each part at a time.
    ///
    /// # Safety
    /// As of `tokens`.
    #[inline(always)]
    unsafe fn apart<L: Lanes, const PANELS: usize>(
        &self,
        panels: &mut Range<usize>,
        tile: &Tile<'_>,
        out: &mut Outputs<'_>,
    ) {
        let apart = panels.len() / PANELS;
        for step in 0..apart {
            let places = std::array::from_fn(|place| panels.start + place * apart + step);
            // SAFETY: the caller guarantees this.
            unsafe { self.tokens::<L, PANELS>(places, tile, out) };
        }
        panels.start += apart * PANELS;
    }

    /// Multiplies some panels with all tokens of a tile, as many tokens at once as registers allow.
    ///
    /// # Safety
    /// The processor has the features of `L`. The function checks everything else.
    #[inline(always)]
    unsafe fn tokens<L: Lanes, const PANELS: usize>(
        &self,
        panels: [usize; PANELS],
        (tokens, blocks): &Tile<'_>,
        out: &mut Outputs<'_>,
    ) {
        let width = tokens.len();
        let bytes = self.stretches * N::STRETCH_BYTES;
        let starts = panels.map(|panel| self.panels[panel * bytes..][..bytes].as_ptr());
        assert!(blocks.len() >= self.stretches * N::GROUPS * (GROUP / BLOCK) * width, "the blocks of a tile");
        let mut done = 0;
        macro_rules! at_once {
            ($($count:literal)*) => {
                match width - done {
                    $(left if left >= $count && $count * PANELS <= L::SUMS => {
                        let blocks = blocks[done..].as_ptr();
                        // SAFETY: the lengths of panels and blocks were just checked, and the tile has these tokens.
                        let sums = unsafe {
                            tile::multiply::<L, N, PANELS, $count>(starts, self.stretches, blocks, width)
                        };
                        for (panel, sums) in panels.into_iter().zip(&sums) {
                            write(panel, tokens.start + done, sums, out);
                        }
                        done += $count;
                    })*
                    _ => break,
                }
            };
        }
        loop {
            at_once!(12 8 6 4 3 2 1);
        }
    }
}

/// Writes the sums of a panel. Memory reads pause between two panels, so this is short, with no call for whole panels.
#[inline(always)]
fn write(panel: usize, token: usize, sums: &[[f32; PANEL]], out: &mut Outputs<'_>) {
    let first = panel * PANEL - out.outputs().start;
    for (token, sums) in (token..).zip(sums) {
        let places = &mut out.row_mut(token)[first..];
        match places.first_chunk_mut() {
            Some(places) => *places = *sums,
            None => places.copy_from_slice(&sums[..places.len()]),
        }
    }
}
