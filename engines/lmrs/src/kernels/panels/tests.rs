//! Compares packed weights with those of `model-files`, the portable product with that of the widened weights, and each level
//! with the portable level.

use model_files::{Dtype, blocks};

use super::{Input, multiply, prepare};
use crate::formats::q8_0::Q8_0;
use crate::formats::{FORMATS, Format};
use crate::kernels::Level;
use crate::kernels::outputs::Outputs;
use crate::kernels::test_rng::TestRng;
use crate::matrix::{Matrix, PANEL_OUTPUTS, Rows};
use crate::region::NewRegion;

/// The allowed error of a sum in f32, relative to the sum of the magnitudes of its terms.
const F32_ERROR: f64 = 2e-6;

pub fn formats() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().copied().filter(|format| format.is_panels())
}

/// A row of a file: quantization blocks of random bytes, but with f16 scales of a usual size.
pub fn random_row(format: &Format, inputs: usize, rng: &mut TestRng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..format.dtype.bytes(inputs as u64)).map(|_| rng.bits() as u8).collect();
    let (_, block_bytes) = format.dtype.block();
    for block in bytes.chunks_exact_mut(block_bytes) {
        for at in format.panels().unwrap().file_scales.iter().copied() {
            // An f16 between 2^-7 and 2^-3, of either sign.
            block[at + 1] = (0x20 + rng.below(16) as u8) | (rng.bits() & 0x80) as u8;
        }
    }
    bytes
}

pub fn matrix(format: &'static Format, inputs: usize, rows: &[Vec<u8>]) -> Matrix {
    let mut region = NewRegion::new(format.bytes(rows.len(), inputs)).unwrap();
    format.pack(inputs, &rows.concat(), region.bytes_mut()).unwrap();
    Matrix::new(format, rows.len(), inputs, region.finish())
}

pub fn activations(tokens: usize, inputs: usize, rng: &mut TestRng) -> Rows {
    let mut x = Rows::new(tokens, inputs);
    x.all_mut().iter_mut().for_each(|x| *x = rng.number() * 3.0);
    x
}

/// One output in f64, from weights widened by model-files and the token's blocks, and the sum of the magnitudes of its terms.
fn sum_and_magnitude(dtype: Dtype, row: &[u8], input: &Input, token: usize) -> (f64, f64) {
    let mut weights = vec![0.0; input.inputs()];
    blocks::widen(dtype, row, &mut weights).unwrap();
    let mut sums = (0.0, 0.0);
    for (at, weights) in weights.chunks(32).enumerate() {
        let block = input.block(token, at);
        for (weight, x) in weights.iter().zip(block.numbers) {
            let product = f64::from(*weight) * f64::from(x) * f64::from(block.scale);
            sums = (sums.0 + product, sums.1 + product.abs());
        }
    }
    sums
}

fn product(level: Level, matrix: &Matrix, input: &Input) -> Rows {
    let mut out = Rows::new(input.tokens(), matrix.outputs);
    out.all_mut().fill(f32::NAN);
    multiply(level, matrix, 0..matrix.outputs.div_ceil(PANEL_OUTPUTS), input, &mut Outputs::new(&mut out));
    out
}

