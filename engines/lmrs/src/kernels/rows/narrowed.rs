//! Activations in bf16, row after row as they come, from the beginning of a line on: a register that is loaded from two lines costs
//! twice what one of a line does, where they have left the first cache.
#![expect(unsafe_code, reason = "lines seen as the numbers that they are")]

use super::apart::{NUMBERS, Numbers};

#[derive(Debug, Default)]
pub struct Narrowed {
    lines: Vec<Numbers>,
    count: usize,
}

impl Narrowed {
    /// What it holds afterwards is anything.
    pub fn resize(&mut self, count: usize) {
        self.count = count;
        self.lines.resize(count.div_ceil(NUMBERS), Numbers([0; NUMBERS]));
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
