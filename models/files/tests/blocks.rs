//! Tests each dtype but F32 against `gguf`, the Python package of llama.cpp, and tests properties that every dtype must have.
//! `tests/blocks/make_golden.py` describes and generates the golden files.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

use std::path::Path;

use model_files::Dtype;
use model_files::blocks::{can_narrow, narrow, widen};

/// The quantized dtypes that can be written.
const QUANTIZED: [Dtype; 4] = [Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4K, Dtype::Q6K];

fn golden(name: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blocks").join(name);
    std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn narrow_to_bytes(dtype: Dtype, values: &[f32]) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0xa5; dtype.bytes(values.len() as u64) as usize];
    narrow(dtype, values, &mut bytes).map(|()| bytes)
}

fn widen_to_numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let (numbers, size) = dtype.block();
    let mut values = vec![f32::NAN; bytes.len() / size * numbers];
    widen(dtype, bytes, &mut values).unwrap();
    values
}

fn round_trip(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    widen_to_numbers(dtype, &narrow_to_bytes(dtype, values).unwrap())
}

/// A generator of random numbers between -1 and 1.
fn random(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Rows of 1024 numbers each.
fn rows() -> Vec<(&'static str, Vec<f32>)> {
    let mut next = random(1);
    let mut row = |number: &mut dyn FnMut(&mut dyn FnMut() -> f32) -> f32| -> Vec<f32> {
        (0..1024).map(|_| number(&mut next)).collect()
    };
    let uniform = row(&mut |next| next());
    let normal = row(&mut |next| 0.02 * (next() + next() + next() + next()));
    let mut outlier = normal.clone();
    outlier[300] = 5e4;
    let mut negative_outlier = normal.clone();
    negative_outlier[300] = -5e4;
    let mut with_zeros = normal.clone();
    with_zeros.iter_mut().skip(512).step_by(2).for_each(|value| *value = 0.0);
    vec![
        ("normal", normal),
        ("heavy tails", row(&mut |next| 0.02 / (next() + 0.001 * next()))),
        ("one huge outlier", outlier),
        ("one huge negative outlier", negative_outlier),
        ("zeros in the second half", with_zeros),
        ("all positive", uniform.iter().map(|value| 3.0 + value).collect()),
        ("all negative", uniform.iter().map(|value| -3.0 - value).collect()),
        (
            "groups of very different magnitudes",
            (0..1024).map(|at| uniform[at] * 2_f32.powi(-(at as i32 / 16 % 24))).collect(),
        ),
        ("scales that are subnormal in f16", uniform.iter().map(|value| value * 1e-5).collect()),
        ("scales below any f16", uniform.iter().map(|value| value * 1e-9).collect()),
        ("subnormal", uniform.iter().map(|value| value * 1e-39).collect()),
        ("uniform", uniform),
    ]
}

#[test]
fn every_dtype_except_f32_widens_to_the_bits_of_llama_cpps_package() {
    for dtype in Dtype::ALL.iter().copied().filter(|dtype| *dtype != Dtype::F32) {
        let file = golden(&format!("widen/{}.bin", dtype.as_str()));
        let (blocks, expected) = file.split_at(dtype.bytes(1024) as usize);
        let (numbers, expected) = (widen_to_numbers(dtype, blocks), floats(expected));
        for (at, (found, expected)) in numbers.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{dtype:?} {at}: {found:e} for {expected:e}");
        }
        assert_eq!(numbers.len(), expected.len());
    }
}

#[test]
fn f16_bf16_q8_0_and_q4_0_narrow_to_the_bytes_of_llama_cpps_package() {
    let numbers = floats(&golden("narrow/numbers.bin"));
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_0] {
        let expected = golden(&format!("narrow/{}.bin", dtype.as_str()));
        let bytes = narrow_to_bytes(dtype, &numbers).unwrap();
        let (_, size) = dtype.block();
        for (at, (found, expected)) in bytes.chunks(size).zip(expected.chunks(size)).enumerate() {
            assert_eq!(found, expected, "{dtype:?}, block {at}");
        }
        assert_eq!(bytes.len(), expected.len());
    }
}

#[test]
fn f32_is_unchanged_nan_included() {
    let bits = [0x7fc0_1234, 0xff80_0001, 0x8000_0000, 1, 0x7f7f_ffff_u32];
    let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
    let restored: Vec<u32> = round_trip(Dtype::F32, &values).into_iter().map(f32::to_bits).collect();
    assert_eq!(restored, bits);
}

