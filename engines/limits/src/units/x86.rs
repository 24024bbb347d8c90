//! The vector units of x86: loops over one instruction each, with operands in registers.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::Unit;
use crate::names;

/// Independent sums, so that no addition waits for another. Two pipes need eight sums at a latency of four cycles (Intel), ten
/// at five. 16 sums and the operands fit into 32 registers.
const SUMS_512: usize = 16;
/// Independent sums. There are 16 registers, of which two hold operands.
const SUMS_256: usize = 12;

pub fn supported() -> impl Iterator<Item = Unit> {
    let has_avx512 = is_x86_feature_detected!("avx512f");
    let f32_unit = match has_avx512 {
        true => Some(Unit::in_registers(names::F32_FMA, SUMS_512 * 16, f32_512)),
        false => (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"))
            .then_some(Unit::in_registers(names::F32_FMA, SUMS_256 * 8, f32_256)),
    };
    let has_bf16 = has_avx512 && is_x86_feature_detected!("avx512bf16");
    let has_vnni = has_avx512 && is_x86_feature_detected!("avx512vnni");
    let has_avx_vnni = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni");
    let units = [
        (has_bf16, Unit::in_registers(names::AVX512_BF16, SUMS_512 * 32, bf16_512)),
        (has_vnni, Unit::in_registers(names::AVX512_VNNI, SUMS_512 * 64, vnni_512)),
        (has_avx_vnni, Unit::in_registers(names::AVX_VNNI, SUMS_256 * 32, vnni_256)),
    ];
    f32_unit
        .into_iter()
        .chain(units.into_iter().filter_map(|(is_supported, unit)| is_supported.then_some(unit)))
}

/// Each sum tends to two, so that no number becomes subnormal: subnormal numbers can be slower.
#[target_feature(enable = "avx512f")]
fn f32_512(rounds: u64) {
    let (half, one) = (black_box(_mm512_set1_ps(0.5)), black_box(_mm512_set1_ps(1.0)));
    let mut sums = [one; SUMS_512];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, half, one);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx2,fma")]
fn f32_256(rounds: u64) {
    let (half, one) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(1.0)));
    let mut sums = [one; SUMS_256];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, half, one);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_512(rounds: u64) {
    let one = _mm512_set1_ps(1.0);
    let ones = black_box(_mm512_cvtne2ps_pbh(one, one));
    let mut sums = [one; SUMS_512];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, ones, ones);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni_512(rounds: u64) {
    let ones = black_box(_mm512_set1_epi8(1));
    let mut sums = [ones; SUMS_512];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, ones, ones);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx2,avxvnni")]
fn vnni_256(rounds: u64) {
    let ones = black_box(_mm256_set1_epi8(1));
    let mut sums = [ones; SUMS_256];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, ones, ones);
        }
    }
    black_box(sums);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_as_multiplications_and_additions() {
        // 16 instructions with 16 products of f32, 32 of bf16, or 64 of eight bits; 12 instructions of half the width.
        let operations = |products| Unit::in_registers("", products, f32_512).operations_per_round;
        assert_eq!([SUMS_512 * 16, SUMS_512 * 32, SUMS_512 * 64].map(operations), [512, 1024, 2048]);
        assert_eq!([SUMS_256 * 8, SUMS_256 * 32].map(operations), [192, 768]);
    }

    #[test]
    fn the_avx512_units_match_the_detected_features() {
        let names: Vec<&str> = supported().map(|unit| unit.name).collect();
        assert_eq!(names.contains(&names::AVX512_VNNI), is_x86_feature_detected!("avx512vnni"));
        assert_eq!(names.contains(&names::AVX512_BF16), is_x86_feature_detected!("avx512bf16"));
    }

    #[test]
    fn the_f32_unit_of_256_bits_also_runs_on_machines_with_avx512() {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            #[expect(unsafe_code, reason = "the function needs instructions that not every machine has")]
            // SAFETY: the features were just detected.
            unsafe {
                f32_256(1000);
            }
        }
    }
}
