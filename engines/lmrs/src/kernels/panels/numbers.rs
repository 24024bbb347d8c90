//! The trait of a format in panels: 16 rows of quantized weights side by side. Each format is a file in `crate::formats`.
//! `multiply` defines the product, number by number: it is the portable level, with which tests compare the other levels.
#![expect(unsafe_code, reason = "addresses within a panel")]

use std::ops::Range;

use half::f16;

use super::input::{ActivationBlock, BLOCK_INPUTS, Input};
use super::product::PanelLanes;
use crate::kernels::outputs::Outputs;
use crate::kernels::rows::U32Line;
use crate::matrix::{GROUP_INPUTS, Matrix, PANEL_OUTPUTS};

/// The layout of a format in panels. A line is 64 bytes, with an equal share for each of the panel's 16 outputs. A group is 64
/// inputs: a line of scales, then lines of numbers. A run is those inputs of a group that share a scale. A section is some
/// groups; in some formats, a line with further scales (the head) precedes them.
///
/// There are three ways to read this layout. `number` and `scale_and_minimum` give single numbers of a section, for the portable
/// level and for row lookups. `line`, `scale`, `minimum` and `correction` give 16 outputs at a time in the types of `PanelLanes`,
/// for the other levels: `group` is the address of a group, `head` that of its section, and the processor has the features of
/// `L`. `widen` gives a group as bytes with factors, for tiles of bf16.
pub trait PanelFormat {
    /// Bytes of the head; 0 if the format has none.
    const HEAD_BYTES: usize;
    /// Groups of a section.
    const GROUPS: usize;
    const GROUP_BYTES: usize;
    const SECTION_BYTES: usize = Self::HEAD_BYTES + Self::GROUPS * Self::GROUP_BYTES;
    /// Runs of a group: 2, each of 32 inputs, or 4, each of 16.
    const RUNS: usize;
    /// Whether numbers are stored plus 128, from 0 to 255. In other formats, stored numbers are below 64.
    const STORED_PLUS_128: bool = false;
    /// Byte positions of the f16 scales in a quantization block of a file. Tests use them to make random blocks.
    const FILE_SCALES: &'static [usize] = &[0];

    /// Packs a row, in the layout of files, into a panel that has zeros in place of this row. Panics if the row has the wrong
    /// size.
    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize);

    /// A weight before scaling. `output` is its row in the panel, and `input` counts from the start of the section.
    fn number(section: &[u8], output: usize, input: usize) -> i32;
    /// The scale of the same weight, and the minimum that is subtracted from the scaled number.
    fn scale_and_minimum(section: &[u8], output: usize, input: usize) -> (f32, Option<f32>);

    /// Inputs `4 * line .. 4 * line + 4` of run `RUN`: four stored numbers of each output.
    unsafe fn line<L: PanelLanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes;
    unsafe fn scale<L: PanelLanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats;
    #[inline(always)]
    unsafe fn minimum<L: PanelLanes, const RUN: usize>(_: *const u8, _: *const u8) -> Option<L::Floats> {
        None
    }
    /// The initial value of a run's integer sums. If numbers are stored plus an offset, it is minus this offset times the sum of
    /// the run's 8-bit activations; otherwise 0.
    fn correction<const RUN: usize>(x: &ActivationBlock) -> i32;

    /// The stored numbers of a group of the section, and the scales that turn them into weights.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
    fn widen(section: &[u8], group: usize) -> (Lines, Scales);
}

/// The f16 number at this index, counted in numbers.
#[inline(always)]
pub fn f16_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

/// The quantization blocks of a file's row: `BYTES` bytes and `numbers` numbers each. Panics if the row has the wrong size.
pub fn file_blocks<const BYTES: usize>(inputs: usize, numbers: usize, row: &[u8]) -> &[[u8; BYTES]] {
    let (blocks, rest) = row.as_chunks();
    assert!(rest.is_empty() && blocks.len() * numbers == inputs, "the bytes of a row of {inputs} inputs");
    blocks
}

/// The numbers of run `RUN` in a line whose bytes hold run 0 in their lower halves and run 1 in their upper halves.
///
/// # Safety
/// The processor has the features of `L`, and `at` points to a line.
#[inline(always)]
pub unsafe fn nibbles_of_run<L: PanelLanes, const RUN: usize>(at: *const u8) -> L::Bytes {
    // SAFETY: the caller guarantees this.
    unsafe {
        let bytes = L::load_bytes(at);
        L::and(if RUN == 0 { bytes } else { L::shift_right::<4>(bytes) }, 15)
    }
}

/// Computes the product at the portable level, number by number.
pub fn multiply<N: PanelFormat>(matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    let start = out.outputs().start;
    for panel in panels {
        let sections = matrix.panel(panel).chunks_exact(N::SECTION_BYTES);
        let outputs = panel * PANEL_OUTPUTS..matrix.outputs.min(panel * PANEL_OUTPUTS + PANEL_OUTPUTS);
        for token in 0..input.tokens() {
            let sums = &mut out.row_mut(token)[outputs.start - start..outputs.end - start];
            sums.fill(0.0);
            for (at, section) in sections.clone().enumerate() {
                let blocks = N::GROUPS * GROUP_INPUTS / BLOCK_INPUTS;
                for block in 0..blocks {
                    let x = input.block(token, at * blocks + block);
                    for (output, sum) in sums.iter_mut().enumerate() {
                        add_block::<N>(section, block, output, x, sum);
                    }
                }
            }
        }
    }
}