/// The distance between neighbouring values that a quantization block can hold, before its scales are rounded. In Q4_K each
/// group of 32 numbers has its own distance, and this is the largest.
fn step(dtype: Dtype, block: &[f32]) -> f32 {
    let largest = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    match dtype {
        dtype if dtype == Dtype::Q8_0 => largest / 127.0,
        dtype if dtype == Dtype::Q4_0 => largest / 8.0,
        dtype if dtype == Dtype::Q6K => largest / 32.0,
        dtype if dtype == Dtype::Q4K => {
            let range = |group: &[f32]| {
                let (low, high) = group
                    .iter()
                    .fold((0.0_f32, 0.0_f32), |(low, high), &value| (low.min(value), high.max(value)));
                high - low
            };
            block.chunks(32).map(range).fold(0.0, f32::max) / 15.0
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn numbers_are_restored_within_a_step_and_on_average_within_half_a_step() {
    for (name, row) in rows() {
        for dtype in QUANTIZED {
            let (numbers, _) = dtype.block();
            let restored = round_trip(dtype, &row);
            for (block, (values, restored)) in row.chunks(numbers).zip(restored.chunks(numbers)).enumerate() {
                // A subnormal f16 scale has an error of up to 2^-25; integers are at most 127. Other scales: less than 1 %.
                let scale_error = 127.0 * 2_f32.powi(-25);
                let step = step(dtype, values);
                let errors = values.iter().zip(restored).map(|(a, b)| (a - b).abs());
                let worst = errors.clone().fold(0.0, f32::max);
                assert!(
                    worst <= 1.01 * step + scale_error,
                    "{dtype:?} {name} {block}: {worst:e} of {step:e}"
                );
                let mean_square = errors.map(|error| error * error).sum::<f32>() / numbers as f32;
                // Rounding alone gives 0.29 steps. Q4_0 also clips large numbers of the sign opposite to the largest.
                let bound = if dtype == Dtype::Q4_0 { 0.5 } else { 0.36 } * step + scale_error;
                assert!(
                    mean_square.sqrt() <= bound,
                    "{dtype:?} {name} {block}: {:e} of {step:e}",
                    mean_square.sqrt()
                );
            }
        }
    }
}

#[test]
fn numbers_near_the_smallest_scale_stay_distinct_in_q4_k_and_q6_k() {
    let mut next = random(2);
    let row: Vec<f32> = (0..1024).map(|_| next() * 3e-6).collect();
    for dtype in [Dtype::Q4K, Dtype::Q6K] {
        let restored = round_trip(dtype, &row);
        let error: f32 = row.iter().zip(&restored).map(|(a, b)| (a - b).powi(2)).sum();
        let signal: f32 = row.iter().map(|value| value.powi(2)).sum();
        assert!(error < 0.01 * signal, "{dtype:?}: {error:e} of {signal:e}");
    }
}

#[test]
fn the_scale_searches_have_less_error_than_the_quantizers_of_llama_cpp() {
    // The squared error relative to that of evenly spaced values in each group. llama.cpp's quantizers reach 0.765 in Q4_K
    // and 0.797 in Q6_K on these numbers; this crate must have at least 2 % less.
    let (_, normal) = rows().swap_remove(0);
    for (dtype, group_size, llama_cpp) in [(Dtype::Q4K, 32, 0.765), (Dtype::Q6K, 16, 0.797)] {
        let restored = round_trip(dtype, &normal);
        let error: f32 = normal.iter().zip(&restored).map(|(a, b)| (a - b).powi(2)).sum();
        let even_error = |group: &[f32]| {
            let low = group.iter().copied().fold(f32::MAX, f32::min);
            let high = group.iter().copied().fold(f32::MIN, f32::max);
            let step = if dtype == Dtype::Q4K { (high - low) / 15.0 } else { 2.0 * high.max(-low) / 63.0 };
            step.powi(2) / 12.0 * group.len() as f32
        };
        let relative_error = error / normal.chunks(group_size).map(even_error).sum::<f32>();
        assert!(relative_error < 0.98 * llama_cpp, "{dtype:?}: {relative_error}");
    }
}

#[test]
fn the_scale_searches_give_the_same_bytes_on_every_machine() {
    // A change of a scale search changes these digests, and the identity of every model that is then written in these dtypes.
    let numbers = floats(&golden("narrow/numbers.bin"));
    for (dtype, expected) in [(Dtype::Q4K, 0x89e6_7aa4_847e_731c_u64), (Dtype::Q6K, 0x4636_409b_6263_2f32)] {
        // FNV-1a.
        let hash = narrow_to_bytes(dtype, &numbers)
            .unwrap()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        assert_eq!(hash, expected, "{dtype:?}: {hash:#x}");
    }
}

#[test]
fn zeros_of_either_sign_are_restored_as_zeros() {
    for zero in [0.0, -0.0] {
        for dtype in Dtype::ALL.iter().copied().filter(|dtype| can_narrow(*dtype)) {
            assert!(round_trip(dtype, &[zero; 512]).iter().all(|value| *value == 0.0), "{dtype:?}");
        }
        let mut zeros = vec![0, 0x80];
        zeros.extend([0x88; 16]);
        assert_eq!(narrow_to_bytes(Dtype::Q4_0, &[zero; 32]).unwrap(), zeros);
        assert_eq!(narrow_to_bytes(Dtype::Q8_0, &[zero; 32]).unwrap(), [0; 34]);
        assert_eq!(narrow_to_bytes(Dtype::Q4K, &[zero; 256]).unwrap(), [0; 144]);
    }
    assert_eq!(round_trip(Dtype::F16, &[-0.0])[0].to_bits(), 0x8000_0000);
    assert_eq!(round_trip(Dtype::BF16, &[-0.0])[0].to_bits(), 0x8000_0000);
}

#[test]
fn a_constant_row_is_restored_within_a_thousandth() {
    for constant in [1.0, -1.0, 0.3, -0.7, 12345.0, -54321.0, 0.1] {
        for dtype in QUANTIZED {
            for value in round_trip(dtype, &[constant; 256]) {
                let error = (value / constant - 1.0).abs();
                assert!(error < 1e-3, "{dtype:?}: {value} for {constant}");
            }
        }
    }
}

#[test]
fn restored_numbers_narrow_to_the_same_bytes() {
    for (name, row) in rows() {
        // If a scale rounds to zero in f16, the integers have no meaning; the next test covers that.
        if matches!(name, "scales below any f16" | "subnormal" | "groups of very different magnitudes") {
            continue;
        }
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_0] {
            let first = narrow_to_bytes(dtype, &row).unwrap();
            assert_eq!(
                narrow_to_bytes(dtype, &widen_to_numbers(dtype, &first)).unwrap(),
                first,
                "{dtype:?} {name}"
            );
        }
    }
}

#[test]
fn a_block_whose_scale_is_below_every_f16_becomes_zero() {
    let row: Vec<f32> = (0..32).map(|at| at as f32 * 1e-10).collect();
    for dtype in [Dtype::Q8_0, Dtype::Q4_0] {
        let restored = round_trip(dtype, &row);
        assert!(restored.iter().all(|value| *value == 0.0), "{dtype:?}");
        // As in llama.cpp, the first conversion writes integers beside the zero scale. The second one drops them.
        let (first, second) =
            (narrow_to_bytes(dtype, &row).unwrap(), narrow_to_bytes(dtype, &restored).unwrap());
        assert_ne!(first, second, "{dtype:?}");
        assert_eq!(narrow_to_bytes(dtype, &widen_to_numbers(dtype, &second)).unwrap(), second, "{dtype:?}");
    }
}

#[test]
fn an_outlier_changes_only_its_own_block() {
    let (_, plain) = rows().swap_remove(0);
    for dtype in QUANTIZED {
        let (numbers, size) = dtype.block();
        let (bytes, mut row) = (narrow_to_bytes(dtype, &plain).unwrap(), plain.clone());
        row[numbers] = 1e4;
        let changed_bytes = narrow_to_bytes(dtype, &row).unwrap();
        for (block, (before, after)) in bytes.chunks(size).zip(changed_bytes.chunks(size)).enumerate() {
            assert_eq!(before == after, block != 1, "{dtype:?}, block {block}");
        }
    }
}

#[test]
fn quantized_dtypes_refuse_nan_and_infinity_and_name_the_first_index() {
    for dtype in QUANTIZED {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = vec![0.5; 1024];
            row[300] = bad;
            row[301] = f32::NAN;
            let error = narrow_to_bytes(dtype, &row).unwrap_err().to_string();
            assert!(error.contains("number 300, `"), "{error}");
            assert!(error.contains(dtype.as_str()), "{error}");
        }
    }
}

#[test]
fn the_largest_finite_number_of_a_dtype_is_accepted_and_a_larger_one_refused() {
    let next_larger = |value: f32| f32::from_bits(value.to_bits() + 1);
    // BF16 rounds larger numbers to infinity; F16 rounds 65520 to infinity.
    let largest_for_bf16 = f32::from_bits(0x7f7f_7fff);
    for (dtype, largest_valid, block_numbers) in [
        (Dtype::F16, f32::from_bits(65520_f32.to_bits() - 1), 1),
        (Dtype::BF16, largest_for_bf16, 1),
        (Dtype::Q8_0, 65519.0 * 127.0, 32),
        (Dtype::Q4_0, 65519.0 * 8.0, 32),
    ] {
        let mut row = vec![1.0; 64];
        row[40] = -largest_valid;
        assert!(widen_to_numbers(dtype, &narrow_to_bytes(dtype, &row).unwrap())[40].is_finite(), "{dtype:?}");
        row[40] = if block_numbers == 1 { -next_larger(largest_valid) } else { -largest_valid * 1.001 };
        let error = narrow_to_bytes(dtype, &row).unwrap_err().to_string();
        assert!(error.starts_with("number 40, `-"), "{error}");
    }
    for dtype in QUANTIZED {
        for large in [1e9, 1e14, 1e16, -1e16, f32::MAX, f32::MIN] {
            let mut row = vec![1.0; 512];
            row[400] = large;
            let error = narrow_to_bytes(dtype, &row).unwrap_err().to_string();
            assert!(error.contains("number 400, `"), "{error}");
        }
        assert!(round_trip(dtype, &[5e5; 256]).iter().all(|value| value.is_finite()), "{dtype:?}");
    }
}

#[test]
fn f16_and_bf16_keep_infinities_and_nan_payloads_and_make_signalling_nan_quiet() {
    let quiet = [(Dtype::F16, 0x200_u16), (Dtype::BF16, 0x40)];
    for bits in [0x7c00_u16, 0xfc00, 0x7c01, 0xfe34, 0x7fff, 0x7f80, 0xff80, 0x7f81, 0xffc1] {
        for (dtype, quiet) in quiet {
            let value = widen_to_numbers(dtype, &bits.to_le_bytes());
            let expected = if value[0].is_nan() { bits | quiet } else { bits };
            assert_eq!(
                narrow_to_bytes(dtype, &value).unwrap(),
                expected.to_le_bytes(),
                "{dtype:?} {bits:#x}"
            );
        }
    }
    // A NaN that loses all bits of its payload must not become an infinity.
    let nan = [f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001)];
    for dtype in [Dtype::F16, Dtype::BF16] {
        assert!(round_trip(dtype, &nan).iter().all(|value| value.is_nan()));
    }
}

