//! Compares the products of every level of this machine with sums in f64, on random shapes.

#[cfg(target_arch = "x86_64")]
pub mod panels;
mod unpacked;

use crate::formats::{BF16, F16, F32, Format};
use crate::kernels::Level;
use crate::kernels::test_rng::TestRng;
use crate::matrix::{Matrix, Rows};
use crate::ops::Ops;
use crate::pool::Pool;
use crate::region::NewRegion;

const FORMATS: [&Format; 3] = [&F32, &F16, &BF16];

impl TestRng {
    pub fn rows(&mut self, tokens: usize, width: usize) -> Rows {
        let mut rows = Rows::new(tokens, width);
        rows.all_mut().fill_with(|| self.number());
        rows
    }

    /// A matrix at an unaligned address, as in a file.
    pub fn matrix(&mut self, format: &'static Format, outputs: usize, inputs: usize) -> Matrix {
        let numbers: Vec<f32> = (0..outputs * inputs).map(|_| self.number()).collect();
        let bytes = format.bytes(outputs, inputs);
        let mut region = NewRegion::new(bytes + 2).unwrap();
        model_files::blocks::narrow(format.dtype, &numbers, &mut region.bytes_mut()[2..]).unwrap();
        Matrix::new(format, outputs, inputs, region.finish().part(2..2 + bytes))
    }
}

fn widen_row(matrix: &Matrix, output: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; matrix.inputs];
    model_files::blocks::widen(matrix.format.dtype, matrix.rows(output..output + 1), &mut numbers).unwrap();
    numbers
}

/// Allows half a unit of the last place of bf16, 2^-8, for each activation that a level may round.
fn assert_products(level: Level, x: &Rows, matrix: &Matrix, out: &Rows, case: &str) {
    let pairs = super::uses_bf16(level, matrix.format);
    let rounded = pairs || super::uses_tiles(level, matrix.format, x.tokens());
    assert_sums(x, matrix, out, if rounded { 1.0 / 256.0 } else { 0.0 }, &format!("{level} {case}"));
}

/// Asserts that each output is within the sum of two errors: `(inputs + 1) * eps * sum |a b|`, for additions in any order,
/// and `relative_error` of each product.
pub fn assert_sums(x: &Rows, matrix: &Matrix, out: &Rows, relative_error: f64, case: &str) {
    assert_eq!((out.tokens(), out.width), (x.tokens(), matrix.outputs), "{case}");
    let relative_error = relative_error + (matrix.inputs + 1) as f64 * f64::from(f32::EPSILON);
    for output in 0..matrix.outputs {
        let weights = widen_row(matrix, output);
        for token in 0..x.tokens() {
            let products = || weights.iter().zip(x.row(token)).map(|(a, b)| f64::from(*a) * f64::from(*b));
            let (sum, magnitude): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
            let actual = f64::from(out.row(token)[output]);
            assert!(
                (actual - sum).abs() <= relative_error * magnitude,
                "{:?} {case}: token {token}, output {output}: {actual} is not {sum} ± {}",
                matrix.format,
                relative_error * magnitude
            );
        }
    }
}

fn multiply(level: Level, threads: usize, x: &Rows, matrix: &Matrix) -> Rows {
    let mut out = Rows::default();
    Ops::new(Pool::new(threads), level).multiply(x, &mut [(matrix, &mut out)]);
    out
}

#[test]
fn every_level_multiplies_random_shapes_within_its_rounding() {
    let mut rng = TestRng::new(1);
    for round in 0..60 {
        let (outputs, inputs) = (1 + rng.below(70), 1 + rng.below(200));
        // Up to 9 tokens or up to 70, because these use different kernels.
        let tokens = 1 + rng.below(if round % 2 == 0 { 9 } else { 70 });
        let x = rng.rows(tokens, inputs);
        for format in FORMATS {
            let matrix = rng.matrix(format, outputs, inputs);
            for level in Level::available() {
                let case = format!("{outputs} x {inputs}, {tokens} tokens");
                assert_products(level, &x, &matrix, &multiply(level, 2, &x, &matrix), &case);
            }
        }
    }
}

#[test]
fn every_level_multiplies_shapes_of_several_blocks_and_chunks() {
    let mut rng = TestRng::new(2);
    for (outputs, inputs, tokens) in
        [(333, 1025, 50), (37, 4100, 17), (1031, 300, 1), (1031, 300, 5), (1, 1, 97)]
    {
        let x = rng.rows(tokens, inputs);
        for format in FORMATS {
            let matrix = rng.matrix(format, outputs, inputs);
            for level in Level::available() {
                let case = format!("{outputs} x {inputs}, {tokens} tokens");
                assert_products(level, &x, &matrix, &multiply(level, 3, &x, &matrix), &case);
            }
        }
    }
}

/// Tests every number of tokens up to 50; for bf16 with AMX, only up to 8 tokens, because more use tiles.
#[test]
fn a_tokens_outputs_do_not_depend_on_the_other_tokens() {
    let mut rng = TestRng::new(3);
    for format in FORMATS {
        let (matrix, x) = (rng.matrix(format, 45, 187), rng.rows(50, 187));
        for level in Level::available() {
            let one_by_one = x.all().chunks(187).flat_map(|token| {
                let mut row = Rows::new(1, 187);
                row.row_mut(0).copy_from_slice(token);
                multiply(level, 1, &row, &matrix).all().to_vec()
            });
            let one_by_one: Vec<f32> = one_by_one.collect();
            for tokens in (1..=50).filter(|tokens| !super::uses_tiles(level, format, *tokens)) {
                let mut first = Rows::new(tokens, 187);
                first.all_mut().copy_from_slice(&x.all()[..tokens * 187]);
                let batch = multiply(level, 2, &first, &matrix);
                assert_eq!(batch.all(), &one_by_one[..tokens * 45], "{level} {format:?} {tokens}");
            }
        }
    }
}

