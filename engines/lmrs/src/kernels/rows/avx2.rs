//! AVX2 registers of 256 bits, with FMA and F16C.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::arch::x86_64::*;

use super::lanes::{Lanes, Wide};

#[derive(Clone, Copy)]
pub struct Eight(__m256);

impl Lanes for Eight {
    const LANES: usize = 8;
    type Number = f32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees this; the same below.
        Self(unsafe { _mm256_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn load(numbers: *const f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_loadu_ps(numbers) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(bits.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe {
            let fours = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
            _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)))
        }
    }

    #[inline(always)]
    fn fetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

impl Wide for Eight {
    #[inline(always)]
    unsafe fn from_f16(bits: *const u8) -> Self {
        // SAFETY: the caller guarantees this.
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(bits.cast()))) }
    }
}
