//! Products with weights of 8, 6 and 4 bits, in panels of 16 outputs (layout: `crate::formats`).
//!
//! ```text
//! numbers   the trait of a format, and the definition of a product, number by number
//! input     activations -> 8 bits, one scale for 32 of them
//! product   the order of panels and tokens; the product of one panel with up to twelve tokens, or of eight panels with one
//!           token, with sums in registers; `PanelLanes`: the trait of a level
//! avx2, avx512, neon   the levels
//! ```
//!
//! The code is written once, over `PanelFormat`, and compiled for each format: `PanelKernels` holds the functions.
//!
//! For many tokens, levels with tiles of bf16 use `kernels::rows`, which widens panels.
//!
//! Within a run (inputs that share a scale), products are summed exactly, as integers; the sums of runs are scaled and added as
//! f32. So levels differ only in the rounding of these f32 operations.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "SIMD instructions")
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod input;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod numbers;
mod product;
#[cfg(test)]
pub mod tests;

use std::ops::Range;

pub use input::{ActivationBlock, Input, InputPart};
pub(crate) use numbers::PanelFormat;
pub(crate) use product::PanelLanes;

use super::outputs::Outputs;
use super::{Instructions, Level};
use crate::matrix::{GROUP_INPUTS, Matrix, PANEL_OUTPUTS, Rows};

/// The kernels of a format in panels.
pub struct PanelKernels {
    /// Inputs that are stored together with their scales.
    section_inputs: usize,
    /// Bytes of 16 outputs over one section.
    section_bytes: usize,
    /// Byte positions of the f16 scales in a quantization block of a file.
    pub file_scales: &'static [usize],
    pack: fn(usize, &[u8], &mut [u8], usize),
    multiply: fn(Level, &Matrix, Range<usize>, &Input, &mut Outputs<'_>),
    row: fn(&Matrix, usize, &mut [f32]),
    /// The product through emulated AMX tiles.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub emulated_product: fn(&Matrix, &Rows) -> Rows,
}

impl PanelKernels {
    pub(crate) const fn of<N: PanelFormat>() -> Self {
        Self {
            section_inputs: N::GROUPS * GROUP_INPUTS,
            section_bytes: N::SECTION_BYTES,
            file_scales: N::FILE_SCALES,
            pack: N::pack,
            multiply: multiply_at::<N>,
            row: numbers::row::<N>,
            #[cfg(all(test, target_arch = "x86_64"))]
            emulated_product: super::rows::emulated_panel_product::<N>,
        }
    }

    pub fn panel_bytes(&self, inputs: usize) -> usize {
        inputs.div_ceil(self.section_inputs) * self.section_bytes
    }

    /// Packs up to 16 rows of `inputs` numbers, in the layout of files, into one panel. Missing rows and padding inputs get the
    /// scale 0. Panics if a row or the panel has the wrong size: the caller has checked the file's sizes.
    pub fn pack(&self, inputs: usize, rows: &[&[u8]], panel: &mut [u8]) {
        assert!(rows.len() <= PANEL_OUTPUTS, "a panel has 16 rows");
        assert_eq!(panel.len(), self.panel_bytes(inputs), "the bytes of a panel");
        panel.fill(0);
        for (output, row) in rows.iter().enumerate() {
            (self.pack)(inputs, row, panel, output);
        }
    }
}

fn kernels(matrix: &Matrix) -> &PanelKernels {
    matrix.format.panels().expect("a matrix in panels")
}

/// Quantizes all tokens of `x`.
pub fn prepare(level: Level, x: &Rows, input: &mut Input) {
    input.reshape(x.tokens(), x.width);
    for part in input.parts(1) {
        prepare_part(level, x, part);
    }
}

/// Quantizes some tokens of `x` into a part, which comes from `Input::parts` of an input with the shape of `x`.
pub fn prepare_part(level: Level, x: &Rows, part: InputPart<'_>) {
    match level.instructions() {
        // SAFETY: a `Level` value exists only on a machine that has the level.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { avx2::prepare_part(x, part) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 | Instructions::Amx => unsafe { avx512::prepare_part(x, part) },
        _ => part.fill(x, ActivationBlock::of),
    }
}

/// Computes the outputs of these panels, from `16 * panels.start` on. `out` has exactly these outputs as its columns.
pub fn multiply(level: Level, matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    product::check(matrix, &panels, input, out);
    (kernels(matrix).multiply)(level, matrix, panels, input, out);
}

/// Widens the weights of one output to f32.
pub fn row(matrix: &Matrix, output: usize, destination: &mut [f32]) {
    (kernels(matrix).row)(matrix, output, destination);
}

/// Panels that are read at once for one token at the AMX level: 8 are fastest on a Sapphire Rapids. The other levels read one
/// panel at a time, which is fastest on a Zen 4.
#[cfg(target_arch = "x86_64")]
const STREAMS_AMX: usize = 8;

/// Multiplies panels. `N` is the matrix's format, and `product::check` has passed.
fn multiply_at<N: PanelFormat>(
    level: Level,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    match level.instructions() {
        Instructions::Portable => numbers::multiply::<N>(matrix, panels, input, out),
        // SAFETY: a `Level` value exists only on a machine that has the level; `product::check` has passed.
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon => unsafe { neon::multiply::<N>(matrix, panels, input, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { avx2::multiply::<N>(matrix, panels, input, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { avx512::multiply::<N>(1, matrix, panels, input, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Amx => unsafe { avx512::multiply::<N>(STREAMS_AMX, matrix, panels, input, out) },
    }
}
