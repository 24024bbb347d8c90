//! Products of activations with weights, distributed over the threads.

use crate::kernels::Level;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::products::Scratch;
use crate::rows::Rows;

/// The threads, and the level at which they compute.
#[derive(Debug)]
pub struct Ops {
    pub pool: Pool,
    pub level: Level,
    scratch: Scratch,
}

impl Ops {
    pub fn new(pool: Pool, level: Level) -> Self {
        Self { pool, level, scratch: Scratch::default() }
    }

    /// `out[token][output] = sum over inputs of matrix[output][input] * x[token][input]`, for several matrices with the same
    /// input, in one piece of work. Each `out` is reshaped to `[tokens, outputs]`.
    pub fn multiply(&mut self, x: &Rows, products: &mut [(&Matrix, &mut Rows)]) {
        self.scratch.multiply(&self.pool, self.level, x, products);
    }

    /// The output with the largest product, the lowest among equals, without storing the products. `x` is one token. `None` if
    /// a product is NaN, or if the largest is infinite.
    pub fn largest(&mut self, x: &[f32], matrix: &Matrix) -> Option<u32> {
        self.scratch.largest(&self.pool, self.level, x, matrix)
    }
}
