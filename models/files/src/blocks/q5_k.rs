//! Q5_K: like Q4_K, with a fifth bit for each number. Read only.
//!
//! ```text
//! byte  0  d       f16
//!       2  dmin    f16
//!       4  s[12]   scales and minima of the 8 runs of 32 numbers, packed as `k_scales` says
//!      16  h[32]   bit k of byte l is the highest bit of q_(32 k + l)
//!      48  q[128]  two of 4 bits, the lower bits, as in Q4_K
//!                                number i = (d * scale) * q_i - dmin * minimum, both of run i / 32
//! ```

use super::float::f32_from_f16;
use super::k_scales;
use super::widen_blocks;
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const Q5K: Self = Self(&Encoding {
        name: "Q5_K",
        gguf: 13,
        file_type: None,
        torch: None,
        block: (256, 176),
        widen: |bytes, values| widen_blocks(bytes, values, widen),
        narrow: None,
    });
}

pub fn widen(block: &[u8; 176], values: &mut [f32; 256]) {
    let d = f32_from_f16(u16::from_le_bytes([block[0], block[1]]));
    let dmin = f32_from_f16(u16::from_le_bytes([block[2], block[3]]));
    for (run, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = k_scales::unpack(&block[4..16], run);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let lower = &block[48 + run / 2 * 32..];
        for ((value, lower), highest) in values.iter_mut().zip(lower).zip(&block[16..48]) {
            let quant = lower >> (run % 2 * 4) & 15 | (highest >> run & 1) << 4;
            *value = scale * f32::from(quant) - minimum;
        }
    }
}
