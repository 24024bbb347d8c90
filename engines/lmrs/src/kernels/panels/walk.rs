//! In which order panels and tokens are visited.
//!
//! Few tokens: memory is what takes time. Most processors read fastest who walks on from panel to panel; for those that give
//! more where they are read at several places, a range of panels is divided into eight parts, and a panel of each is read at
//! once, line by line in turn.
//!
//! Many tokens: arithmetic is what takes time. As many panels as fit into the second-level cache are multiplied with all
//! tokens before the next ones are read.
#![expect(unsafe_code, reason = "hands addresses to the kernels")]

use std::marker::PhantomData;
use std::ops::Range;

use super::input::{BLOCK, Block, Input, TILE};
use super::lanes::Lanes;
use super::numbers::Numbers;
use super::tile;
use crate::kernels::outputs::Outputs;
use crate::matrix::{GROUP, Matrix, PANEL};

/// Panels that stay in the second-level cache: half of a small one.
const NEAR_BYTES: usize = 512 << 10;

/// What all levels may rely on.
pub fn check(matrix: &Matrix, panels: &Range<usize>, input: &Input, out: &Outputs<'_>) {
    assert_eq!(matrix.inputs, input.inputs(), "inputs of a matrix and of its input");
    assert_eq!(input.tokens(), out.tokens(), "tokens of an input and of its outputs");
    let outputs = panels.start * PANEL..matrix.outputs.min(panels.end * PANEL);
    assert_eq!(outputs, out.outputs(), "columns of panels {panels:?}");
}

/// `places` is how many panels at once are best for one token, where there are registers for them: 8 or 1.
///
/// # Safety
/// The processor has what `L` needs, `check` has passed, and `N` is the matrix's format.
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
    // SAFETY: the caller's promises.
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

/// The tokens of a tile, and its blocks.
type Tile<'a> = (Range<usize>, &'a [Block]);

/// A matrix whose format is `N`.
struct Walk<'a, N> {
    /// One behind the other.
    panels: &'a [u8],
    /// Of a panel.
    stretches: usize,
    numbers: PhantomData<N>,
}

impl<N: Numbers> Walk<'_, N> {
    /// All panels of the range: eight at once where that is wanted, the rest one after the other.
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
        // SAFETY: the caller's promises.
        unsafe {
            if places >= 8 {
                self.apart::<L, 8>(&mut panels, tile, out);
            }
            self.apart::<L, 1>(&mut panels, tile, out);
        }
    }

    /// Takes from the range as many times `PANELS` panels as there are, and multiplies one of each stretch at a time.
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
            // SAFETY: the caller's promises.
            unsafe { self.tokens::<L, PANELS>(places, tile, out) };
        }
        panels.start += apart * PANELS;
    }

    /// Some panels with all tokens of a tile, as many tokens at once as registers allow.
    ///
    /// # Safety
    /// The processor has what `L` needs. All else is checked.
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
                        // SAFETY: the panels and the blocks are as long as was just checked, and `done + $count` of the
                        // tokens are no more than the tile has.
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

/// Between two panels memory waits for whoever reads it, so this is short, and no call where a panel is whole.
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
