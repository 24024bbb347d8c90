//! Q3_K: 256 numbers of 3 bits in 16 runs of 16, each with a scale of 6 bits. Read only.
//!
//! ```text
//! byte  0  h[32]   bit k of byte l is the highest bit of q_(32 k + l)
//!      32  q[64]   four of 2 bits, the lower bits, as in Q2_K
//!      96  s[12]   scales: of the first 8 bytes the lower halves, then the upper halves, are the lower 4 bits of the
//!                  16 runs; bits 2 k of the last 4 bytes are the upper 2 bits of runs 4 k to 4 k + 3
//!     108  d       f16           number i = (d * (scale of run i / 16 - 32)) * (q_i - 4)
//! ```

use super::float::f32_from_f16;
use super::q2_k::place_of;
use super::widen_blocks;
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const Q3K: Self = Self(&Encoding {
        name: "Q3_K",
        gguf: 11,
        file_type: None,
        torch: None,
        block: (256, 110),
        widen: |bytes, values| widen_blocks(bytes, values, widen),
        narrow: None,
    });
}

pub fn widen(block: &[u8; 110], values: &mut [f32; 256]) {
    let d = f32_from_f16(u16::from_le_bytes([block[108], block[109]]));
    for (run, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * (f32::from(scale_of(&block[96..108], run)) - 32.0);
        let (first, shift) = place_of(run);
        let lower = &block[32 + first..];
        let highest = &block[run % 2 * 16..];
        for ((value, lower), highest) in values.iter_mut().zip(lower).zip(highest) {
            let quant = lower >> shift & 3 | (highest >> (run / 2) & 1) << 2;
            *value = scale * (f32::from(quant) - 4.0);
        }
    }
}

fn scale_of(packed: &[u8], run: usize) -> u8 {
    let lower = packed[run % 8] >> (run / 8 * 4) & 15;
    let upper = packed[8 + run % 4] >> (run / 4 * 2) & 3;
    lower | upper << 4
}
