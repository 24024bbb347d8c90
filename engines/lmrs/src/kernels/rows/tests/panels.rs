//! Compares products of panels that are widened to bf16 with sums in f64, of the weights as `model-files` widens them.
#![expect(unsafe_code, reason = "one thread writes disjoint columns of the same rows")]

use model_files::blocks;

use super::super::{self as rows, GROUP_TOKENS, MAX_DECODE_TOKENS, TileInput};
use crate::formats::Format;
use crate::formats::q4_k::Q4_K;
use crate::kernels::panels::tests::{activations, formats, matrix, random_row};
use crate::kernels::test_rng::TestRng;
use crate::kernels::{Level, Outputs};
use crate::matrix::{Matrix, Rows};
use crate::ops::Ops;
use crate::pool::Pool;

/// The error allowed for a sum of products whose factors are both rounded to bf16: (1 + 2^-9)^2 - 1. A factor may be off by
/// 2^-8 of itself, but not all are, and the errors of many products cancel in part.
const RELATIVE_ERROR: f64 = 1.0 / 256.0 + 1.0 / 262_144.0;

/// A product, and the weights from which the expected sums are computed.
pub struct Case {
    pub matrix: Matrix,
    pub x: Rows,
    /// `[outputs][inputs]`
    weights: Vec<Vec<f32>>,
}

impl Case {
    pub fn new(
        format: &'static Format,
        (outputs, inputs): (usize, usize),
        tokens: usize,
        rng: &mut TestRng,
    ) -> Self {
        let rows: Vec<_> = (0..outputs).map(|_| random_row(format, inputs, rng)).collect();
        let weights = rows.iter().map(|row| {
            let mut weights = vec![0.0; inputs];
            blocks::widen(format.dtype, row, &mut weights).unwrap();
            weights
        });
        let weights = weights.collect();
        Self { matrix: matrix(format, inputs, &rows), x: activations(tokens, inputs, rng), weights }
    }

    /// Asserts that each sum is within the error of rounding its factors, and its additions in any order.
    pub fn assert_sums(&self, out: &Rows, case: &str) {
        assert_eq!((out.tokens(), out.width), (self.x.tokens(), self.matrix.outputs), "{case}");
        let relative_error = RELATIVE_ERROR + (self.matrix.inputs + 2) as f64 * f64::from(f32::EPSILON);
        for (output, weights) in self.weights.iter().enumerate() {
            for token in 0..self.x.tokens() {
                let products =
                    || weights.iter().zip(self.x.row(token)).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (sum, magnitude): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                let actual = f64::from(out.row(token)[output]);
                assert!(
                    (actual - sum).abs() <= relative_error * magnitude,
                    "{:?} {case}, {} x {}: token {token}, output {output}: {actual} is not {sum} ± {}",
                    self.matrix.format,
                    self.matrix.outputs,
                    self.matrix.inputs,
                    relative_error * magnitude
                );
            }
        }
    }

    /// The product through tiles on one thread, even if another kernel would be faster.
    fn product(&self, level: Level) -> Rows {
        self.product_in_chunks(level, self.matrix.outputs)
    }

    fn product_in_chunks(&self, level: Level, chunk_outputs: usize) -> Rows {
        let mut packed = TileInput::default();
        packed.reshape(self.x.tokens(), self.x.width);
        for (group, lines) in packed.groups_mut().into_iter().enumerate() {
            rows::pack(level, &self.x, group * GROUP_TOKENS, lines.into_inner().unwrap());
        }
        let mut out = Rows::new(self.x.tokens(), self.matrix.outputs);
        out.all_mut().fill(f32::NAN);
        let split = Outputs::split(&mut out);
        for first in (0..self.matrix.outputs).step_by(chunk_outputs) {
            // SAFETY: the ranges are taken one after the other and do not overlap.
            let mut part = unsafe { split.take(first..self.matrix.outputs.min(first + chunk_outputs)) };
            rows::tile(level, &self.matrix, &packed, &mut part);
        }
        out
    }
}

/// Calls `check` with each format: with outputs that do not fill panels, with inputs that end inside a group where the format
/// allows it, and with several blocks of weights.
pub fn cases(mut check: impl FnMut(Case)) {
    let mut rng = TestRng::new(21);
    for format in formats() {
        let (block_inputs, _) = format.dtype.block();
        for outputs in [1, 15, 16, 33, 97, 131] {
            let inputs = block_inputs * (1 + rng.below(1024 / block_inputs));
            let tokens = MAX_DECODE_TOKENS + 1 + rng.below(62);
            check(Case::new(format, (outputs, inputs), tokens, &mut rng));
        }
        for (outputs, inputs, tokens) in
            [(37, 2048 + block_inputs, 9), (5, 4096 + 3 * block_inputs, 50), (49, block_inputs, 70)]
        {
            check(Case::new(format, (outputs, inputs), tokens, &mut rng));
        }
    }
}

fn levels_with_pairs() -> Vec<Level> {
    Level::available().into_iter().filter(|level| rows::has_pairs(*level)).collect()
}

#[test]
fn products_of_widened_panels_are_within_the_rounding_of_bf16() {
    cases(|case| {
        for level in levels_with_pairs() {
            case.assert_sums(&case.product(level), level.name());
        }
    });
}

#[test]
fn products_by_chunks_of_panels_equal_the_full_product() {
    let mut rng = TestRng::new(24);
    for format in formats() {
        let case = Case::new(format, (301, 2304), 40, &mut rng);
        for level in levels_with_pairs() {
            let expected = case.product(level);
            for chunk_outputs in [32, 96, 112] {
                let actual = case.product_in_chunks(level, chunk_outputs);
                assert_eq!(actual, expected, "{level} {chunk_outputs}");
            }
        }
    }
}

/// Tests only levels with AMX, because products use tiles only there.
#[test]
fn any_number_of_threads_gives_the_same_outputs_for_many_tokens() {
    let mut rng = TestRng::new(22);
    for format in formats() {
        for tokens in [9, 40] {
            let case = Case::new(format, (300, 512), tokens, &mut rng);
            for level in
                levels_with_pairs().into_iter().filter(|level| rows::uses_tiles(*level, format, tokens))
            {
                let expected = case.product(level);
                for threads in [1, 3, 8] {
                    let mut out = Rows::default();
                    Ops::new(Pool::new(threads), level).multiply(&case.x, &mut [(&case.matrix, &mut out)]);
                    assert_eq!(out, expected, "{level} {threads}");
                }
            }
        }
    }
}

/// One activation is 1 and all others are 0, so that a sum is a weight.
#[test]
fn a_widened_weight_is_rounded_to_the_nearest_bf16() {
    let mut rng = TestRng::new(23);
    for format in formats() {
        let mut case = Case::new(format, (19, 256), 256, &mut rng);
        for token in 0..256 {
            case.x.row_mut(token).fill(0.0);
            case.x.row_mut(token)[token] = 1.0;
        }
        for level in levels_with_pairs() {
            let out = case.product(level);
            for (output, weights) in case.weights.iter().enumerate() {
                for (token, weight) in weights.iter().enumerate() {
                    let actual = out.row(token)[output];
                    let nearest = f32::from_bits(u32::from(half::bf16::from_f32(*weight).to_bits()) << 16);
                    // A level may round Q4_K's subtraction in f32 differently from model-files, before it rounds to bf16.
                    let is_near = *format == Q4_K && (actual - weight).abs() <= weight.abs() / 511.0 + 1e-4;
                    assert!(actual == nearest || is_near, "{:?} {level}: {actual} for {weight}", format);
                }
            }
        }
    }
}
