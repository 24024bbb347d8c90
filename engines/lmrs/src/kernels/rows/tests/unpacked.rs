//! Packed rows give the same bits as unpacked rows, in every kind of product.

use super::multiply;
use crate::formats::{BF16, BF16Z};
use crate::kernels::rows::{self, GROUP_TOKENS, TileInput, has_pairs};
use crate::kernels::test_rng::TestRng;
use crate::kernels::{Level, Outputs};
use crate::matrix::{Matrix, Rows};
use crate::ops::Ops;
use crate::pool::Pool;
use crate::region::NewRegion;

/// The same matrix in bf16 and in bf16z. Some numbers are so small that bf16z stores them as exceptions.
fn plain_and_packed(rng: &mut TestRng, outputs: usize, inputs: usize) -> [Matrix; 2] {
    let mut numbers = rng.numbers(outputs * inputs);
    numbers.iter_mut().step_by(499).for_each(|number| *number *= 1e-9);
    let mut plain = NewRegion::new(outputs * inputs * 2).unwrap();
    model_files::blocks::narrow(
        model_files::Dtype::BF16,
        &numbers,
        &mut plain.bytes_mut()[..outputs * inputs * 2],
    )
    .unwrap();
    let bytes = BF16Z.bytes(outputs, inputs);
    let mut packed = NewRegion::new(bytes).unwrap();
    let rows = &plain.bytes_mut()[..outputs * inputs * 2];
    BF16Z.pack(inputs, rows, &mut packed.bytes_mut()[..bytes]).unwrap();
    let [plain, packed] = [plain.finish(), packed.finish()];
    [Matrix::new(&BF16, outputs, inputs, plain), Matrix::new(&BF16Z, outputs, inputs, packed)]
}

#[test]
fn packed_rows_and_bf16_rows_give_equal_products_at_every_level() {
    let mut rng = TestRng::new(31);
    for (outputs, inputs) in [(1, 128), (3, 256), (70, 896), (333, 2048), (9, 8192), (37, 4864)] {
        let [plain, packed] = plain_and_packed(&mut rng, outputs, inputs);
        for tokens in [1, 2, 3, 4, 5, 8, 9, 31] {
            let x = rng.rows(tokens, inputs);
            for level in Level::available() {
                for threads in [1, 3] {
                    assert_eq!(
                        multiply(level, threads, &x, &packed),
                        multiply(level, threads, &x, &plain),
                        "{level} {outputs} x {inputs}, {tokens} tokens, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn a_product_of_some_outputs_equals_the_same_outputs_of_the_full_product() {
    let mut rng = TestRng::new(34);
    for (outputs, inputs) in [(70, 256), (45, 4864)] {
        let [_, packed] = plain_and_packed(&mut rng, outputs, inputs);
        let levels = Level::available().into_iter().filter(|level| has_pairs(*level));
        for (level, tokens) in levels.flat_map(|level| [(level, 1), (level, 2)]) {
            let x = rng.rows(tokens, inputs);
            let expected = multiply(level, 1, &x, &packed);
            let mut narrowed = rows::AlignedBf16::default();
            rows::narrow(level, x.all(), &mut narrowed);
            for range in [0..1, 1..3, 3..29, 15..17, 16..32, 33..outputs, outputs - 1..outputs] {
                let mut out = Rows::new(tokens, outputs);
                let selected = Outputs::new(&mut out).split_at(range.end).0.split_at(range.start).1;
                rows::dot(level, &packed, rows::Activations::Bf16(narrowed.all()), &mut [selected]);
                for token in 0..tokens {
                    assert_eq!(
                        out.row(token)[range.clone()],
                        expected.row(token)[range.clone()],
                        "{level} {range:?}"
                    );
                    assert!(out.row(token)[range.end..].iter().all(|number| *number == 0.0));
                }
            }
        }
    }
}

#[test]
fn packed_rows_and_bf16_rows_have_the_same_largest_output() {
    let mut rng = TestRng::new(32);
    for (outputs, inputs) in [(1, 128), (2051, 256), (700, 2048)] {
        let [plain, packed] = plain_and_packed(&mut rng, outputs, inputs);
        let x = rng.rows(1, inputs);
        for level in Level::available() {
            let largest = |matrix| Ops::new(Pool::new(2), level).largest(x.all(), matrix);
            assert_eq!(largest(&packed), largest(&plain), "{level}");
        }
    }
}

/// `ops` chooses tiles only with AMX, but `tile` works at every level with pairs.
#[test]
fn packed_rows_and_bf16_rows_give_equal_products_through_tiles() {
    let mut rng = TestRng::new(33);
    for (outputs, inputs, tokens) in [(5, 128, 9), (70, 2048, 50), (131, 4096, 17)] {
        let matrices = plain_and_packed(&mut rng, outputs, inputs);
        let x = rng.rows(tokens, inputs);
        for level in Level::available().into_iter().filter(|level| has_pairs(*level)) {
            let [plain, packed] = matrices.each_ref().map(|matrix| {
                let mut input = TileInput::default();
                input.reshape(tokens, inputs);
                for (group, lines) in input.groups_mut().into_iter().enumerate() {
                    rows::pack(level, &x, group * GROUP_TOKENS, lines.into_inner().unwrap());
                }
                let mut out = Rows::new(tokens, outputs);
                rows::tile(level, matrix, &input, &mut Outputs::new(&mut out));
                out
            });
            assert_eq!(plain, packed, "{level}");
        }
    }
}

/// Packed rows are read from a file. It may be damaged although its checksum agrees.
#[test]
fn products_with_damaged_bytes_do_not_panic() {
    let mut rng = TestRng::new(35);
    for outputs in [1, 3, 9, 18] {
        let mut region = NewRegion::new(BF16Z.bytes(outputs, 256)).unwrap();
        region.bytes_mut().iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        // In the first header of each group, exceptions are at positions below 256, in any order. Most others are beyond the
        // last input.
        for header in region.bytes_mut().chunks_mut(64).step_by(7) {
            header[16..].chunks_exact_mut(4).for_each(|exception| exception[1] = 0);
        }
        let matrix = Matrix::new(&BF16Z, outputs, 256, region.finish());
        for (tokens, level) in [1, 2, 3, 9]
            .into_iter()
            .flat_map(|tokens| Level::available().into_iter().map(move |level| (tokens, level)))
        {
            assert_eq!(multiply(level, 2, &rng.rows(tokens, 256), &matrix).tokens(), tokens);
        }
    }
}
