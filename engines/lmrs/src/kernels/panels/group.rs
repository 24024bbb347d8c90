//! A group of a panel as bytes with factors: the form in which tiles of bf16 read formats of 8, 6 and 4 bits.

use crate::kernels::half;
use crate::kernels::rows::Line;
use crate::matrix::{GROUP, PANEL};

/// Inputs that share a scale in every format.
const RUN: usize = 16;
const RUNS: usize = GROUP / RUN;

/// Line `i` has the inputs `4i .. 4i + 4` of the group for 16 outputs, one byte each.
pub type Bytes = [Line; GROUP / 4];

/// The factors for each run of a group and each output: a weight is `number * times + plus`, with the stored number.
#[derive(Debug)]
pub struct Scales {
    pub times: [[f32; PANEL]; RUNS],
    pub plus: [[f32; PANEL]; RUNS],
}

impl Scales {
    /// Factors for numbers that are stored plus `more`, a power of two, so that `plus` is exact.
    #[inline(always)]
    pub fn less(more: f32, times: [[f32; PANEL]; RUNS]) -> Self {
        Self { times, plus: times.map(|times| times.map(|times| -more * times)) }
    }
}

/// The values of two blocks of 32 inputs, repeated for each run of 16 inputs.
#[inline(always)]
pub fn twice([first, second]: [[f32; PANEL]; 2]) -> [[f32; PANEL]; RUNS] {
    [first, first, second, second]
}

/// Eight lines: the lower halves of their bytes, then the upper ones.
#[inline(always)]
pub fn nibbles(lines: &[u8]) -> Bytes {
    std::array::from_fn(|at| Line(line(lines, at % 8).0.map(|quad| quad >> (at / 8 * 4) & 0x0f0f_0f0f)))
}

#[inline(always)]
pub fn line(bytes: &[u8], at: usize) -> Line {
    let quads = bytes[at * 64..][..64].as_chunks::<4>().0;
    Line(std::array::from_fn(|output| u32::from_le_bytes(quads[output])))
}

#[inline(always)]
pub fn halves(bytes: &[u8]) -> [f32; PANEL] {
    let bytes = &bytes[..2 * PANEL];
    std::array::from_fn(|output| half::at(bytes, output))
}

#[inline(always)]
pub fn lanes(bytes: &[u8], number: impl Fn(u8) -> f32) -> [f32; PANEL] {
    let bytes = &bytes[..PANEL];
    std::array::from_fn(|output| number(bytes[output]))
}

#[inline(always)]
pub fn product(a: [f32; PANEL], b: [f32; PANEL]) -> [f32; PANEL] {
    std::array::from_fn(|output| a[output] * b[output])
}
