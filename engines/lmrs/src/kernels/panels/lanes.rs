//! What a level must be able to do: 64 bytes, 16 integers and 16 floats at a time, in however many registers it takes.
#![expect(unsafe_code, reason = "registers of a level")]

/// One lane is one output of a panel: four bytes, an i32, an f32.
///
/// All are `unsafe`: the processor must have what the level needs, and what an address leads to must be there. They are
/// inlined into functions that say what they need, so that the compiler knows.
pub trait Lanes {
    /// Four numbers of each of 16 outputs.
    type Bytes: Copy;
    /// One i32 of each output.
    type Ints: Copy;
    /// One f32 of each output.
    type Floats: Copy;

    /// Panels times tokens whose sums stay in registers.
    const SUMS: usize;

    unsafe fn bytes(at: *const u8) -> Self::Bytes;
    unsafe fn and(bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each byte moved by so many bits; what comes in from the neighbour is anything.
    unsafe fn right<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn left<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes;

    /// The same in each lane.
    unsafe fn spread(number: i32) -> Self::Ints;
    /// To each lane the product of its four numbers, which are below 64, with the four at `quad`.
    unsafe fn dot(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints;
    /// What sums of products with numbers that are stored as 128 more begin with: `less_128` is -128 times the sum of what
    /// they are multiplied by, which a level that takes the 128 off each number need not add.
    unsafe fn spread_128(less_128: i32) -> Self::Ints;
    /// As `dot`, the numbers being up to 255 and 128 more than meant.
    unsafe fn dot_128(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints;

    /// 16 f16.
    unsafe fn halves(at: *const u8) -> Self::Floats;
    unsafe fn unsigned(at: *const u8) -> Self::Floats;
    unsafe fn signed(at: *const u8) -> Self::Floats;
    /// No instruction, but what it is made of is read before what comes later in the source.
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
