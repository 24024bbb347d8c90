//! The innermost product: a few tokens times four rows, with the sums in registers.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]
#![expect(clippy::needless_range_loop, reason = "indices of several arrays at once, as in the formula")]

use super::super::apart::NUMBERS;
use super::super::lanes::Lanes;
use super::super::paired::Paired;
use super::LINE;

pub const ROWS: usize = super::super::PASSED_ROWS;
/// The most tokens of a tile: their sums fill the registers.
pub const TOKENS: usize = 6;

/// `[token][row]`
pub type Sums = [[Paired; ROWS]; TOKENS];

/// Four rows by a few tokens.
pub struct Tile<const COUNT: usize> {
    pub rows: [*const u8; ROWS],
    pub x: [*const u16; COUNT],
    /// Steps of whole lines.
    pub steps: usize,
    /// Whether earlier sums exist and are continued.
    pub goes_on: bool,
}

impl<const COUNT: usize> Tile<COUNT> {
    /// Adds all steps. Each step prefetches `FETCHED` lines, from `from` on.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512 with bf16 products; each pointer has the numbers of all steps.
    #[inline(always)]
    pub unsafe fn add<const FETCHED: usize>(&self, from: *const u8, kept: &mut Sums) {
        // SAFETY: the caller guarantees this.
        unsafe {
            let mut sums = [[Paired::zero(); ROWS]; COUNT];
            if self.goes_on {
                for (sums, kept) in sums.iter_mut().zip(kept.iter()) {
                    *sums = *kept;
                }
            }
            for step in 0..self.steps {
                for line in 0..FETCHED {
                    Paired::fetch(from.wrapping_add((step * FETCHED + line) * LINE));
                }
                let mut weights = [Paired::zero(); ROWS];
                for row in 0..ROWS {
                    weights[row] = Paired::from_bf16(self.rows[row].add(step * LINE));
                }
                for token in 0..COUNT {
                    let x = Paired::load(self.x[token].add(step * NUMBERS));
                    for row in 0..ROWS {
                        sums[token][row] = sums[token][row].add_product(weights[row], x);
                    }
                }
            }
            for (kept, sums) in kept.iter_mut().zip(sums) {
                *kept = sums;
            }
        }
    }
}
