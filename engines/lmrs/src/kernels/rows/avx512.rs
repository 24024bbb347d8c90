//! Registers of 512 bits.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::arch::x86_64::*;

use super::lanes::{Lanes, Widening};
use super::packed::{Block, Kind};
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

    #[inline(always)]
    unsafe fn transpose(block: &mut Block) {
        // SAFETY: as above.
        unsafe { transpose(block) }
    }
}

/// In four rounds, each of which brings together what lies twice as far apart: of 32, 64, 128 and 256 bits.
///
/// # Safety
///
/// The machine has AVX-512.
#[inline(always)]
pub unsafe fn transpose(block: &mut Block) {
    let lines = block.as_mut_ptr().cast::<f32>();
    // SAFETY: a block is 16 registers' worth of numbers; the level is the caller's promise.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); 16];
        for (place, row) in rows.iter_mut().enumerate() {
            *row = _mm512_load_ps(lines.add(16 * place));
        }
        let mut pairs = rows;
        for at in 0..8 {
            pairs[2 * at] = _mm512_unpacklo_ps(rows[2 * at], rows[2 * at + 1]);
            pairs[2 * at + 1] = _mm512_unpackhi_ps(rows[2 * at], rows[2 * at + 1]);
        }
        // Of rows 4i to 4i + 3: columns 0, 4, 8, 12; then 1, 5, 9, 13; and so on.
        let mut fours = rows;
        for at in 0..4 {
            for half in 0..2 {
                let (a, b) = (pairs[4 * at + half], pairs[4 * at + 2 + half]);
                let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
                fours[4 * at + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[4 * at + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        for column in 0..4 {
            let of = |at: usize| fours[4 * at + column];
            // Columns `column` and `column + 8`, then `column + 4` and `column + 12`, of the upper and the lower rows.
            let even =
                (_mm512_shuffle_f32x4::<0x88>(of(0), of(1)), _mm512_shuffle_f32x4::<0x88>(of(2), of(3)));
            let odd =
                (_mm512_shuffle_f32x4::<0xdd>(of(0), of(1)), _mm512_shuffle_f32x4::<0xdd>(of(2), of(3)));
            let store = |at: usize, row| _mm512_store_ps(lines.add(16 * (column + at)), row);
            store(0, _mm512_shuffle_f32x4::<0x88>(even.0, even.1));
            store(8, _mm512_shuffle_f32x4::<0xdd>(even.0, even.1));
            store(4, _mm512_shuffle_f32x4::<0x88>(odd.0, odd.1));
            store(12, _mm512_shuffle_f32x4::<0xdd>(odd.0, odd.1));
        }
    }
}
