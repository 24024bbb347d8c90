//! Products of pairs of bf16 in registers of 512 bits: two inputs a step, summed up in f32.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;

use super::avx512;
use super::lanes::Lanes;
use super::packed::{Block, Kind, Line};
use super::tiles::{Part, Tile, add_part, copy_pairs};
use crate::matrix::Format;

/// Sums of f32, or pairs of bf16.
#[derive(Clone, Copy)]
pub struct Pairs(__m512);

impl Lanes for Pairs {
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
        // SAFETY: as above; both are registers of 512 bits, and any bits are pairs of bf16.
        unsafe {
            let (a, b) =
                (std::mem::transmute::<__m512, __m512bh>(a.0), std::mem::transmute::<__m512, __m512bh>(b.0));
            Self(_mm512_dpbf16_ps(self.0, a, b))
        }
    }
}

impl Tile for Pairs {
    const KIND: Kind = Kind::Pairs;
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
    unsafe fn pack(_: Format, row: &[u8], weights: &mut [u32]) {
        copy_pairs(row, weights);
    }

    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> Line {
        assert_eq!(numbers.len(), 32);
        // SAFETY: as above; there are two registers' worth of numbers.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(numbers.as_ptr()), _mm512_loadu_ps(numbers.as_ptr().add(16)));
            std::mem::transmute::<__m512bh, Line>(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], times: [f32; 2], plus: [f32; 2]) -> Line {
        // SAFETY: as above; each half is 16 bytes.
        unsafe {
            let half = |at: usize| {
                let bytes = _mm_loadu_si128(numbers.as_ptr().add(16 * at).cast());
                let floats = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
                _mm512_fmadd_ps(floats, _mm512_set1_ps(times[at]), _mm512_set1_ps(plus[at]))
            };
            std::mem::transmute::<__m512bh, Line>(_mm512_cvtne2ps_pbh(half(1), half(0)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(block: &mut Block) {
        // SAFETY: as above.
        unsafe { avx512::transpose(block) }
    }
}
