//! Products with weights of 8, 6 and 4 bits, which lie in panels of 16 outputs as `crate::formats` says.
//!
//! ```text
//! numbers   what a format must say of itself; group: of it what tiles of bf16 read
//! input     activations -> 8 bits, one scale for 32 of them
//! portable  what a product is, number by number: the reference
//! lanes     what a level must be able to do with 64 bytes
//! tile      some tokens times some panels, in registers
//! walk      in which order panels and tokens are visited
//! levels    which code a level is: avx512, avx2, neon, portable
//! ```
//!
//! All of it is written once, over `Numbers`, and compiled for each format: `PanelKernels` is what came of it.
//!
//! Many tokens go another way where a level has tiles of bf16: `kernels::rows` widens panels for them.
//!
//! Weights and activations are multiplied as integers, exactly, over each run of inputs that has one scale; the runs are
//! added up as f32. So all levels agree in the integers, and differ only in the rounding of the sum.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
pub(crate) mod group;
mod input;
mod lanes;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod levels;
#[cfg(target_arch = "aarch64")]
#[path = "arm.rs"]
mod levels;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "other.rs"]
mod levels;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod numbers;
mod portable;
#[cfg(test)]
pub mod tests;
mod tile;
mod walk;

use std::ops::Range;

pub use input::{Block, Input, InputPart};
pub(crate) use lanes::Lanes;
pub(crate) use numbers::Numbers;

use super::Level;
use super::outputs::Outputs;
use crate::matrix::{GROUP, Matrix, PANEL};
use crate::rows::Rows;

/// The kernels of a format whose matrices lie in panels.
pub struct PanelKernels {
    /// Inputs whose numbers stand together, scales and all.
    stretch: usize,
    /// Bytes of 16 outputs over one stretch.
    stretch_bytes: usize,
    /// Where in a block of a file its scales in f16 stand.
    pub file_scales: &'static [usize],
    pack: fn(usize, &[u8], &mut [u8], usize),
    multiply: fn(Level, &Matrix, Range<usize>, &Input, &mut Outputs<'_>),
    row: fn(&Matrix, usize, &mut [f32]),
    #[cfg(all(test, target_arch = "x86_64"))]
    pub modelled_tile: fn(&Matrix, &Rows) -> Rows,
}

impl PanelKernels {
    pub(crate) const fn of<N: Numbers>() -> Self {
        Self {
            stretch: N::GROUPS * GROUP,
            stretch_bytes: N::STRETCH_BYTES,
            file_scales: N::FILE_SCALES,
            pack: N::pack,
            multiply: levels::multiply::<N>,
            row: portable::row::<N>,
            #[cfg(all(test, target_arch = "x86_64"))]
            modelled_tile: super::rows::modelled_panels::<N>,
        }
    }

    /// Of a panel.
    pub fn bytes(&self, inputs: usize) -> usize {
        inputs.div_ceil(self.stretch) * self.stretch_bytes
    }

    /// Up to 16 rows of `inputs` numbers, as files have them, into one panel. Rows that are missing, and inputs after the last,
    /// get the scale 0. Panics where a row or the panel has not its size: the caller has checked the file's own figures.
    pub fn pack(&self, inputs: usize, rows: &[&[u8]], panel: &mut [u8]) {
        assert!(rows.len() <= PANEL, "a panel has 16 rows");
        assert_eq!(panel.len(), self.bytes(inputs), "the bytes of a panel");
        panel.fill(0);
        for (output, row) in rows.iter().enumerate() {
            (self.pack)(inputs, row, panel, output);
        }
    }
}

/// The kernels of a matrix that lies in panels.
fn kernels(matrix: &Matrix) -> &PanelKernels {
    matrix.format.panels().expect("a matrix in panels")
}

/// All tokens of `x`, quantised.
pub fn prepare(level: Level, x: &Rows, input: &mut Input) {
    input.reshape(x.tokens(), x.width);
    for part in input.parts(1) {
        prepare_part(level, x, part);
    }
}

/// Some tokens of `x`: one of the parts that `Input::parts` divides an input of the right size into.
pub fn prepare_part(level: Level, x: &Rows, part: InputPart<'_>) {
    levels::prepare_part(level, x, part);
}

/// The outputs of these panels, `16 * panels.start ..` and so on, which are just the columns of `out`.
pub fn multiply(level: Level, matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    walk::check(matrix, &panels, input, out);
    (kernels(matrix).multiply)(level, matrix, panels, input, out);
}

/// The weights of one output, as its format widens them.
pub fn row(matrix: &Matrix, output: usize, into: &mut [f32]) {
    (kernels(matrix).row)(matrix, output, into);
}
