//! The interface of a level to tiles.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::super::packed::Line;
use super::pack::{self, Block};

/// The tile operations of a level.
///
/// # Safety
///
/// For every method: the machine has the level.
pub trait Tile {
    /// Outputs and groups of tokens of a tile.
    const OUTPUTS: usize;
    const GROUPS: usize;
    /// Steps whose lines stay in the first-level cache.
    const STEPS: usize;

    /// # Safety
    ///
    /// The memory of `part` is valid, with `OUTPUTS` outputs and at most `GROUPS` groups.
    unsafe fn add(part: &Part);

    /// The pairs of 16 steps of one token.
    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> Line {
        pack::line(numbers)
    }

    #[inline(always)]
    unsafe fn transpose(block: &mut Block) {
        pack::transpose(block);
    }

    /// `number * times + plus` as pairs. The first factors apply to the first 16 numbers, the second to the other 16.
    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], times: [f32; 2], plus: [f32; 2]) -> Line {
        let of = |at: usize| f32::from(numbers[at]) * times[at / 16] + plus[at / 16];
        pack::line(&std::array::from_fn::<_, 32, _>(of))
    }

    /// A thread calls these before and after it adds parts.
    #[inline(always)]
    unsafe fn begin() {}
    #[inline(always)]
    unsafe fn end() {}
}

/// A part of the steps of a tile.
pub struct Part {
    /// `[outputs][steps]`: pairs of bf16.
    pub weights: *const u32,
    /// Distance between the weights of two outputs.
    pub weights_stride: usize,
    /// `[groups][steps]`
    pub lines: *const Line,
    /// Distance between the lines of two groups.
    pub lines_stride: usize,
    pub groups: usize,
    pub steps: usize,
    /// `[outputs][groups][16]`
    pub sums: *mut f32,
    /// Distance between the sums of two outputs.
    pub sums_stride: usize,
}
