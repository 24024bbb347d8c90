//! Some numbers side by side: what a level is, to a product written over it.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use crate::kernels::half;

/// A register of f32, which weights of any format are widened to, whose lanes are summed up side by side.
///
/// Each method is one or two instructions of its level, inlined into a function that has the level's features. They take
/// pointers because weights lie at any address.
///
/// # Safety
///
/// Of every method: the machine has the level. Of those with a pointer: as many numbers of that kind as there are lanes lie
/// there, at any alignment.
pub trait Lanes: Copy {
    const LANES: usize;

    unsafe fn zero() -> Self;
    unsafe fn load(numbers: *const f32) -> Self;
    unsafe fn from_bf16(bits: *const u8) -> Self;
    unsafe fn from_f16(bits: *const u8) -> Self;
    /// `self + a * b`, rounded once where the level can.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// In an order that is always the same.
    unsafe fn sum(self) -> f32;
}

/// Numbers of a format as lanes.
pub trait Weight {
    const BYTES: usize;

    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn load<L: Lanes>(bytes: *const u8) -> L;

    /// Of the first number in it.
    fn widen(bytes: &[u8]) -> f32;
}

pub struct F32;
pub struct F16;
pub struct Bf16;

impl Weight for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<L: Lanes>(bytes: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(bytes.cast()) }
    }

    fn widen(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Weight for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(bytes: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::from_f16(bytes) }
    }

    fn widen(bytes: &[u8]) -> f32 {
        half::at(bytes, 0)
    }
}

impl Weight for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(bytes: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::from_bf16(bytes) }
    }

    fn widen(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }
}
