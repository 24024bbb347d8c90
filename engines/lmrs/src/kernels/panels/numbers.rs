//! The trait of a format that is stored in panels. Each format is a file in `crate::formats`.
#![expect(unsafe_code, reason = "addresses within a panel")]

use super::group::{Bytes, Scales};
use super::input::Block;
use super::lanes::Lanes;

/// Numbers in panels. A stretch is a line that some groups share, where there is one, and the groups. A group (64 inputs) has a
/// line of scales and some runs, each of some lines.
///
/// It is read in three ways: number by number (`number`, `scale_and_minimum`: the portable level, and rows that are looked up), a
/// line at a time in the words of `Lanes` (`line`, `scale`, `minimum`, `less`: every level's products), and a group at a time as bytes
/// with factors (`widen`: tiles of bf16). Of the second `group` is where a group begins, `head` where its stretch does; what is
/// read lies in both, and the processor has what `L` needs.
pub trait Numbers {
    /// Of the line that groups share.
    const HEAD_BYTES: usize;
    const GROUPS: usize;
    const GROUP_BYTES: usize;
    const STRETCH_BYTES: usize = Self::HEAD_BYTES + Self::GROUPS * Self::GROUP_BYTES;
    /// Runs in a group, each with a scale of its own: 2 of 8 lines, or 4 of 4 lines.
    const RUNS: usize;
    /// Numbers are 128 more than meant, and up to 255.
    const WIDE: bool = false;
    /// Where in a block of a file its scales in f16 stand, by which tests make blocks.
    const FILE_SCALES: &'static [usize] = &[0];

    /// A row, as files have it, into its places in a panel that is zero there. Panics where a row has not its size.
    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize);

    /// The weight before it is scaled.
    fn number(stretch: &[u8], output: usize, input: usize) -> i32;
    /// The scale of a number, and the minimum that is subtracted after it.
    fn scale_and_minimum(stretch: &[u8], output: usize, input: usize) -> (f32, Option<f32>);

    /// A line of run `RUN`: four numbers of each output.
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes;
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats;
    /// What is taken off each number after it was scaled.
    #[inline(always)]
    unsafe fn minimum<L: Lanes, const RUN: usize>(_: *const u8, _: *const u8) -> Option<L::Floats> {
        None
    }
    /// What makes up for numbers that are stored as more than is meant.
    fn less<const RUN: usize>(x: &Block) -> i32;

    /// A group of a stretch: its numbers as they are stored, and what makes weights of them.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "levels of x86 alone have tiles"))]
    fn widen(stretch: &[u8], group: usize) -> (Bytes, Scales);
}

/// The blocks of a row of a file, of so many numbers each, of which there must be just so many.
pub fn file_blocks<const BYTES: usize>(inputs: usize, numbers: usize, row: &[u8]) -> &[[u8; BYTES]] {
    let (blocks, rest) = row.as_chunks();
    assert!(rest.is_empty() && blocks.len() * numbers == inputs, "the bytes of a row of {inputs} inputs");
    blocks
}

/// The lower halves of the bytes of a line are of block 0, the upper ones of block 1.
///
/// # Safety
///
/// The processor has what `L` needs, and a line is there.
#[inline(always)]
pub unsafe fn half_bytes<L: Lanes, const BLOCK: usize>(at: *const u8) -> L::Bytes {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = L::bytes(at);
        L::and(if BLOCK == 0 { pairs } else { L::right::<4>(pairs) }, 15)
    }
}
