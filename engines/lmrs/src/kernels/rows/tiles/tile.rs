//! What a level must be able to do with a tile.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::super::packed::Line;
use super::pack::{self, Block};

/// How a level sums up a tile.
///
/// # Safety
///
/// Of every method: the machine has the level.
pub trait Tile {
    /// Outputs and groups of tokens that it has.
    const OUTPUTS: usize;
    const GROUPS: usize;
    /// Whose lines are to stay in the first cache.
    const STEPS: usize;

    /// # Safety
    ///
    /// What `Part` says lies there, with `OUTPUTS` outputs and at most `GROUPS` groups.
    unsafe fn add(part: &Part);

    /// Of one token the pairs of 16 steps.
    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> Line {
        pack::line(numbers)
    }

    #[inline(always)]
    unsafe fn transpose(block: &mut Block) {
        pack::transpose(block);
    }

    /// `number * times + plus` as pairs: the first of `times` and `plus` for 16 numbers, the second for the other 16.
    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], times: [f32; 2], plus: [f32; 2]) -> Line {
        let of = |at: usize| f32::from(numbers[at]) * times[at / 16] + plus[at / 16];
        pack::line(&std::array::from_fn::<_, 32, _>(of))
    }

    /// Before and after a thread adds parts.
    #[inline(always)]
    unsafe fn begin() {}
    #[inline(always)]
    unsafe fn end() {}
}

/// A part of a tile's steps.
pub struct Part {
    /// `[outputs][steps]`: pairs of bf16.
    pub weights: *const u32,
    /// From one output's weights to the next's.
    pub weights_stride: usize,
    /// `[groups][steps]`
    pub lines: *const Line,
    /// From one group's lines to the next's.
    pub lines_stride: usize,
    pub groups: usize,
    pub steps: usize,
    /// `[outputs][groups][16]`
    pub sums: *mut f32,
    /// From one output's sums to the next's.
    pub sums_stride: usize,
}
