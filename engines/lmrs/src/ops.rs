//! What a network is made of, shared out over the threads: products of activations with weights, and the steps between.

use crate::kernels::Level;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::rows::Rows;

/// The threads, and the level at which they compute.
#[derive(Debug)]
pub struct Ops {
    pub pool: Pool,
    pub level: Level,
}

impl Ops {
    /// `out[token][output] = sum over inputs of matrix[output][input] * x[token][input]`, for matrices that are given the same
    /// input: all of them in one piece of work. Each `out` is reshaped to `[tokens, outputs]`.
    pub fn multiply(&mut self, x: &Rows, products: &mut [(&Matrix, &mut Rows)]) {
        let _ = (x, products);
        panic!("not yet")
    }

    /// The output whose product is the largest, the lowest of equals: what `multiply` and a search would give, without
    /// writing the products down. `x` is one token.
    pub fn largest(&mut self, x: &[f32], matrix: &Matrix) -> u32 {
        let _ = (x, matrix);
        panic!("not yet")
    }
}
