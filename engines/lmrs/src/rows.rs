//! Activations: rows of f32, one for each token.

/// `[tokens, width]`, row after row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    pub width: usize,
    numbers: Vec<f32>,
}

impl Rows {
    pub fn new(tokens: usize, width: usize) -> Self {
        Self { width, numbers: vec![0.0; tokens * width] }
    }

    /// Changes the shape and keeps the memory. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, width: usize) {
        self.width = width;
        self.numbers.resize(tokens * width, 0.0);
    }

    pub fn append(&mut self, rows: &[f32]) {
        assert!(rows.len().is_multiple_of(self.width), "whole rows");
        self.numbers.extend_from_slice(rows);
    }

    pub fn tokens(&self) -> usize {
        self.numbers.len().checked_div(self.width).unwrap_or(0)
    }

    pub fn row(&self, token: usize) -> &[f32] {
        &self.numbers[token * self.width..][..self.width]
    }

    pub fn row_mut(&mut self, token: usize) -> &mut [f32] {
        &mut self.numbers[token * self.width..][..self.width]
    }

    pub fn all(&self) -> &[f32] {
        &self.numbers
    }

    pub fn all_mut(&mut self) -> &mut [f32] {
        &mut self.numbers
    }
}
