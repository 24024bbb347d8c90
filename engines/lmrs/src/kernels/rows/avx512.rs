//! Registers of 512 bits.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::arch::x86_64::*;

use super::lanes::{Lanes, Widening};
use super::packed::Kind;
use super::tiles::{Part, Tile, add_part, widen_row};
use crate::matrix::Format;

#[derive(Clone, Copy)]
pub struct Wide(__m512);

impl Lanes for Wide {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        // SAFETY: the caller's promise; so below.
        Self(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    unsafe fn load(numbers: *const f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_loadu_ps(numbers) })
    }

    #[inline(always)]
    unsafe fn store(self, numbers: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(numbers, self.0) }
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }
}

impl Widening for Wide {
    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bits.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn from_f16(bits: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(bits.cast()))) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: as above; a hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}

impl Tile for Wide {
    const KIND: Kind = Kind::Numbers;
    const OUTPUTS: usize = 8;
    const GROUPS: usize = 3;
    const STEPS: usize = 128;

    #[inline(always)]
    unsafe fn add(part: &Part) {
        // SAFETY: as above.
        unsafe {
            match part.groups {
                1 => add_part::<Self, 8, 1>(part),
                2 => add_part::<Self, 8, 2>(part),
                _ => add_part::<Self, 8, 3>(part),
            }
        }
    }

    #[inline(always)]
    unsafe fn pack(format: Format, row: &[u8], weights: &mut [u32]) {
        // SAFETY: as above.
        unsafe { widen_row::<Self>(format, row, weights) }
    }
}