/// Calls `check` with each format, and with various numbers of outputs, inputs and tokens.
fn shapes(mut check: impl FnMut(&'static Format, usize, usize, usize, &mut TestRng)) {
    let mut rng = TestRng::new(1);
    for format in formats() {
        for outputs in [1, 16, 17, 37, 150] {
            for tokens in [1, 2, 3, 5, 7, 11, 12, 13, 30] {
                let (block_inputs, _) = format.dtype.block();
                let inputs = block_inputs * (1 + rng.below(1024 / block_inputs));
                check(format, outputs, inputs, tokens, &mut rng);
            }
        }
    }
}

#[test]
fn a_row_of_a_packed_matrix_equals_the_row_before_packing() {
    let mut rng = TestRng::new(17);
    for format in formats() {
        let (block_inputs, _) = format.dtype.block();
        for (outputs, row_blocks) in [(1, 1), (16, 2), (37, 3), (33, 8)] {
            let inputs = block_inputs * row_blocks;
            let rows: Vec<_> = (0..outputs).map(|_| random_row(format, inputs, &mut rng)).collect();
            let matrix = matrix(format, inputs, &rows);
            for (output, row) in rows.iter().enumerate() {
                let (mut expected, mut actual) = (vec![0.0; inputs], vec![f32::NAN; inputs]);
                blocks::widen(format.dtype, row, &mut expected).unwrap();
                super::row(&matrix, output, &mut actual);
                assert_eq!(actual, expected, "{format:?}, {outputs} x {inputs}: {output}");
            }
        }
    }
}

#[test]
fn the_portable_product_equals_the_product_of_the_widened_weights() {
    shapes(|format, outputs, inputs, tokens, rng| {
        let rows: Vec<_> = (0..outputs).map(|_| random_row(format, inputs, rng)).collect();
        let matrix = matrix(format, inputs, &rows);
        let mut input = Input::default();
        prepare(Level::PORTABLE, &activations(tokens, inputs, rng), &mut input);
        let out = product(Level::PORTABLE, &matrix, &input);
        for token in 0..tokens {
            for (output, row) in rows.iter().enumerate() {
                let (exact, magnitude) = sum_and_magnitude(format.dtype, row, &input, token);
                let actual = f64::from(out.row(token)[output]);
                assert!(
                    (actual - exact).abs() <= F32_ERROR * magnitude + 1e-9,
                    "{format:?}: {actual} for {exact}"
                );
            }
        }
    });
}

#[test]
fn every_level_agrees_with_the_portable_level() {
    for level in Level::available() {
        shapes(|format, outputs, inputs, tokens, rng| {
            let rows: Vec<_> = (0..outputs).map(|_| random_row(format, inputs, rng)).collect();
            let matrix = matrix(format, inputs, &rows);
            let mut input = Input::default();
            prepare(level, &activations(tokens, inputs, rng), &mut input);
            let (actual, portable) =
                (product(level, &matrix, &input), product(Level::PORTABLE, &matrix, &input));
            for token in 0..tokens {
                for (output, row) in rows.iter().enumerate() {
                    let (actual, portable) = (actual.row(token)[output], portable.row(token)[output]);
                    let bound = F32_ERROR * sum_and_magnitude(format.dtype, row, &input, token).1 + 1e-9;
                    let shape = format!("{level:?} {format:?} {outputs} x {inputs}, {tokens} tokens");
                    assert!(
                        f64::from((actual - portable).abs()) <= bound,
                        "{shape}: {actual} for {portable}"
                    );
                }
            }
        });
    }
}

#[test]
fn every_level_quantizes_to_the_same_blocks() {
    let mut rng = TestRng::new(2);
    for level in Level::available() {
        for (tokens, inputs) in [(1, 32), (1, 2048), (2, 100), (12, 512), (31, 300)] {
            let mut x = activations(tokens, inputs, &mut rng);
            x.row_mut(0)[0] = 1e30;
            x.row_mut(tokens - 1)[inputs - 1] = -1e-42;
            let (mut actual, mut expected) = (Input::default(), Input::default());
            prepare(level, &x, &mut actual);
            prepare(Level::PORTABLE, &x, &mut expected);
            for (token, block) in
                (0..tokens).flat_map(|token| (0..actual.token_blocks()).map(move |block| (token, block)))
            {
                assert_eq!(
                    actual.block(token, block),
                    expected.block(token, block),
                    "{level:?} {token} {block}"
                );
            }
        }
    }
}

#[test]
fn a_block_is_within_half_a_step_of_its_activations_and_has_their_sums() {
    let mut rng = TestRng::new(3);
    let x = activations(3, 96, &mut rng);
    let mut input = Input::default();
    prepare(Level::PORTABLE, &x, &mut input);
    for token in 0..3 {
        for (at, x) in x.row(token).chunks(32).enumerate() {
            let block = input.block(token, at);
            for (x, number) in x.iter().zip(block.numbers) {
                assert!((x - f32::from(number) * block.scale).abs() <= block.scale * 0.5001);
            }
            let sum = |numbers: &[i8]| numbers.iter().copied().map(i32::from).sum::<i32>();
            assert_eq!(block.minus_128, -128 * sum(&block.numbers));
            assert_eq!(block.minus_8, -8 * sum(&block.numbers));
            assert_eq!(block.minus_32, [-32 * sum(&block.numbers[..16]), -32 * sum(&block.numbers[16..])]);
        }
    }
}

#[test]
fn a_range_of_panels_gives_its_columns_of_the_full_product() {
    let mut rng = TestRng::new(4);
    for level in Level::available() {
        for tokens in [1, 4, 20] {
            let rows: Vec<_> = (0..90).map(|_| random_row(&Q8_0, 128, &mut rng)).collect();
            let matrix = matrix(&Q8_0, 128, &rows);
            let mut input = Input::default();
            prepare(level, &activations(tokens, 128, &mut rng), &mut input);
            let all = product(level, &matrix, &input);
            let mut out = Rows::new(tokens, 90);
            let (mut first, mut last) = Outputs::new(&mut out).split_at(32);
            multiply(level, &matrix, 0..2, &input, &mut first);
            multiply(level, &matrix, 2..6, &input, &mut last);
            assert_eq!(out, all);
        }
    }
}

#[test]
fn an_input_filled_in_parts_equals_one_filled_at_once() {
    let x = activations(50, 70, &mut TestRng::new(5));
    let (mut expected, mut from_parts) = (Input::default(), Input::default());
    prepare(Level::PORTABLE, &x, &mut expected);
    from_parts.reshape(50, 70);
    let mut tokens = 0;
    for part in from_parts.parts(3) {
        tokens += part.tokens().len();
        super::prepare_part(Level::PORTABLE, &x, part);
    }
    assert_eq!(tokens, 50);
    for (token, block) in (0..50).flat_map(|token| (0..3).map(move |block| (token, block))) {
        assert_eq!(from_parts.block(token, block), expected.block(token, block));
    }
}

#[test]
fn a_tokens_outputs_do_not_depend_on_the_other_tokens() {
    let mut rng = TestRng::new(6);
    for format in formats() {
        let rows: Vec<_> = (0..37).map(|_| random_row(format, 512, &mut rng)).collect();
        let (matrix, x) = (matrix(format, 512, &rows), activations(30, 512, &mut rng));
        for level in Level::available() {
            let product_of = |tokens: std::ops::Range<usize>| {
                let mut selected = Rows::new(tokens.len(), 512);
                selected.all_mut().copy_from_slice(&x.all()[tokens.start * 512..tokens.end * 512]);
                let mut input = Input::default();
                prepare(level, &selected, &mut input);
                product(level, &matrix, &input)
            };
            let all = product_of(0..30);
            for tokens in [0..1, 3..5, 7..15, 2..30] {
                let (part, first) = (product_of(tokens.clone()), tokens.start);
                assert_eq!(part.all(), &all.all()[first * 37..tokens.end * 37], "{level} {format:?} {first}");
            }
        }
    }
}
