//! The destination of a kernel. Each thread writes some columns of all rows of a product, which slices cannot express.
#![expect(unsafe_code, reason = "disjoint columns of one allocation, written by several threads")]

use std::marker::PhantomData;
use std::ops::Range;

use crate::matrix::Rows;

/// The outputs of a kernel: a column range of every token's row. No two `Outputs` overlap.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// The first column of the range in the first token's row.
    first: *mut f32,
    /// Numbers from one token's row to the next.
    stride: usize,
    tokens: usize,
    /// The outputs of the matrix that the columns hold.
    outputs: Range<usize>,
    rows: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `Outputs` has exclusive access to its columns, like a `&mut [f32]`.
unsafe impl Send for Outputs<'_> {}

impl<'a> Outputs<'a> {
    pub fn new(out: &'a mut Rows) -> Self {
        let (tokens, width) = (out.tokens(), out.width);
        let first = out.all_mut().as_mut_ptr();
        Self { first, stride: width, tokens, outputs: 0..width, rows: PhantomData }
    }

    /// The columns before `output`, and the columns from `output` on.
    pub fn split_at(self, output: usize) -> (Self, Self) {
        let Self { first, outputs, .. } = &self;
        assert!(outputs.start <= output && output <= outputs.end, "a column within the range");
        // SAFETY: within the first row, or just after it if no column is left.
        let second = unsafe { first.add(output - outputs.start) };
        let (before, after) = (outputs.start..output, output..outputs.end);
        (Self { outputs: before, ..self }, Self { first: second, outputs: after, ..self })
    }

    /// All columns of `out`, for distribution to threads.
    pub fn split(out: &'a mut Rows) -> Split<'a> {
        let (tokens, width) = (out.tokens(), out.width);
        Split { first: out.all_mut().as_mut_ptr(), width, tokens, rows: PhantomData }
    }

    /// The outputs of one token, which fill `numbers`.
    pub fn of(numbers: &'a mut [f32], outputs: Range<usize>) -> Self {
        assert_eq!(numbers.len(), outputs.len(), "one number for each output");
        Self { first: numbers.as_mut_ptr(), stride: 0, tokens: 1, outputs, rows: PhantomData }
    }

    /// Some of the columns, borrowed.
    pub fn part(&mut self, outputs: Range<usize>) -> Outputs<'_> {
        let columns = &self.outputs;
        assert!(columns.start <= outputs.start && outputs.start <= outputs.end && outputs.end <= columns.end);
        // SAFETY: within the first row, or just after it if the range is empty.
        let first = unsafe { self.first.add(outputs.start - columns.start) };
        Outputs { first, outputs, rows: PhantomData, ..*self }
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The columns, as a range of the matrix's outputs.
    pub fn outputs(&self) -> Range<usize> {
        self.outputs.clone()
    }

    /// One token's numbers in these columns.
    pub fn row_mut(&mut self, token: usize) -> &mut [f32] {
        assert!(token < self.tokens, "a token of the product");
        // SAFETY: each of `tokens` rows has these columns, and `first` is the first column of the first row. No other code
        // accesses them while `self` lives: `new` and `of` borrow the memory, and callers of `take` guarantee it.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(token * self.stride), self.outputs.len()) }
    }
}

/// Rows whose columns are handed out to threads.
#[derive(Debug)]
pub struct Split<'a> {
    first: *mut f32,
    width: usize,
    tokens: usize,
    rows: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `Split` only hands out columns, and callers of `take` guarantee that they do not overlap.
unsafe impl Send for Split<'_> {}
// SAFETY: as above.
unsafe impl Sync for Split<'_> {}

impl<'a> Split<'a> {
    /// # Safety
    /// No two `Outputs` from this function have a column in common.
    pub unsafe fn take(&self, outputs: Range<usize>) -> Outputs<'a> {
        assert!(outputs.start <= outputs.end && outputs.end <= self.width, "columns of the rows");
        // SAFETY: within the first row, or just after it if the range is empty.
        let first = unsafe { self.first.add(outputs.start) };
        Outputs { first, stride: self.width, tokens: self.tokens, outputs, rows: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_writes_only_its_columns() {
        let mut rows = Rows::new(3, 10);
        let split = Outputs::split(&mut rows);
        std::thread::scope(|scope| {
            for columns in [0..4, 4..5, 5..10] {
                // SAFETY: these three ranges do not overlap.
                let mut out = unsafe { split.take(columns.clone()) };
                scope.spawn(move || {
                    for token in 0..out.tokens() {
                        for (number, output) in out.row_mut(token).iter_mut().zip(columns.clone()) {
                            *number = (token * 10 + output) as f32;
                        }
                    }
                });
            }
        });
        let expected: Vec<f32> = (0..30).map(|number| number as f32).collect();
        assert_eq!(rows.all(), expected);
    }
}
