//! The trait of a format that is stored in panels. Each format is a file in `crate::formats`.
#![expect(unsafe_code, reason = "addresses within a panel")]

use super::group::{Bytes, Scales};
use super::input::Block;
use super::lanes::Lanes;

/// The layout of a format in panels. A stretch is an optional line (the head) shared by some groups, then these groups. A group
/// (64 inputs) has a line of scales and some runs of lines.
///
/// There are three ways to read it. `number` and `scale_and_minimum` give single numbers, for the portable level and for row
/// lookups. `line`, `scale`, `minimum` and `less` give one line at a time in the types of `Lanes`, for every level's products.
/// `widen` gives a group as bytes with factors, for tiles of bf16. In the second way `group` points to the group and `head` to
/// its stretch; both are valid memory, and the processor has the features of `L`.
pub trait Numbers {
    /// Bytes of the line that groups share.
    const HEAD_BYTES: usize;
    const GROUPS: usize;
    const GROUP_BYTES: usize;
    const STRETCH_BYTES: usize = Self::HEAD_BYTES + Self::GROUPS * Self::GROUP_BYTES;
    /// Runs in a group, each with a scale of its own: 2 of 8 lines, or 4 of 4 lines.
    const RUNS: usize;
    /// Whether numbers are stored plus 128, as values up to 255.
    const WIDE: bool = false;
    /// Offsets of the f16 scales within a block of a file. Tests use them to make blocks.
    const FILE_SCALES: &'static [usize] = &[0];

    /// Packs a row, in the layout of files, into a panel that is zero there. Panics if the row has the wrong size.
    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize);

    /// The weight before scaling.
    fn number(stretch: &[u8], output: usize, input: usize) -> i32;
    /// The scale of a number, and the minimum that is subtracted after it.
    fn scale_and_minimum(stretch: &[u8], output: usize, input: usize) -> (f32, Option<f32>);

    /// A line of run `RUN`: four numbers of each output.
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes;
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats;
    /// The minimum that is subtracted from each scaled number.
    #[inline(always)]
    unsafe fn minimum<L: Lanes, const RUN: usize>(_: *const u8, _: *const u8) -> Option<L::Floats> {
        None
    }
    /// The correction for numbers that are stored with an offset.
    fn less<const RUN: usize>(x: &Block) -> i32;

    /// A group of a stretch as stored numbers, with the factors that turn them into weights.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
    fn widen(stretch: &[u8], group: usize) -> (Bytes, Scales);
}

/// The blocks of a row of a file, with `numbers` numbers each. Panics if the row has the wrong size.
pub fn file_blocks<const BYTES: usize>(inputs: usize, numbers: usize, row: &[u8]) -> &[[u8; BYTES]] {
    let (blocks, rest) = row.as_chunks();
    assert!(rest.is_empty() && blocks.len() * numbers == inputs, "the bytes of a row of {inputs} inputs");
    blocks
}

/// A line whose bytes hold block 0 in their lower halves and block 1 in their upper halves.
///
/// # Safety
///
/// The processor has the features of `L`, and `at` points to a line.
#[inline(always)]
pub unsafe fn half_bytes<L: Lanes, const BLOCK: usize>(at: *const u8) -> L::Bytes {
    // SAFETY: the caller guarantees this.
    unsafe {
        let pairs = L::bytes(at);
        L::and(if BLOCK == 0 { pairs } else { L::right::<4>(pairs) }, 15)
    }
}