/// Adds to `sum` the products of one output's weights with the 32 activations of `x`, block `block` of the section.
fn add_block<N: PanelFormat>(
    section: &[u8],
    block: usize,
    output: usize,
    x: &ActivationBlock,
    sum: &mut f32,
) {
    let run_inputs = GROUP_INPUTS / N::RUNS;
    for (run, numbers) in x.numbers.chunks(run_inputs).enumerate() {
        let first = block * BLOCK_INPUTS + run * run_inputs;
        let weights = (first..).map(|input| N::number(section, output, input));
        let dot: i32 = weights.zip(numbers).map(|(weight, &x)| weight * i32::from(x)).sum();
        let (scale, minimum) = N::scale_and_minimum(section, output, first);
        *sum += dot as f32 * (scale * x.scale);
        // A format with minima has runs of 32 inputs, so the run is the whole block.
        if let Some(minimum) = minimum {
            *sum += minimum * x.minus_sum;
        }
    }
}

/// Widens the weights of one output to f32, to look up an embedding.
pub fn row<N: PanelFormat>(matrix: &Matrix, output: usize, destination: &mut [f32]) {
    assert!(output < matrix.outputs && destination.len() == matrix.inputs, "a row of the matrix");
    let sections = matrix.panel(output / PANEL_OUTPUTS).chunks_exact(N::SECTION_BYTES);
    let output = output % PANEL_OUTPUTS;
    let run_inputs = GROUP_INPUTS / N::RUNS;
    for (section, destination) in sections.zip(destination.chunks_mut(N::GROUPS * GROUP_INPUTS)) {
        for (run, destination) in destination.chunks_mut(run_inputs).enumerate() {
            let first = run * run_inputs;
            let (scale, minimum) = N::scale_and_minimum(section, output, first);
            for (input, destination) in (first..).zip(destination) {
                *destination = N::number(section, output, input) as f32 * scale - minimum.unwrap_or(0.0);
            }
        }
    }
}

/// Runs of a group in `Scales`: four of 16 inputs, the most of any format. The scales of runs of 32 inputs are repeated.
const MAX_RUNS: usize = 4;

/// The stored numbers of a group, one byte each: line `i` has the inputs `4i .. 4i + 4` of 16 outputs.
pub type Lines = [U32Line; GROUP_INPUTS / 4];

/// The scales of a group, for each run and each output: a weight is `number * factor + addend`, with the stored number.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
pub struct Scales {
    pub factors: [[f32; PANEL_OUTPUTS]; MAX_RUNS],
    pub addends: [[f32; PANEL_OUTPUTS]; MAX_RUNS],
}

impl Scales {
    /// The scales of numbers that are stored plus `offset`: a power of two, so the addends are exact.
    #[inline(always)]
    pub fn stored_plus(offset: f32, factors: [[f32; PANEL_OUTPUTS]; MAX_RUNS]) -> Self {
        Self { factors, addends: factors.map(|factors| factors.map(|factor| -offset * factor)) }
    }
}

/// The values of two runs of 32 inputs, as those of four runs of 16 inputs.
#[inline(always)]
pub fn repeat_for_runs([first, second]: [[f32; PANEL_OUTPUTS]; 2]) -> [[f32; PANEL_OUTPUTS]; MAX_RUNS] {
    [first, first, second, second]
}

/// The 16 lines of a group from 8: the lower halves of all their bytes (run 0), then the upper halves (run 1).
#[inline(always)]
pub fn nibbles_of_group(lines: &[u8]) -> Lines {
    std::array::from_fn(|at| U32Line(line(lines, at % 8).0.map(|quad| quad >> (at / 8 * 4) & 0x0f0f_0f0f)))
}

#[inline(always)]
pub fn line(bytes: &[u8], index: usize) -> U32Line {
    let quads = bytes[index * 64..][..64].as_chunks::<4>().0;
    U32Line(std::array::from_fn(|output| u32::from_le_bytes(quads[output])))
}

#[inline(always)]
pub fn f16_lanes(bytes: &[u8]) -> [f32; PANEL_OUTPUTS] {
    let bytes = &bytes[..2 * PANEL_OUTPUTS];
    std::array::from_fn(|output| f16_at(bytes, output))
}

#[inline(always)]
pub fn byte_lanes(bytes: &[u8], number: impl Fn(u8) -> f32) -> [f32; PANEL_OUTPUTS] {
    let bytes = &bytes[..PANEL_OUTPUTS];
    std::array::from_fn(|output| number(bytes[output]))
}

#[inline(always)]
pub fn product(a: [f32; PANEL_OUTPUTS], b: [f32; PANEL_OUTPUTS]) -> [f32; PANEL_OUTPUTS] {
    std::array::from_fn(|output| a[output] * b[output])
}
