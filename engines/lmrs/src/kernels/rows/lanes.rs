//! Some numbers side by side: what a level is, to a product written over it.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

/// A register of sums in f32, side by side, and of the numbers whose products are added to them.
///
/// Each method is one or two instructions of its level, inlined into a function that has the level's features. They take
/// pointers because weights lie at any address.
///
/// # Safety
///
/// Of every method: the machine has the level. Of those with a pointer: `LANES` numbers of that kind lie there, at any alignment.
pub trait Lanes: Copy {
    /// Numbers that are multiplied at a time.
    const LANES: usize;
    /// Sums of a row and a token that take turns, 1 or 2: two where one would wait for each addition longer than memory does.
    const CHAINS: usize = 2;
    /// Tokens that share what is read of a row, 4 at most: their sums, of four rows, stay in registers.
    const TOGETHER: usize = 3;
    /// What activations are.
    type Number: Number;

    unsafe fn zero() -> Self;
    unsafe fn load(numbers: *const Self::Number) -> Self;
    unsafe fn from_bf16(bits: *const u8) -> Self;
    /// `self + a * b`, rounded once where the level can.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// In an order that is always the same.
    unsafe fn sum(self) -> f32;

    /// What lies there will be read soon. No memory need be there.
    #[inline(always)]
    fn fetch(_: *const u8) {}
}

/// Lanes of f32, which weights of any format are widened to.
pub trait Wide: Lanes<Number = f32> {
    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn from_f16(bits: *const u8) -> Self;
}

/// Of an activation.
pub trait Number: Copy {
    fn widen(self) -> f32;
}

impl Number for f32 {
    fn widen(self) -> f32 {
        self
    }
}

/// As bf16.
impl Number for u16 {
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

/// Numbers of a format as lanes.
pub trait Weight<L> {
    const BYTES: usize;

    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn load(bytes: *const u8) -> L;

    /// Of the first number in it.
    fn widen(bytes: &[u8]) -> f32;
}

/// Floats of a format that lies in rows. Each is in `crate::formats`.
pub trait Float {
    const BYTES: usize;

    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn load<L: Wide>(bytes: *const u8) -> L;

    /// Of the first number in it.
    fn widen(bytes: &[u8]) -> f32;
}

impl<L: Wide, F: Float> Weight<L> for F {
    const BYTES: usize = F::BYTES;

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { F::load(bytes) }
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        F::widen(bytes)
    }
}
