//! Operations per second of matrix products with a GPU's library.

use std::time::Duration;

use super::cublas::{Cublas, NUMBERS_BF16, NUMBERS_F16, NUMBERS_F32, SUMS_F32, SUMS_TF32};
use super::driver::Context;
use crate::{Operations, names};

/// The largest number of rows and columns of all three matrices, if memory allows it.
const LARGEST: u64 = 8192;
/// The smallest number: smaller matrices do not keep a large GPU busy.
const SMALLEST: u64 = 2048;
/// The divisor of the free memory for all three matrices.
const SHARE: u64 = 2;
/// Bytes of random numbers, which are generated once and repeated.
const MADE_BYTES: usize = 8 << 20;

/// A kind of number, in memory and in cuBLAS's terms. Results have the kind of the operands; sums are always f32.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    pub unit: &'static str,
    pub bytes: usize,
    mantissa_bits: u32,
    /// The exponent bits of the number one.
    exponent_bias: u32,
    /// `cudaDataType`.
    pub data: i32,
    /// `cublasComputeType_t`.
    pub compute: i32,
}

const F32: Number = Number {
    unit: names::CUBLAS_F32,
    bytes: 4,
    mantissa_bits: 23,
    exponent_bias: 127,
    data: NUMBERS_F32,
    compute: SUMS_F32,
};

pub const NUMBERS: &[Number] = &[
    Number {
        unit: names::CUBLAS_BF16,
        bytes: 2,
        mantissa_bits: 7,
        exponent_bias: 127,
        data: NUMBERS_BF16,
        compute: SUMS_F32,
    },
    Number {
        unit: names::CUBLAS_F16,
        bytes: 2,
        mantissa_bits: 10,
        exponent_bias: 15,
        data: NUMBERS_F16,
        compute: SUMS_F32,
    },
    Number { unit: names::CUBLAS_TF32, compute: SUMS_TF32, ..F32 },
    F32,
];

pub fn probe(
    context: &Context,
    cublas: &Cublas,
    number: &Number,
    budget: Duration,
) -> Result<Operations, String> {
    let free = context.free_bytes()?;
    let side = side(free, number.bytes as u64)
        .ok_or_else(|| format!("only {} MiB of its memory are free", free >> 20))?;
    let bytes = (side * side) as usize * number.bytes;
    let made = numbers(number, MADE_BYTES / number.bytes);
    let matrix = || context.allocate(bytes);
    let (a, b, c) = (matrix()?, matrix()?, matrix()?);
    a.fill(&made)?;
    b.fill(&made)?;
    let ns = context.fastest(budget, || cublas.product(side, number, [&a, &b, &c]))?;
    Ok(Operations { unit: number.unit.into(), loads: true, threads: 0, operations: operations(side), ns })
}

/// A multiplication and an addition for each combination of three indices.
fn operations(side: u64) -> u64 {
    2 * side * side * side
}

fn side(free: u64, bytes: u64) -> Option<u64> {
    let sides = std::iter::successors(Some(LARGEST), |side| Some(side / 2));
    sides.take_while(|&side| side >= SMALLEST).find(|side| 3 * side * side * bytes <= free / SHARE)
}

/// Pseudo-random numbers between -1 and 1. On uniform numbers a GPU draws less power, and so runs faster.
fn numbers(number: &Number, count: usize) -> Vec<u8> {
    let sign_at = 8 * number.bytes as u32 - 1;
    let mut state = 0x9e37_79b9_u32;
    let mut made = Vec::with_capacity(count * number.bytes);
    for _ in 0..count {
        // Marsaglia's 32-bit xorshift.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let mantissa = state & ((1 << number.mantissa_bits) - 1);
        let exponent = number.exponent_bias - 1 - (state >> 24 & 7);
        let bits = (state >> 31) << sign_at | exponent << number.mantissa_bits | mantissa;
        made.extend_from_slice(&bits.to_le_bytes()[..number.bytes]);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_matrices_of_8192_is_a_thousand_billion_operations() {
        assert_eq!(operations(8192), 1_099_511_627_776);
    }

    #[test]
    fn matrices_halve_their_sides_until_half_of_the_free_memory_holds_three() {
        assert_eq!(side(80 << 30, 2), Some(8192));
        assert_eq!(side(768 << 20, 2), Some(8192));
        assert_eq!(side((768 << 20) - 1, 2), Some(4096));
        assert_eq!(side(96 << 20, 4), Some(2048));
        assert_eq!(side((96 << 20) - 1, 4), None);
    }

    #[test]
    fn numbers_are_as_their_kind_reads_them_between_minus_one_and_one_and_not_alike() {
        let made = numbers(&F32, 10_000);
        let read: Vec<f32> = made.chunks(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect();
        // bf16 is the upper half of an f32.
        let half = |it: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes(it.try_into().unwrap())) << 16);
        let halves: Vec<f32> = numbers(&NUMBERS[0], 10_000).chunks(2).map(half).collect();
        // Decodes f16 by its definition; the exponents here belong to normal numbers.
        let small = |it: &[u8]| {
            let bits = u16::from_le_bytes(it.try_into().unwrap());
            let value = f32::from(bits & 1023 | 1024) * 2_f32.powi(i32::from(bits >> 10 & 31) - 25);
            if bits >> 15 == 1 { -value } else { value }
        };
        let smalls: Vec<f32> = numbers(&NUMBERS[1], 10_000).chunks(2).map(small).collect();
        for kind in [read, halves, smalls] {
            assert!(kind.iter().all(|it| it.abs() < 1.0 && it.abs() >= 1.0 / 256.0));
            let mean = kind.iter().sum::<f32>() / kind.len() as f32;
            assert!(mean.abs() < 0.02, "{mean}");
            let distinct: std::collections::BTreeSet<u32> = kind.iter().map(|it| it.to_bits()).collect();
            assert!(distinct.len() > 1000, "{}", distinct.len());
        }
    }
}
