//! AVX-512 registers of bf16, whose products are added in pairs by one instruction.
#![expect(unsafe_code, reason = "unaligned weights, and SIMD instructions")]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is a few instructions, and `Lanes` states the requirements"
)]

use std::arch::x86_64::*;

use super::activations::{Bf16Line, LINE_NUMBERS};
use super::lanes::{Float, Lanes, Weight, prefetch};
use crate::formats::floats::InBf16;

/// A register of 32 bf16 numbers or of 16 f32 sums.
#[derive(Clone, Copy)]
pub struct Paired(__m512);

impl Paired {
    /// A register from the bits of 32 numbers.
    ///
    /// # Safety
    /// The machine has AVX-512.
    #[inline(always)]
    pub unsafe fn of(numbers: __m512i) -> Self {
        Self(_mm512_castsi512_ps(numbers))
    }
}

impl Lanes for Paired {
    const LANES: usize = 32;
    const CHAINS: usize = 1;
    const TOKENS_PER_READ: usize = 4;
    type Number = u16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(_mm512_setzero_ps())
    }

    #[inline(always)]
    unsafe fn load(numbers: *const u16) -> Self {
        Self(_mm512_loadu_ps(numbers.cast()))
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        Self(_mm512_loadu_ps(bits.cast()))
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        let numbers = |register: Self| std::mem::transmute::<__m512, __m512bh>(register.0);
        Self(_mm512_dpbf16_ps(self.0, numbers(a), numbers(b)))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(_mm512_add_ps(self.0, other.0))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        _mm512_reduce_add_ps(self.0)
    }

    #[inline(always)]
    fn prefetch_line(at: *const u8) {
        prefetch(at);
    }
}

impl Weight<Paired> for InBf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> Paired {
        Paired::from_bf16(bytes)
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        <Self as Float>::widen(bytes)
    }
}

/// Sums the lanes of four tokens by four rows (`[token][row]`), in the order of `Lanes::sum`. Each step adds halves: of the 16
/// numbers of a sum, eight, four, two and one are left.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
pub unsafe fn totals(sums: [&[Paired; 4]; 4]) -> [[f32; 4]; 4] {
    let eights = |a: Paired, b: Paired| {
        let low = _mm512_shuffle_f32x4::<0x44>(a.0, b.0);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(a.0, b.0))
    };
    let fours = |a, b| {
        let low = _mm512_shuffle_f32x4::<0x88>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xdd>(a, b))
    };
    let twos = |a, b| {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
    let ones = |a, b| {
        let low = _mm512_shuffle_ps::<0x88>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_ps::<0xdd>(a, b))
    };
    // Four numbers of each token for one row.
    let row = |row: usize| fours(eights(sums[0][row], sums[1][row]), eights(sums[2][row], sums[3][row]));
    let totals = ones(twos(row(0), row(1)), twos(row(2), row(3)));
    std::mem::transmute::<__m512, [[f32; 4]; 4]>(totals)
}

/// Rounds to the nearest bf16, ties to even. Subnormal f32 numbers become zero.
///
/// # Safety
/// The machine has AVX-512 and its products of bf16.
#[inline(always)]
pub unsafe fn narrow(x: &[f32], narrowed: &mut [u16]) {
    for (numbers, destination) in x.chunks(16).zip(narrowed.chunks_mut(16)) {
        let mask = u16::MAX >> (16 - numbers.len().min(destination.len()));
        // SAFETY: the caller guarantees the level; the masks limit reads and writes to numbers that both slices have.
        unsafe {
            let bits = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, numbers.as_ptr()));
            let bits = std::mem::transmute::<__m256bh, __m256i>(bits);
            _mm256_mask_storeu_epi16(destination.as_mut_ptr().cast(), mask, bits);
        }
    }
}

/// Rounds numbers as `narrow`, into lines.
///
/// # Safety
/// The same as for `narrow`.
#[inline(always)]
pub unsafe fn narrow_lines(x: &[f32], lines: &mut [Bf16Line]) {
    for (numbers, line) in x.chunks(LINE_NUMBERS).zip(lines) {
        // SAFETY: the caller guarantees this.
        unsafe { narrow(numbers, &mut line.0[..numbers.len()]) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AlignedBf16, has_pairs, narrow};
    use crate::kernels::Level;
    use crate::kernels::test_rng::TestRng;

    #[test]
    fn numbers_are_rounded_to_the_nearest_bf16_and_subnormal_ones_to_zero() {
        let mut rng = TestRng::new(41);
        for level in Level::available().into_iter().filter(|level| has_pairs(*level)) {
            let mut narrowed = AlignedBf16::default();
            for count in 0..70 {
                let mut x = rng.numbers(count);
                narrow(level, &x, &mut narrowed);
                assert_eq!(
                    narrowed.all(),
                    x.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect::<Vec<_>>(),
                    "{level}"
                );
                x.fill(1e-39);
                narrow(level, &x, &mut narrowed);
                assert_eq!(narrowed.all(), vec![0; count], "{level}");
            }
            narrow(level, &[f32::INFINITY, f32::NAN, -0.0], &mut narrowed);
            let [infinite, nan, zero] = *narrowed.all() else { panic!("three numbers") };
            assert_eq!((infinite, zero), (0x7f80, 0x8000));
            assert!(nan & 0x7f80 == 0x7f80 && nan & 0x7f != 0);
        }
    }
}
