//! Q4_0 and Q4_1: 32 numbers of 4 bits and one scale; Q4_1 also stores the value of 0.
//!
//! ```text
//! Q4_0   byte  0  d       f16
//!              2  q[16]   two of 4 bits     number i = (q_i - 8) * d
//!
//! Q4_1   byte  0  d       f16
//!              2  m       f16
//!              4  q[16]   two of 4 bits     number i = q_i * d + m
//!
//! q_i, for i < 16, is the lower half of byte i of q, and q_(i + 16) the upper half.
//! ```
//!
//! Into Q4_0: `d` is the number of largest magnitude (the first of several) / -8, so that this number always gets the
//! integer 0. `d` is negative if that number is positive. Each `q` is the number times 1/d, plus 8.5, truncated to an
//! integer, at most 15. The quotient uses `d` in f32, before rounding to f16. The bytes are those of ggml's reference. If
//! 1/d overflows (then no f16 can hold `d`), the block is all zeros.

use super::float::{f16_from_f32, f32_from_f16};
use super::largest_magnitude;
use super::q8_0::reference_inverse;
use super::{narrow_blocks, widen_blocks};
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const Q4_0: Self = Self(&Encoding {
        name: "Q4_0",
        gguf: 2,
        file_type: Some(2),
        torch: None,
        block: (32, 18),
        widen: |bytes, values| widen_blocks(bytes, values, widen_0),
        narrow: Some(|values, bytes| narrow_blocks(values, bytes, narrow_0)),
    });

    pub const Q4_1: Self = Self(&Encoding {
        name: "Q4_1",
        gguf: 3,
        file_type: None,
        torch: None,
        block: (32, 20),
        widen: |bytes, values| widen_blocks(bytes, values, widen_1),
        narrow: None,
    });
}

pub fn widen_0([d0, d1, quants @ ..]: &[u8; 18], values: &mut [f32; 32]) {
    let d = f32_from_f16(u16::from_le_bytes([*d0, *d1]));
    let (lower, upper) = values.split_at_mut(16);
    for ((lower, upper), quant) in lower.iter_mut().zip(upper).zip(quants) {
        *lower = (f32::from(quant & 15) - 8.0) * d;
        *upper = (f32::from(quant >> 4) - 8.0) * d;
    }
}

pub fn widen_1([d0, d1, m0, m1, quants @ ..]: &[u8; 20], values: &mut [f32; 32]) {
    let d = f32_from_f16(u16::from_le_bytes([*d0, *d1]));
    let m = f32_from_f16(u16::from_le_bytes([*m0, *m1]));
    let (lower, upper) = values.split_at_mut(16);
    for ((lower, upper), quant) in lower.iter_mut().zip(upper).zip(quants) {
        *lower = f32::from(quant & 15) * d + m;
        *upper = f32::from(quant >> 4) * d + m;
    }
}

pub fn narrow_0(values: &[f32; 32], [d0, d1, quants @ ..]: &mut [u8; 18]) -> Option<()> {
    let magnitude = largest_magnitude(values)?;
    // A block of zeros of any sign counts as positive.
    let first = values.iter().find(|value| value.abs() == magnitude && magnitude > 0.0);
    let d = first.copied().unwrap_or(0.0) / -8.0;
    let inverse = reference_inverse(d);
    let quantise = |value: f32| ((value * inverse + 8.5) as i32).min(15) as u8;
    let (lower, upper) = values.split_at(16);
    for ((quant, lower), upper) in quants.iter_mut().zip(lower).zip(upper) {
        *quant = quantise(*lower) | quantise(*upper) << 4;
    }
    let scale = f16_from_f32(d);
    [*d0, *d1] = scale.to_le_bytes();
    f32_from_f16(scale).is_finite().then_some(())
}
