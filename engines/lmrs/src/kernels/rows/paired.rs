//! Registers of 512 bits of bf16, whose products are added up in pairs: what AVX-512 has an instruction for.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::arch::x86_64::*;

use super::lanes::Lanes;
use super::tiles::bf16_from_f32;

/// 32 numbers, or 16 sums.
#[derive(Clone, Copy)]
pub struct Paired(__m512);

impl Lanes for Paired {
    const LANES: usize = 32;
    const CHAINS: usize = 1;
    const TOGETHER: usize = 4;
    type Number = u16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise; so below.
        Self(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    unsafe fn load(numbers: *const u16) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_loadu_ps(numbers.cast()) })
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_loadu_ps(bits.cast()) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as above; both are 512 bits, and any bits are numbers in bf16.
        unsafe {
            let numbers = |of: Self| std::mem::transmute::<__m512, __m512bh>(of.0);
            Self(_mm512_dpbf16_ps(self.0, numbers(a), numbers(b)))
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    fn fetch(at: *const u8) {
        // SAFETY: nothing is read, and every x86-64 has the instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// To the nearest, ties to even.
///
/// # Safety
///
/// The machine has AVX-512 and its products of bf16; both have as many numbers.
#[inline(always)]
pub unsafe fn narrow(x: &[f32], narrowed: &mut [u16]) {
    let (steps, rest) = x.as_chunks::<16>();
    let (into, rest_into) = narrowed.as_chunks_mut::<16>();
    for (numbers, into) in steps.iter().zip(into) {
        // SAFETY: the caller's promise; sixteen numbers each.
        unsafe {
            let bits = _mm512_cvtneps_pbh(_mm512_loadu_ps(numbers.as_ptr()));
            _mm256_storeu_si256(into.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(bits));
        }
    }
    for (number, into) in rest.iter().zip(rest_into) {
        *into = bf16_from_f32(*number);
    }
}
