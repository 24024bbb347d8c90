//! The dtypes with blocks of 32 numbers, which llama.cpp calls legacy. Q4_1, Q5_0 and Q5_1 can be read and not written.
//!
//! ```text
//! Q8_0   byte  0  d       f16
//!              2  q[32]   i8                number i = q_i * d
//!
//! Q4_0   byte  0  d       f16
//!              2  q[16]   two of 4 bits in each byte     number i = (q_i - 8) * d
//!
//! Q4_1   byte  0  d, m    f16
//!              4  q[16]   two of 4 bits in each byte     number i = q_i * d + m
//!
//! Q5_0   byte  0  d       f16
//!              2  h       u32               bit i is the highest bit of q_i
//!              6  q[16]   two of 4 bits in each byte     number i = (q_i - 16) * d
//!
//! Q5_1   byte  0  d, m    f16
//!              4  h       u32
//!              8  q[16]   two of 4 bits in each byte     number i = q_i * d + m
//!
//! Of two numbers in a byte, q_i for i < 16 is the lower half of byte i of q, and q_(i + 16) the upper half.
//! ```
//!
//! Writing Q8_0: `d` is the largest magnitude / 127, and each `q` is the number times 1/d, rounded to the nearest integer,
//! ties away from zero. Writing Q4_0: `d` is the number of largest magnitude (the first of several) / -8. So this number
//! always gets the integer 0, and a positive one makes `d` negative. Each `q` is the number times 1/d, plus 8.5, truncated
//! to an integer, at most 15.
//!
//! 1/d uses `d` in f32, before rounding to f16, so that the bytes are those that ggml writes. If `d` is so small that 1/d
//! overflows, `d` is 0 in f16, and all numbers of the block become 0.

use half::f16;

use super::{Dtype, Encoding, f16_at, largest_magnitude, narrow_blocks, widen_blocks};

impl Dtype {
    pub const Q8_0: Self = Self(&Encoding {
        name: "Q8_0",
        gguf: 8,
        file_type: Some(7),
        block: (32, 34),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q8_0),
        narrow: Some(|values, bytes| narrow_blocks(values, bytes, narrow_q8_0)),
        ..Encoding::QUANTIZED
    });

    pub const Q4_0: Self = Self(&Encoding {
        name: "Q4_0",
        gguf: 2,
        file_type: Some(2),
        block: (32, 18),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q4_0),
        narrow: Some(|values, bytes| narrow_blocks(values, bytes, narrow_q4_0)),
        ..Encoding::QUANTIZED
    });

    pub const Q4_1: Self = Self(&Encoding {
        name: "Q4_1",
        gguf: 3,
        block: (32, 20),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q4_1),
        ..Encoding::QUANTIZED
    });

    pub const Q5_0: Self = Self(&Encoding {
        name: "Q5_0",
        gguf: 6,
        block: (32, 22),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q5_0),
        ..Encoding::QUANTIZED
    });

    pub const Q5_1: Self = Self(&Encoding {
        name: "Q5_1",
        gguf: 7,
        block: (32, 24),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q5_1),
        ..Encoding::QUANTIZED
    });
}

fn widen_q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (value, quant) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(quant.cast_signed()) * d;
    }
}

fn narrow_q8_0(values: &[f32; 32], [d0, d1, quants @ ..]: &mut [u8; 34]) -> Option<()> {
    let d = largest_magnitude(values)? / 127.0;
    let inverse = finite_inverse(d);
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = ((value * inverse).round() as i8).cast_unsigned();
    }
    let scale = f16::from_f32(d);
    [*d0, *d1] = scale.to_le_bytes();
    scale.is_finite().then_some(())
}

fn widen_q4_0(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    unpack(&block[2..], 0, values, |quant| (quant - 8.0) * d);
}

fn narrow_q4_0(values: &[f32; 32], [d0, d1, quants @ ..]: &mut [u8; 18]) -> Option<()> {
    let magnitude = largest_magnitude(values)?;
    // The largest number of a block of zeros is +0, whatever their signs.
    let largest = values.iter().find(|value| value.abs() == magnitude && magnitude > 0.0);
    let d = largest.copied().unwrap_or(0.0) / -8.0;
    let inverse = finite_inverse(d);
    let quantize = |value: f32| ((value * inverse + 8.5) as i32).min(15) as u8;
    let (lower, upper) = values.split_at(16);
    for ((quant, lower), upper) in quants.iter_mut().zip(lower).zip(upper) {
        *quant = quantize(*lower) | quantize(*upper) << 4;
    }
    let scale = f16::from_f32(d);
    [*d0, *d1] = scale.to_le_bytes();
    scale.is_finite().then_some(())
}

fn widen_q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    unpack(&block[4..], 0, values, |quant| quant * d + m);
}

fn widen_q5_0(block: &[u8; 22], values: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    let highest = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    unpack(&block[6..], highest, values, |quant| (quant - 16.0) * d);
}

fn widen_q5_1(block: &[u8; 24], values: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let highest = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    unpack(&block[8..], highest, values, |quant| quant * d + m);
}

/// Widens numbers of 4 bits; bit `i` of `highest` is the fifth bit of number `i`.
#[inline(always)]
fn unpack(quants: &[u8], highest: u32, values: &mut [f32; 32], widen: impl Fn(f32) -> f32) {
    let (lower, upper) = values.split_at_mut(16);
    for (i, ((lower, upper), &quant)) in lower.iter_mut().zip(upper).zip(quants).enumerate() {
        *lower = widen((u32::from(quant & 15) | (highest >> i & 1) << 4) as f32);
        *upper = widen((u32::from(quant >> 4) | (highest >> (i + 16) & 1) << 4) as f32);
    }
}

/// 1/d as in ggml, but 0 on overflow, which ggml does not define.
fn finite_inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}
