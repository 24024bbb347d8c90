//! Numbers side by side in a register: the interface of a level to the products that are written over it.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

/// A register of f32 sums, or of the numbers whose products are added to them.
///
/// Each method is one or two instructions of its level, inlined into a function that enables the level's features. Methods take
/// pointers because weights lie at any address.
///
/// # Safety
///
/// The machine has the level. Pointers lead to `LANES` numbers of their type, at any alignment.
pub trait Lanes: Copy {
    /// Numbers that are multiplied at once.
    const LANES: usize;
    /// Alternating sums for a row and a token, 1 or 2. Two help if the latency of an addition is longer than the memory access.
    const CHAINS: usize = 2;
    /// Tokens that share each read of a row, at most 4: their sums with four rows stay in registers.
    const TOGETHER: usize = 3;
    type Number: Number;

    unsafe fn zero() -> Self;
    unsafe fn load(numbers: *const Self::Number) -> Self;
    unsafe fn from_bf16(bits: *const u8) -> Self;
    /// `self + a * b`, rounded once where the level can.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// Sums the lanes, always in the same order.
    unsafe fn sum(self) -> f32;

    /// Prefetches an address. It need not be valid memory.
    #[inline(always)]
    fn fetch(_: *const u8) {}
}

/// Lanes of f32. Weights of any format can be widened to them.
pub trait Wide: Lanes<Number = f32> {
    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn from_f16(bits: *const u8) -> Self;
}

/// One number of an activation.
pub trait Number: Copy {
    fn widen(self) -> f32;
}

impl Number for f32 {
    fn widen(self) -> f32 {
        self
    }
}

/// The bits of a bf16 number.
impl Number for u16 {
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

/// Numbers of a format that load as lanes.
pub trait Weight<L> {
    const BYTES: usize;

    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn load(bytes: *const u8) -> L;

    /// Widens the first number of `bytes`.
    fn widen(bytes: &[u8]) -> f32;
}

/// Floats of a format in row layout. The implementations are in `crate::formats`.
pub trait Float {
    const BYTES: usize;

    /// # Safety
    ///
    /// As of `Lanes`.
    unsafe fn load<L: Wide>(bytes: *const u8) -> L;

    fn widen(bytes: &[u8]) -> f32;
}

impl<L: Wide, F: Float> Weight<L> for F {
    const BYTES: usize = F::BYTES;

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> L {
        // SAFETY: the caller guarantees this.
        unsafe { F::load(bytes) }
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        F::widen(bytes)
    }
}
