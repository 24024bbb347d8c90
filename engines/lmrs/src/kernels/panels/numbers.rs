//! The trait of a format in panels (each format is a file in `crate::formats`). `multiply` defines the product, number by
//! number: this is the portable level, with which tests compare the other levels.
#![expect(unsafe_code, reason = "addresses within a panel")]

use std::ops::Range;

use half::f16;

use super::input::{ActivationBlock, BLOCK_INPUTS, Input};
use super::product::PanelLanes;
use crate::kernels::outputs::Outputs;
use crate::kernels::rows::PairLine;
use crate::matrix::{GROUP_INPUTS, Matrix, PANEL_OUTPUTS};

/// The layout of a format in panels. A section is an optional line (the head) shared by some groups, then these groups. A group
/// (64 inputs) has a line of scales and some runs of lines.
///
/// There are three ways to read this layout. `number` and `scale_and_minimum` give single numbers, for the portable level and
/// for row lookups. `line`, `scale`, `minimum` and `correction` give one line at a time in the types of `PanelLanes`, for every
/// level's products. There, `group` points to the group and `head` to its section; both are valid memory, and the processor has
/// the features of `L`. `widen` gives a group as bytes with factors, for tiles of bf16.
pub trait PanelFormat {
    /// Bytes of the head; 0 if the format has none.
    const HEAD_BYTES: usize;
    /// Groups of a section.
    const GROUPS: usize;
    const GROUP_BYTES: usize;
    const SECTION_BYTES: usize = Self::HEAD_BYTES + Self::GROUPS * Self::GROUP_BYTES;
    /// Runs in a group, each with a scale of its own: 2 of 8 lines, or 4 of 4 lines.
    const RUNS: usize;
    /// Whether numbers are stored plus 128, as values up to 255.
    const WIDE: bool = false;
    /// Offsets of the f16 scales within a quantization block of a file. Tests use them to make such blocks.
    const FILE_SCALES: &'static [usize] = &[0];

    /// Packs a row, in the layout of files, into a panel that has zeros in place of this row. Panics if the row has the wrong
    /// size.
    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize);

    /// The weight before scaling.
    fn number(section: &[u8], output: usize, input: usize) -> i32;
    /// The scale of a number, and the minimum that is subtracted from the scaled number.
    fn scale_and_minimum(section: &[u8], output: usize, input: usize) -> (f32, Option<f32>);

    /// A line of run `RUN`: four numbers of each output.
    unsafe fn line<L: PanelLanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes;
    unsafe fn scale<L: PanelLanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats;
    /// The minimum that is subtracted from each scaled number.
    #[inline(always)]
    unsafe fn minimum<L: PanelLanes, const RUN: usize>(_: *const u8, _: *const u8) -> Option<L::Floats> {
        None
    }
    /// The correction for numbers that are stored with an offset.
    fn correction<const RUN: usize>(x: &ActivationBlock) -> i32;

    /// A group of a section as stored numbers, with the factors that turn them into weights.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
    fn widen(section: &[u8], group: usize) -> (Bytes, Scales);
}

/// The f16 at this index.
#[inline(always)]
pub fn f16_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

/// The quantization blocks of a row of a file, with `numbers` numbers each. Panics if the row has the wrong size.
pub fn file_blocks<const BYTES: usize>(inputs: usize, numbers: usize, row: &[u8]) -> &[[u8; BYTES]] {
    let (blocks, rest) = row.as_chunks();
    assert!(rest.is_empty() && blocks.len() * numbers == inputs, "the bytes of a row of {inputs} inputs");
    blocks
}

