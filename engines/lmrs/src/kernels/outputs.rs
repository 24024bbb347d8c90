//! Where a product is written: some columns of rows that several threads fill, each its own columns.
#![expect(unsafe_code, reason = "threads write disjoint columns of the same rows")]

use std::marker::PhantomData;
use std::ops::Range;

use crate::rows::Rows;

/// The columns `outputs` of all rows. No two that live at once share a column.
#[derive(Debug)]
pub struct Outputs<'a> {
    numbers: *mut f32,
    tokens: usize,
    width: usize,
    outputs: Range<usize>,
    rows: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a `&mut` to its columns and nothing else, and f32 may be written from any thread.
unsafe impl Send for Outputs<'_> {}

impl<'a> Outputs<'a> {
    pub fn new(rows: &'a mut Rows) -> Self {
        let (tokens, width) = (rows.tokens(), rows.width);
        Self { numbers: rows.all_mut().as_mut_ptr(), tokens, width, outputs: 0..width, rows: PhantomData }
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn outputs(&self) -> Range<usize> {
        self.outputs.clone()
    }

    /// Only the columns of the range.
    pub fn row_mut(&mut self, token: usize) -> &mut [f32] {
        assert!(token < self.tokens, "a row that is there");
        // SAFETY: `token < tokens` and `outputs` lies within `width`, so this lies within the `tokens * width` numbers that
        // were borrowed for 'a; the columns belong to this value alone, which is borrowed mutably for as long as the slice.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.numbers.add(token * self.width + self.outputs.start),
                self.outputs.len(),
            )
        }
    }

    /// The columns before `output`, and those from it on.
    pub fn split_at(self, output: usize) -> (Self, Self) {
        assert!(self.outputs.start <= output && output <= self.outputs.end, "a column within the range");
        let part = |outputs| Self { outputs, ..self };
        (part(self.outputs.start..output), part(output..self.outputs.end))
    }
}
