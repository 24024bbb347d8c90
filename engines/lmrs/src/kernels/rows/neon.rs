//! NEON registers of 128 bits.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::arch::aarch64::*;

use super::lanes::{Lanes, Wide};
use crate::kernels::half;

#[derive(Clone, Copy)]
pub struct Four(float32x4_t);

impl Lanes for Four {
    const LANES: usize = 4;
    type Number = f32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees this; the same below.
        Self(unsafe { vdupq_n_f32(0.0) })
    }

    #[inline(always)]
    unsafe fn load(numbers: *const f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { vld1q_f32(numbers) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { vfmaq_f32(self.0, a.0, b.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { vaddq_f32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        // SAFETY: as above; loaded as bytes, because weights of a file may lie at odd addresses.
        unsafe {
            let bits = vreinterpret_u16_u8(vld1_u8(bits));
            Self(vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(bits))))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { vaddvq_f32(self.0) }
    }
}

impl Wide for Four {
    #[inline(always)]
    unsafe fn from_f16(bits: *const u8) -> Self {
        // SAFETY: the caller guarantees this. Rust has no stable f16 conversions for ARM, so the compiler vectorizes plain
        // code.
        unsafe {
            let bits = bits.cast::<[u16; 4]>().read_unaligned();
            Self(vld1q_f32(bits.map(half::from_bits).as_ptr()))
        }
    }
}
