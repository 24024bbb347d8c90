//! Q2_K: 256 numbers of 2 bits in 16 runs of 16, each with a scale and a minimum of 4 bits. Read only.
//!
//! ```text
//! byte  0  s[16]   lower half: scale of a run, upper half: its minimum
//!      16  q[64]   four of 2 bits
//!      80  d       f16
//!      82  dmin    f16           number i = (d * scale) * q_i - dmin * minimum, both of run i / 16
//!
//! Of the 128 numbers of each half, number 32 k + l is in byte l of the half's 32 bytes of q, at bit 2 k.
//! ```

use super::float::f32_from_f16;
use super::widen_blocks;
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const Q2K: Self = Self(&Encoding {
        name: "Q2_K",
        gguf: 10,
        file_type: None,
        torch: None,
        block: (256, 84),
        widen: |bytes, values| widen_blocks(bytes, values, widen),
        narrow: None,
    });
}

pub fn widen(block: &[u8; 84], values: &mut [f32; 256]) {
    let d = f32_from_f16(u16::from_le_bytes([block[80], block[81]]));
    let dmin = f32_from_f16(u16::from_le_bytes([block[82], block[83]]));
    for (run, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[run] & 15);
        let minimum = dmin * f32::from(block[run] >> 4);
        let (first, shift) = place_of(run);
        for (value, quant) in values.iter_mut().zip(&block[16 + first..]) {
            *value = scale * f32::from(quant >> shift & 3) - minimum;
        }
    }
}

/// The position of the two bits of a run's 16 numbers: the first of 16 bytes, and the bit in each. Q3_K has the same.
pub fn place_of(run: usize) -> (usize, usize) {
    (run / 8 * 32 + run % 2 * 16, run % 8 / 2 * 2)
}
