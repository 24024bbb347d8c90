//! The interface of a level to panels: operations on 64 bytes, 16 integers and 16 floats, in any number of registers.
#![expect(unsafe_code, reason = "registers of a level")]

/// One lane is one output of a panel: four bytes, an i32, an f32.
///
/// All methods are `unsafe`: the processor must have the level's features, and addresses must be valid. They are inlined into
/// functions that enable these features.
pub trait Lanes {
    /// Four numbers of each of 16 outputs.
    type Bytes: Copy;
    type Ints: Copy;
    type Floats: Copy;

    /// Panels times tokens whose sums stay in registers.
    const SUMS: usize;

    unsafe fn bytes(at: *const u8) -> Self::Bytes;
    unsafe fn and(bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts each byte right by this number of bits; the bits from the neighbouring byte are unspecified.
    unsafe fn right<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn left<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes;

    /// The same number in each lane.
    unsafe fn spread(number: i32) -> Self::Ints;
    /// Adds to each lane the product of its four numbers, which are below 64, with the four at `quad`.
    unsafe fn dot(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints;
    /// The initial value of sums over numbers that are stored plus 128. `less_128` is -128 times the sum of the other factors;
    /// a level that subtracts 128 from each number ignores it.
    unsafe fn spread_128(less_128: i32) -> Self::Ints;
    /// Like `dot`, for numbers up to 255 that are stored plus 128.
    unsafe fn dot_128(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints;

    /// 16 floats from f16.
    unsafe fn halves(at: *const u8) -> Self::Floats;
    unsafe fn unsigned(at: *const u8) -> Self::Floats;
    unsafe fn signed(at: *const u8) -> Self::Floats;
    /// No instruction: it forces these loads before the code that follows in the source.
    #[inline(always)]
    unsafe fn now(floats: Self::Floats) -> Self::Floats {
        floats
    }
    unsafe fn floats(at: *const f32) -> Self::Floats;
    unsafe fn store(floats: Self::Floats, at: *mut f32);
    unsafe fn times(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `sums + a * b`, the same number for all lanes.
    unsafe fn add_times(sums: Self::Floats, a: Self::Floats, b: f32) -> Self::Floats;
    /// `sums + ints * (scale * x)`.
    unsafe fn add_dot(sums: Self::Floats, ints: Self::Ints, scale: Self::Floats, x: f32) -> Self::Floats;
}
