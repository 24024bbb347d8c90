//! Prefetch of the next rows, spread evenly over the products of the current rows.

use super::LINE;

/// Fractions of a line: the number of lines per tile is not an integer.
const PARTS: usize = 1 << 16;

/// The memory to prefetch, and the progress.
pub struct Ahead {
    next: *const u8,
    /// Lines that were prefetched.
    lines: usize,
    /// Lines per tile, and lines due for all tiles that have begun; both in units of 1/`PARTS`.
    each: usize,
    due: usize,
}

impl Ahead {
    pub fn of(next: &[u8], tiles: usize) -> Self {
        let lines = next.len() / LINE;
        Self { next: next.as_ptr(), lines: 0, each: (lines * PARTS).div_ceil(tiles.max(1)), due: 0 }
    }

    /// The address and the lines per step (0, 1, 2 or 4) that a tile with this number of steps prefetches.
    #[inline(always)]
    pub fn next(&mut self, steps: usize) -> (*const u8, usize) {
        self.due += self.each;
        let wanted = (self.due / PARTS).saturating_sub(self.lines);
        let lines = [4, 2, 1].into_iter().find(|lines| wanted >= lines * steps).unwrap_or(0);
        let from = self.next.wrapping_add(self.lines * LINE);
        self.lines += lines * steps;
        (from, lines)
    }
}
