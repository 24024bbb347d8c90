//! Panels as rows of pairs: weights of 8, 6 and 4 bits become bf16 that tiles read. Each weight is widened once for all tokens,
//! with its scale included.
//!
//! ```text
//! a group of a panel: 16 outputs x 64 inputs
//!     its numbers as bytes          16 lines, each with four inputs of 16 outputs
//!     the lines transposed          16 rows, each with 64 inputs of one output
//!     number * times + plus         as f32; 16 inputs share both, in every format
//!     rounded to bf16               32 inputs are a line of pairs
//! ```
//!
//! Number and scale have 19 to 24 bits together, so the f32 values are exact except for Q4_K's subtraction, which rounds. A
//! weight is off by at most half a unit of bf16, 2^-8 of itself.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::marker::PhantomData;

use super::super::packed::TOKENS;
use super::tile::Tile;
use super::{Source, Weights};
use crate::kernels::panels::Numbers;
use crate::matrix::{GROUP, Matrix, PANEL};

/// Inputs of a line of pairs.
const LINE: usize = 32;

/// A matrix in panels of `N`.
pub struct Widened<'a, N> {
    matrix: &'a Matrix,
    numbers: PhantomData<N>,
}

impl<'a, N: Numbers> Widened<'a, N> {
    pub fn new(matrix: &'a Matrix) -> Self {
        Self { matrix, numbers: PhantomData }
    }
}

impl<N: Numbers> Source for Widened<'_, N> {
    const TOGETHER: usize = PANEL;

    /// Fills whole panels.
    #[inline(always)]
    unsafe fn fill<T: Tile>(&self, weights: &mut Weights) {
        let Weights { lines: weights, row_lines, outputs, steps } = weights;
        let (first, lines) = (outputs.start, steps.start / TOKENS..steps.end / TOKENS);
        assert!(
            first.is_multiple_of(PANEL) && lines.start.is_multiple_of(GROUP / LINE),
            "whole groups of whole panels"
        );
        let weights = &mut weights[..outputs.len().next_multiple_of(PANEL) * *row_lines];
        for (panel, rows) in (first / PANEL..).zip(weights.chunks_exact_mut(PANEL * *row_lines)) {
            let bytes = self.matrix.panel(panel);
            for line in lines.clone().step_by(GROUP / LINE) {
                let (stretch, group) = (line / (GROUP / LINE) / N::GROUPS, line / (GROUP / LINE) % N::GROUPS);
                let stretch = &bytes[stretch * N::STRETCH_BYTES..][..N::STRETCH_BYTES];
                let (mut block, scales) = N::widen(stretch, group);
                // SAFETY: the caller guarantees this; the same below.
                unsafe { T::transpose(&mut block) };
                let places = line - lines.start..(line + GROUP / LINE).min(lines.end) - lines.start;
                for ((output, row), numbers) in rows.chunks_exact_mut(*row_lines).enumerate().zip(&block) {
                    let numbers = numbers.0.map(u32::to_le_bytes);
                    let halves = numbers.as_flattened().as_chunks::<LINE>().0;
                    for (half, (place, numbers)) in row[places.clone()].iter_mut().zip(halves).enumerate() {
                        let both = [2 * half, 2 * half + 1];
                        let times = both.map(|run| scales.times[run][output]);
                        let plus = both.map(|run| scales.plus[run][output]);
                        // SAFETY: as above.
                        *place = unsafe { T::widen(numbers, times, plus) };
                    }
                }
            }
        }
    }
}
