//! Numbers in bf16, one behind the other, from the beginning of a line on: a register that is loaded from two lines costs twice
//! what one of a line does, where they have left the first cache.
#![expect(unsafe_code, reason = "lines seen as the numbers that they are")]

use super::apart::{NUMBERS, Numbers};

/// Activations as they come, token after token; or rows of weights, for as long as they are unpacked.
#[derive(Debug, Default)]
pub struct Aligned {
    lines: Vec<Numbers>,
    count: usize,
}

impl Aligned {
    /// What it holds afterwards is anything. It keeps its memory.
    pub fn resize(&mut self, count: usize) {
        self.count = count;
        let lines = self.lines.len().max(count.div_ceil(NUMBERS));
        self.lines.resize(lines, Numbers([0; NUMBERS]));
    }

    pub fn all(&self) -> &[u16] {
        // SAFETY: lines are so many numbers one behind the other and nothing else, and there are enough of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }

    pub fn all_mut(&mut self) -> &mut [u16] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count) }
    }
}