/// The matrix is so large that one token reads it row after row, and several tokens read several rows at once.
#[test]
fn a_token_has_the_same_outputs_alone_and_in_a_batch_with_a_large_matrix() {
    let mut rng = TestRng::new(8);
    let (outputs, inputs) = (2051, 1059);
    let x = rng.rows(8, inputs);
    let matrix = rng.matrix(&BF16, outputs, inputs);
    for level in Level::available() {
        let batch = multiply(level, 2, &x, &matrix);
        for token in [0, 7] {
            let mut row = Rows::new(1, inputs);
            row.row_mut(0).copy_from_slice(x.row(token));
            let single = multiply(level, 2, &row, &matrix);
            assert_eq!(single.row(0), batch.row(token), "{level}");
            assert_products(level, &row, &matrix, &single, "one token");
        }
    }
}

/// Tests rows that are longer than a chunk, fill several blocks, or end within a register. The last matrix has none of these.
#[test]
fn a_token_has_the_same_outputs_alone_and_in_a_batch_with_long_rows() {
    let mut rng = TestRng::new(10);
    for (outputs, inputs) in [(70, 4099), (203, 2080), (9, 6200), (64, 64)] {
        let (x, matrix) = (rng.rows(31, inputs), rng.matrix(&BF16, outputs, inputs));
        for level in Level::available() {
            for tokens in
                [5, 6, 7, 13, 31].into_iter().filter(|tokens| !super::uses_tiles(level, &BF16, *tokens))
            {
                let mut first = Rows::new(tokens, inputs);
                first.all_mut().copy_from_slice(&x.all()[..tokens * inputs]);
                let batch = multiply(level, 2, &first, &matrix);
                assert_products(level, &first, &matrix, &batch, &format!("{tokens} tokens"));
                for token in [0, tokens / 2, tokens - 1] {
                    let mut row = Rows::new(1, inputs);
                    row.row_mut(0).copy_from_slice(x.row(token));
                    let single = multiply(level, 2, &row, &matrix);
                    assert_eq!(
                        single.row(0),
                        batch.row(token),
                        "{level} {outputs} x {inputs}, {tokens} tokens"
                    );
                }
            }
        }
    }
}

/// If all activations and weights are bf16 numbers, their products are exact in f32, and only additions are rounded.
#[test]
fn no_level_rounds_activations_that_are_bf16_numbers() {
    let mut rng = TestRng::new(9);
    for tokens in [1, 4, 8, 40] {
        let (mut x, matrix) = (rng.rows(tokens, 187), rng.matrix(&BF16, 45, 187));
        x.all_mut().iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
        for level in Level::available() {
            let out = multiply(level, 2, &x, &matrix);
            assert_sums(&x, &matrix, &out, 0.0, &format!("{level}, {tokens} tokens"));
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_outputs() {
    let mut rng = TestRng::new(4);
    for tokens in [1, 3, 40] {
        let (matrix, x) = (rng.matrix(&BF16, 700, 96), rng.rows(tokens, 96));
        for level in Level::available() {
            let single = multiply(level, 1, &x, &matrix);
            for threads in [2, 5, 8] {
                assert_eq!(multiply(level, threads, &x, &matrix), single, "{level} {tokens} {threads}");
            }
        }
    }
}

#[test]
fn several_products_of_one_input_equal_the_single_products() {
    let mut rng = TestRng::new(5);
    for tokens in [1, 20] {
        let x = rng.rows(tokens, 64);
        let matrices =
            [(&BF16, 1200), (&F32, 3), (&F16, 600)].map(|(format, outputs)| rng.matrix(format, outputs, 64));
        for level in Level::available() {
            let mut outs = [(); 3].map(|()| Rows::default());
            let mut products: Vec<_> = matrices.iter().zip(&mut outs).collect();
            Ops::new(Pool::new(2), level).multiply(&x, &mut products);
            for (matrix, out) in matrices.iter().zip(&outs) {
                assert_eq!(*out, multiply(level, 1, &x, matrix));
            }
        }
    }
}

#[test]
fn largest_returns_the_first_of_equal_outputs() {
    let mut rng = TestRng::new(6);
    for round in 0..40 {
        let (outputs, inputs) = (1 + rng.below(2000), 1 + rng.below(90));
        // In half of the rounds, all weights of a row are 1, 2 or -1, so that some outputs are equal.
        let mut matrix = rng.matrix(&BF16, outputs, inputs);
        if round % 2 == 0 {
            let mut region = NewRegion::new(outputs * inputs * 2).unwrap();
            for row in region.bytes_mut().chunks_mut(inputs * 2) {
                let weight = [0x3f80_u16, 0x4000, 0xbf80][rng.below(3)];
                row.chunks_mut(2).for_each(|number| number.copy_from_slice(&weight.to_le_bytes()));
            }
            matrix = Matrix::new(&BF16, outputs, inputs, region.finish());
        }
        let x = rng.rows(1, inputs);
        for level in Level::available() {
            let products = multiply(level, 2, &x, &matrix);
            let best = products.all().iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected = products.all().iter().position(|number| *number == best).unwrap();
            for threads in [1, 2, 5] {
                let actual = Ops::new(Pool::new(threads), level).largest(x.all(), &matrix);
                assert_eq!(actual, Some(expected as u32), "{level} {outputs} x {inputs}");
            }
        }
    }
}