/// The numbers of block `BLOCK` in a line whose bytes hold block 0 in their lower halves and block 1 in their upper halves.
///
/// # Safety
///
/// The processor has the features of `L`, and `at` points to a line.
#[inline(always)]
pub unsafe fn half_bytes<L: PanelLanes, const BLOCK: usize>(at: *const u8) -> L::Bytes {
    // SAFETY: the caller guarantees this.
    unsafe {
        let pairs = L::load_bytes(at);
        L::and(if BLOCK == 0 { pairs } else { L::shift_right::<4>(pairs) }, 15)
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

/// Adds to `sum` the products of one output's weights with the 32 activations of `x`.
fn add_block<N: PanelFormat>(
    section: &[u8],
    block: usize,
    output: usize,
    x: &ActivationBlock,
    sum: &mut f32,
) {
    // Inputs that share a scale.
    let run = GROUP_INPUTS / N::RUNS;
    for (at, numbers) in x.numbers.chunks(run).enumerate() {
        let first = block * BLOCK_INPUTS + at * run;
        let weights = (first..).map(|input| N::number(section, output, input));
        let dot: i32 = weights.zip(numbers).map(|(weight, &x)| weight * i32::from(x)).sum();
        let (scale, minimum) = N::scale_and_minimum(section, output, first);
        *sum += dot as f32 * (scale * x.scale);
        if let Some(minimum) = minimum {
            *sum += minimum * x.minus_sum;
        }
    }
}

/// Widens the weights of one output to f32. The lookup of embeddings uses it.
pub fn row<N: PanelFormat>(matrix: &Matrix, output: usize, destination: &mut [f32]) {
    assert!(output < matrix.outputs && destination.len() == matrix.inputs, "a row of the matrix");
    let sections = matrix.panel(output / PANEL_OUTPUTS).chunks_exact(N::SECTION_BYTES);
    let output = output % PANEL_OUTPUTS;
    let run = GROUP_INPUTS / N::RUNS;
    for (section, destination) in sections.zip(destination.chunks_mut(N::GROUPS * GROUP_INPUTS)) {
        for (at, destination) in destination.chunks_mut(run).enumerate() {
            let (scale, minimum) = N::scale_and_minimum(section, output, at * run);
            for (input, destination) in (at * run..).zip(destination) {
                *destination = N::number(section, output, input) as f32 * scale - minimum.unwrap_or(0.0);
            }
        }
    }
}

/// Inputs of a run in `Scales`: the shortest run of any format. The factors of a longer run are repeated.
const RUN_INPUTS: usize = 16;
const RUNS: usize = GROUP_INPUTS / RUN_INPUTS;

/// A group of a panel as bytes, for tiles of bf16: line `i` has the inputs `4i .. 4i + 4` of the group for 16 outputs, one byte
/// each.
pub type Bytes = [PairLine; GROUP_INPUTS / 4];

/// The factors for each run of a group and each output: a weight is `number * factor + offset`, with the stored number.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
pub struct Scales {
    pub factors: [[f32; PANEL_OUTPUTS]; RUNS],
    pub offsets: [[f32; PANEL_OUTPUTS]; RUNS],
}

impl Scales {
    /// The factors of numbers that are stored plus `offset`. It is a power of two, so `offsets` are exact.
    #[inline(always)]
    pub fn with_offset(offset: f32, factors: [[f32; PANEL_OUTPUTS]; RUNS]) -> Self {
        Self { factors, offsets: factors.map(|factors| factors.map(|factors| -offset * factors)) }
    }
}

/// The values of two blocks of 32 inputs, repeated for each run of 16 inputs.
#[inline(always)]
pub fn repeat_for_runs([first, second]: [[f32; PANEL_OUTPUTS]; 2]) -> [[f32; PANEL_OUTPUTS]; RUNS] {
    [first, first, second, second]
}

/// The 16 lines of a group from eight: first the lower halves of all their bytes, then the upper halves.
#[inline(always)]
pub fn nibbles(lines: &[u8]) -> Bytes {
    std::array::from_fn(|at| PairLine(line(lines, at % 8).0.map(|quad| quad >> (at / 8 * 4) & 0x0f0f_0f0f)))
}

#[inline(always)]
pub fn line(bytes: &[u8], at: usize) -> PairLine {
    let quads = bytes[at * 64..][..64].as_chunks::<4>().0;
    PairLine(std::array::from_fn(|output| u32::from_le_bytes(quads[output])))
}

#[inline(always)]
pub fn f16_lanes(bytes: &[u8]) -> [f32; PANEL_OUTPUTS] {
    let bytes = &bytes[..2 * PANEL_OUTPUTS];
    std::array::from_fn(|output| f16_at(bytes, output))
}

#[inline(always)]
pub fn lanes(bytes: &[u8], number: impl Fn(u8) -> f32) -> [f32; PANEL_OUTPUTS] {
    let bytes = &bytes[..PANEL_OUTPUTS];
    std::array::from_fn(|output| number(bytes[output]))
}

#[inline(always)]
pub fn product(a: [f32; PANEL_OUTPUTS], b: [f32; PANEL_OUTPUTS]) -> [f32; PANEL_OUTPUTS] {
    std::array::from_fn(|output| a[output] * b[output])
}
