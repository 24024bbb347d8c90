//! Contiguous bf16 numbers, aligned to cache lines. Beyond the first-level cache, a load across two lines costs twice as much.
#![expect(unsafe_code, reason = "lines seen as the numbers that they are")]

use super::apart::{NUMBERS, Numbers};

/// Activations token after token, or unpacked rows of weights.
#[derive(Debug, Default)]
pub struct Aligned {
    lines: Vec<Numbers>,
    count: usize,
}

impl Aligned {
    /// Changes the length and keeps the memory. The contents are unspecified afterwards.
    pub fn resize(&mut self, count: usize) {
        self.count = count;
        let lines = self.lines.len().max(count.div_ceil(NUMBERS));
        self.lines.resize(lines, Numbers([0; NUMBERS]));
    }

    pub fn all(&self) -> &[u16] {
        // SAFETY: lines are contiguous numbers without padding, and there are at least `count` of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }

    pub fn all_mut(&mut self) -> &mut [u16] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count) }
    }
}
