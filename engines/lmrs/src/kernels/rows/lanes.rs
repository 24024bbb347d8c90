//! Some numbers side by side: what a level is, to a product written over it.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

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
        f32_from_f16(u16::from_le_bytes([bytes[0], bytes[1]]))
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

/// By a multiplication, which puts subnormals right too: their exponents differ by 112.
#[inline(always)]
pub fn f32_from_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let widened = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    // Infinities and NaNs keep all bits of an exponent set.
    let infinite = if bits & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(widened.to_bits() | infinite | u32::from(bits & 0x8000) << 16)
}