#[test]
fn a_wrong_length_is_an_error_in_both_directions() {
    for &dtype in Dtype::ALL {
        let (numbers, size) = dtype.block();
        let lengths =
            [(2 * numbers, 2 * size - 1), (2 * numbers, 2 * size + 1), (numbers, 2 * size), (numbers, 0)];
        let uneven = [(2 * numbers - 1, 2 * size), (2 * numbers + 1, 2 * size), (numbers / 2, 0), (0, size)];
        for (numbers, size) in lengths.into_iter().chain(uneven) {
            if dtype.bytes(numbers as u64) == size as u64 && numbers.is_multiple_of(dtype.block().0) {
                continue;
            }
            let (mut values, mut bytes) = (vec![0.0; numbers], vec![0; size]);
            let error = widen(dtype, &bytes, &mut values).unwrap_err().to_string();
            assert!(error.contains(&format!("`{}`", dtype.as_str())), "{error}");
            assert!(narrow(dtype, &values, &mut bytes).is_err(), "{dtype:?} {numbers} {size}");
        }
        widen(dtype, &[], &mut []).unwrap();
    }
}

#[test]
fn narrowing_to_a_read_only_dtype_is_an_error() {
    let read_only: Vec<_> = Dtype::ALL.iter().copied().filter(|dtype| !can_narrow(*dtype)).collect();
    assert_eq!(read_only, [Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1, Dtype::Q2K, Dtype::Q3K, Dtype::Q5K]);
    for dtype in read_only {
        let error = narrow_to_bytes(dtype, &[0.0; 256]).unwrap_err().to_string();
        assert_eq!(error, format!("`{}` can be read but not written", dtype.as_str()));
    }
}
