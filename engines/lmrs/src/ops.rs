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
        // A slow stand-in until branch i8-k1 is here.
        for (matrix, out) in products {
            out.reshape(x.tokens(), matrix.outputs);
            let (inputs, outputs) = (matrix.inputs, matrix.outputs);
            let columns = std::sync::Mutex::new(0..outputs);
            let shared = std::sync::Mutex::new(out);
            self.pool.run(&|_| {
                let mut numbers = vec![0.0; inputs];
                loop {
                    let first = columns.lock().ok().and_then(|mut left| left.by_ref().step_by(64).next());
                    let Some(first) = first else { return };
                    if let Ok(mut left) = columns.lock() {
                        left.start = left.start.max(first + 64);
                    }
                    for output in first..outputs.min(first + 64) {
                        widen(matrix, output, &mut numbers);
                        let sums: Vec<f32> =
                            (0..x.tokens()).map(|token| dot(x.row(token), &numbers)).collect();
                        if let Ok(mut out) = shared.lock() {
                            sums.iter()
                                .enumerate()
                                .for_each(|(token, sum)| out.row_mut(token)[output] = *sum);
                        }
                    }
                }
            });
        }
    }

    /// The output whose product is the largest, the lowest of equals: what `multiply` and a search would give, without
    /// writing the products down. `x` is one token.
    pub fn largest(&mut self, x: &[f32], matrix: &Matrix) -> u32 {
        let (mut rows, mut out) = (Rows::new(1, x.len()), Rows::default());
        rows.row_mut(0).copy_from_slice(x);
        self.multiply(&rows, &mut [(matrix, &mut out)]);
        let mut best = 0;
        for (output, product) in out.row(0).iter().enumerate() {
            if *product > out.row(0)[best] {
                best = output;
            }
        }
        best as u32
    }
}

fn widen(matrix: &Matrix, output: usize, numbers: &mut [f32]) {
    let dtype = match matrix.format {
        crate::matrix::Format::F32 => model_files::Dtype::F32,
        crate::matrix::Format::F16 => model_files::Dtype::F16,
        crate::matrix::Format::Bf16 => model_files::Dtype::BF16,
        other => panic!("{other:?} is multiplied by branch i8-k2"),
    };
    model_files::blocks::widen(dtype, matrix.rows(output..output + 1), numbers).unwrap_or_default();
}

fn dot(x: &[f32], numbers: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let (pairs, rest) = (x.as_chunks::<16>().0.iter().zip(numbers.as_chunks::<16>().0), x.len() / 16 * 16);
    for (x, numbers) in pairs {
        sums.iter_mut().zip(x.iter().zip(numbers)).for_each(|(sum, (x, number))| *sum += x * number);
    }
    let tail: f32 = x[rest..].iter().zip(&numbers[rest..]).map(|(x, number)| x * number).sum();
    sums.iter().sum::<f32>() + tail
}
