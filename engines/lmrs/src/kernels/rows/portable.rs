//! Plain loops for the compiler to vectorize: the reference for all other levels.
#![expect(unsafe_code, reason = "weights at any address")]

use super::lanes::{Lanes, Wide};
use crate::kernels::half;

/// Sixteen lanes, so that sums have the same order as in AVX-512.
#[derive(Clone, Copy)]
pub struct Plain([f32; 16]);

// Multiplication and addition round separately: without an FMA instruction, a fused call would be slow.
impl Lanes for Plain {
    const LANES: usize = 16;
    type Number = f32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 16])
    }

    #[inline(always)]
    unsafe fn load(numbers: *const f32) -> Self {
        // SAFETY: the caller guarantees this.
        Self(unsafe { numbers.cast::<[f32; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        let mut sums = self.0;
        for (sum, (a, b)) in sums.iter_mut().zip(a.0.iter().zip(b.0)) {
            *sum += a * b;
        }
        Self(sums)
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        // SAFETY: the caller guarantees this.
        let bits = unsafe { bits.cast::<[u16; 16]>().read_unaligned() };
        Self(bits.map(|bits| f32::from_bits(u32::from(u16::from_le(bits)) << 16)))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut sums = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
        }
        sums[0]
    }
}

impl Wide for Plain {
    #[inline(always)]
    unsafe fn from_f16(bits: *const u8) -> Self {
        // SAFETY: the caller guarantees this.
        let bits = unsafe { bits.cast::<[u16; 16]>().read_unaligned() };
        Self(bits.map(|bits| half::from_bits(u16::from_le(bits))))
    }
}
