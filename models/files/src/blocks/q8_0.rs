//! Q8_0: 32 numbers, one scale. 8.5 bits a number.
//!
//! ```text
//! byte  0  d       f16
//!       2  q[32]   i8       number i = q[i] * d
//! ```
//!
//! `d` is the largest magnitude / 127, and each `q` the number times 1/d, rounded to the nearest integer, halves away from
//! zero. The quotient uses `d` in f32, before rounding to f16, as in ggml's reference; the bytes are the same. If `d` is so
//! small that 1/d overflows (then no f16 can hold `d`), the block is all zeros.

use super::float::{f16_from_f32, f32_from_f16};
use super::largest_magnitude;
use super::{narrow_blocks, widen_blocks};
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const Q8_0: Self = Self(&Encoding {
        name: "Q8_0",
        gguf: 8,
        file_type: Some(7),
        torch: None,
        block: (32, 34),
        widen: |bytes, values| widen_blocks(bytes, values, widen),
        narrow: Some(|values, bytes| narrow_blocks(values, bytes, narrow)),
    });
}

pub fn widen([d0, d1, quants @ ..]: &[u8; 34], values: &mut [f32; 32]) {
    let d = f32_from_f16(u16::from_le_bytes([*d0, *d1]));
    for (value, quant) in values.iter_mut().zip(quants) {
        *value = f32::from(quant.cast_signed()) * d;
    }
}

pub fn narrow(values: &[f32; 32], [d0, d1, quants @ ..]: &mut [u8; 34]) -> Option<()> {
    let d = largest_magnitude(values)? / 127.0;
    let inverse = reference_inverse(d);
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = ((value * inverse).round() as i8).cast_unsigned();
    }
    let scale = f16_from_f32(d);
    [*d0, *d1] = scale.to_le_bytes();
    f32_from_f16(scale).is_finite().then_some(())
}

/// 1/d as in the reference, but 0 on overflow, which the reference does not define.
pub fn reference_inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}
