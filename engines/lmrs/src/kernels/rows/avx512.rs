//! AVX-512 registers of 512 bits.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::arch::x86_64::*;

use super::lanes::{Lanes, Wide};

#[derive(Clone, Copy)]
pub struct Sixteen(__m512);

impl Lanes for Sixteen {
    const LANES: usize = 16;
    type Number = f32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees this; the same below.
        Self(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn load(numbers: *const f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_loadu_ps(numbers) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bits.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    fn fetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

impl Wide for Sixteen {
    #[inline(always)]
    unsafe fn from_f16(bits: *const u8) -> Self {
        // SAFETY: the caller guarantees this.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(bits.cast()))) }
    }
}
