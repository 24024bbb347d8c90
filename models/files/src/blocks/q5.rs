//! Q5_0 and Q5_1: like Q4_0 and Q4_1, with a fifth bit for each number in a separate word. Read only.
//!
//! ```text
//! Q5_0   byte  0  d       f16
//!              2  h       u32               bit i is the highest bit of q_i
//!              6  q[16]   two of 4 bits     number i = (q_i - 16) * d
//!
//! Q5_1   byte  0  d       f16
//!              2  m       f16
//!              4  h       u32
//!              8  q[16]   two of 4 bits     number i = q_i * d + m
//!
//! The lower bits of q_i, for i < 16, are the lower half of byte i of q, and those of q_(i + 16) the upper half.
//! ```

use super::float::f32_from_f16;
use super::widen_blocks;
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const Q5_0: Self = Self(&Encoding {
        name: "Q5_0",
        gguf: 6,
        file_type: None,
        torch: None,
        block: (32, 22),
        widen: |bytes, values| widen_blocks(bytes, values, widen_0),
        narrow: None,
    });

    pub const Q5_1: Self = Self(&Encoding {
        name: "Q5_1",
        gguf: 7,
        file_type: None,
        torch: None,
        block: (32, 24),
        widen: |bytes, values| widen_blocks(bytes, values, widen_1),
        narrow: None,
    });
}

pub fn widen_0([d0, d1, h0, h1, h2, h3, quants @ ..]: &[u8; 22], values: &mut [f32; 32]) {
    let d = f32_from_f16(u16::from_le_bytes([*d0, *d1]));
    unpack([*h0, *h1, *h2, *h3], quants, values);
    for value in values {
        *value = (*value - 16.0) * d;
    }
}

pub fn widen_1([d0, d1, m0, m1, h0, h1, h2, h3, quants @ ..]: &[u8; 24], values: &mut [f32; 32]) {
    let d = f32_from_f16(u16::from_le_bytes([*d0, *d1]));
    let m = f32_from_f16(u16::from_le_bytes([*m0, *m1]));
    unpack([*h0, *h1, *h2, *h3], quants, values);
    for value in values {
        *value = *value * d + m;
    }
}

fn unpack(highest: [u8; 4], quants: &[u8; 16], values: &mut [f32; 32]) {
    let highest = u32::from_le_bytes(highest);
    let (lower, upper) = values.split_at_mut(16);
    for (i, ((lower, upper), &quant)) in lower.iter_mut().zip(upper).zip(quants).enumerate() {
        *lower = (u32::from(quant & 15) | (highest >> i & 1) << 4) as f32;
        *upper = (u32::from(quant >> 4) | (highest >> (i + 16) & 1) << 4) as f32;
    }
}
