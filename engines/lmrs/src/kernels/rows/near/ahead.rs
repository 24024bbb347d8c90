//! What comes next, fetched evenly while what is there is multiplied.

use super::LINE;

/// Of a line: how many a tile fetches is no whole number.
const PARTS: usize = 1 << 16;

/// What is fetched, and how much of it was.
pub struct Ahead {
    next: *const u8,
    /// That were fetched.
    lines: usize,
    /// Lines of a tile, in parts of `PARTS`; and of all tiles that have begun.
    each: usize,
    due: usize,
}

impl Ahead {
    pub fn of(next: &[u8], tiles: usize) -> Self {
        let lines = next.len() / LINE;
        Self { next: next.as_ptr(), lines: 0, each: (lines * PARTS).div_ceil(tiles.max(1)), due: 0 }
    }

    /// From where on a tile of so many steps fetches how many lines in each of them: 0, 1, 2 or 4.
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
