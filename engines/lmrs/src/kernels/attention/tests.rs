//! Compares every level with the definition of each function, computed in f64.

use super::*;
use crate::kernels::test_rng::TestRng;

#[test]
fn every_level_multiplies_rows_with_a_tile_as_defined() {
    let mut rng = TestRng::new(5);
    for round in 0..300 {
        let kv_dtype = [KvDtype::F16, KvDtype::F32][round % 2];
        let (rows, width, depth) = (1 + rng.below(20), 16 * (1 + rng.below(4)), 1 + rng.below(80));
        let (stride, c_stride) = (depth + rng.below(5), width + rng.below(7));
        let a = rng.numbers(rows * stride);
        let (mut bytes, mut widened) = (Vec::new(), Vec::new());
        for row in rng.numbers(depth * width).chunks(BLOCK_POSITIONS) {
            let mut narrowed = [0; 4 * BLOCK_POSITIONS];
            let narrowed = kv_dtype.narrow(row, &mut narrowed);
            let mut wide = vec![0.0; row.len()];
            widen(kv_dtype, narrowed, &mut wide);
            bytes.extend_from_slice(narrowed);
            widened.extend(wide);
        }
        let initial = rng.numbers((rows - 1) * c_stride + width);
        for level in Level::available() {
            let mut c = initial.clone();
            let left = LeftRows { numbers: &a, stride, rows };
            let right = CacheRows { bytes: &bytes, kv_dtype, width, ahead: 4096 * (round % 3) };
            let sums = Sums { numbers: &mut c, stride: c_stride };
            accumulate(level, Product { left, right, depth, sums });
            for (at, (sum, initial)) in c.iter().zip(&initial).enumerate() {
                let (row, column) = (at / c_stride, at % c_stride);
                let product =
                    |k: usize| f64::from(a[row * stride + k]) * f64::from(widened[k * width + column]);
                let added: f64 = if column < width { (0..depth).map(product).sum() } else { 0.0 };
                let expected = f64::from(*initial) + added;
                assert!(
                    (f64::from(*sum) - expected).abs() < 1e-4,
                    "{level:?} {kv_dtype:?} {rows} rows, {depth} by {width}: {sum} and {expected}"
                );
            }
        }
    }
}

#[test]
fn softmax_by_tiles_equals_softmax_of_all_scores() {
    let mut rng = TestRng::new(6);
    for level in Level::available() {
        for _ in 0..100 {
            let tiles = 1 + rng.below(5);
            let visible = rng.below(BLOCK_POSITIONS * tiles / 2)
                ..BLOCK_POSITIONS * tiles / 2 + 1 + rng.below(BLOCK_POSITIONS * tiles / 2);
            let scores: Vec<f32> = rng.numbers(BLOCK_POSITIONS * tiles).iter().map(|x| x * 20.0).collect();
            let mut state = Softmax::EMPTY;
            let mut weights: Vec<f64> = Vec::new();
            for tile in 0..tiles {
                let mut tile_scores: [f32; BLOCK_POSITIONS] =
                    scores[tile * BLOCK_POSITIONS..][..BLOCK_POSITIONS].try_into().unwrap();
                let start = tile * BLOCK_POSITIONS;
                let correction = state.step(
                    level,
                    &mut tile_scores,
                    visible.start.saturating_sub(start)..visible.end.saturating_sub(start),
                );
                weights.iter_mut().for_each(|weight| *weight *= f64::from(correction));
                weights.extend(tile_scores.map(f64::from));
            }
            let largest = scores[visible.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exact_weight = |at: usize| match visible.contains(&at) {
                true => f64::from(scores[at] - largest).exp(),
                false => 0.0,
            };
            let sum: f64 = (0..scores.len()).map(exact_weight).sum();
            for (at, weight) in weights.iter().enumerate() {
                let (actual, expected) = (weight / f64::from(state.sum), exact_weight(at) / sum);
                assert!(
                    (actual - expected).abs() < 1e-6,
                    "{level:?} {at} of {visible:?}: {actual} and {expected}"
                );
            }
        }
    }
}

#[test]
fn joining_with_an_empty_partition_gives_the_other_partition() {
    let mut state = Softmax { largest: 2.0, sum: 3.0 };
    assert_eq!(state.join(Softmax::EMPTY), (1.0, 0.0));
    assert_eq!((state.largest, state.sum), (2.0, 3.0));
    let mut empty = Softmax::EMPTY;
    assert_eq!(empty.join(state), (0.0, 1.0));
    assert_eq!((empty.largest, empty.sum), (2.0, 3.0));
}

#[test]
fn numbers_beyond_the_range_of_f16_become_the_nearest_finite_f16() {
    let mut bytes = [0; 4 * BLOCK_POSITIONS];
    let narrowed = KvDtype::F16.narrow(&[1e9, -1e9, 0.5], &mut bytes);
    let mut wide = [0.0; 3];
    widen(KvDtype::F16, narrowed, &mut wide);
    assert_eq!(wide, [65504.0, -65504.0, 0.5]);
}
