//! The K formats, with 256 numbers to a block: the readers of Q2_K, Q3_K and Q5_K, which cannot be written, and the
//! common parts of Q4_K and Q6_K.
//!
//! ```text
//! Q2_K   byte  0  s[16]   lower half: scale of a run of 16 numbers, upper half: its minimum
//!             16  q[64]   four of 2 bits
//!             80  d       f16
//!             82  dmin    f16           number i = (d * scale) * q_i - dmin * minimum, both of run i / 16
//!
//! Q3_K   byte  0  h[32]   bit k of byte l is the highest bit of q_(32 k + l)
//!             32  q[64]   four of 2 bits, the lower bits
//!             96  s[12]   scales: of the first 8 bytes the lower halves, then the upper halves, are the lower 4 bits of the
//!                         16 runs; bits 2 k of the last 4 bytes are the upper 2 bits of runs 4 k to 4 k + 3
//!            108  d       f16           number i = (d * (scale of run i / 16 - 32)) * (q_i - 4)
//!
//! Q5_K   byte  0  d       f16
//!              2  dmin    f16
//!              4  s[12]   scales and minima of the 8 runs of 32 numbers, packed as in Q4_K
//!             16  h[32]   bit k of byte l is the highest bit of q_(32 k + l)
//!             48  q[128]  two of 4 bits, the lower bits, as in Q4_K
//!                                       number i = (d * scale) * q_i - dmin * minimum, both of run i / 32
//!
//! In Q2_K and Q3_K, of the 128 numbers of each half: number 32 k + l is in byte l of the half's 32 bytes of q, at bit 2 k.
//! ```

use super::{Dtype, Encoding, f16_at, widen_blocks};

impl Dtype {
    pub const Q2K: Self = Self(&Encoding {
        name: "Q2_K",
        gguf: 10,
        block: (256, 84),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q2_k),
        ..Encoding::READ_ONLY
    });

    pub const Q3K: Self = Self(&Encoding {
        name: "Q3_K",
        gguf: 11,
        block: (256, 110),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q3_k),
        ..Encoding::READ_ONLY
    });

    pub const Q5K: Self = Self(&Encoding {
        name: "Q5_K",
        gguf: 13,
        block: (256, 176),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q5_k),
        ..Encoding::READ_ONLY
    });
}

fn widen_q2_k(block: &[u8; 84], values: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (run, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[run] & 15);
        let minimum = dmin * f32::from(block[run] >> 4);
        let (first, shift) = two_bit_position(run);
        for (value, quant) in values.iter_mut().zip(&block[16 + first..]) {
            *value = scale * f32::from(quant >> shift & 3) - minimum;
        }
    }
}

fn widen_q3_k(block: &[u8; 110], values: &mut [f32; 256]) {
    let (d, scales) = (f16_at(block, 108), &block[96..108]);
    for (run, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let lower = scales[run % 8] >> (run / 8 * 4) & 15;
        let upper = scales[8 + run % 4] >> (run / 4 * 2) & 3;
        let scale = d * (f32::from(lower | upper << 4) - 32.0);
        let (first, shift) = two_bit_position(run);
        let lower = &block[32 + first..];
        let highest = &block[run % 2 * 16..];
        for ((value, lower), highest) in values.iter_mut().zip(lower).zip(highest) {
            let quant = lower >> shift & 3 | (highest >> (run / 2) & 1) << 2;
            *value = scale * (f32::from(quant) - 4.0);
        }
    }
}

fn widen_q5_k(block: &[u8; 176], values: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (run, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = unpack_scale(&block[4..16], run);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let lower = &block[48 + run / 2 * 32..];
        for ((value, lower), highest) in values.iter_mut().zip(lower).zip(&block[16..48]) {
            let quant = lower >> (run % 2 * 4) & 15 | (highest >> run & 1) << 4;
            *value = scale * f32::from(quant) - minimum;
        }
    }
}

/// The position of the two bits of a run's 16 numbers in Q2_K and Q3_K: the first of 16 bytes, and the bit in each.
fn two_bit_position(run: usize) -> (usize, usize) {
    (run / 8 * 32 + run % 2 * 16, run % 8 / 2 * 2)
}

/// The scale and the minimum of one run of Q4_K and Q5_K, which pack eight of each into 12 bytes of 6 bits each.
///
/// ```text
/// byte j      for j < 4: lower 6 bits scale j, upper 2 bits the upper bits of scale j + 4
/// byte 4 + j             lower 6 bits minimum j, upper 2 bits the upper bits of minimum j + 4
/// byte 8 + j             lower half the lower bits of scale j + 4, upper half those of minimum j + 4
/// ```
pub fn unpack_scale(packed: &[u8], run: usize) -> (u8, u8) {
    let j = run % 4;
    if run < 4 {
        (packed[j] & 63, packed[4 + j] & 63)
    } else {
        (packed[8 + j] & 15 | packed[j] >> 6 << 4, packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4)
    }
}

/// Packs scales and minima, all below 64, into the layout that `unpack_scale` reads.
pub fn pack_scales(scales: [u8; 8], minima: [u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[4 + j] = minima[j] | minima[j + 4] >> 4 << 6;
        packed[8 + j] = scales[j + 4] & 15 | minima[j + 4] << 4;
    }
    packed
}

/// Transposed runs: row `i` holds number `i` of every run. The searches for scales have one lane for each run: every sum
/// keeps the order of the source, and the compiler can vectorise over the lanes.
pub type Rows<const RUNS: usize, const LENGTH: usize> = [[f32; RUNS]; LENGTH];

/// Transposes runs of consecutive numbers into rows.
pub fn rows<const RUNS: usize, const LENGTH: usize>(values: &[f32]) -> Rows<RUNS, LENGTH> {
    let mut rows = [[0.0; RUNS]; LENGTH];
    for (run, values) in values.as_chunks::<LENGTH>().0.iter().take(RUNS).enumerate() {
        for (row, value) in rows.iter_mut().zip(values) {
            row[run] = *value;
        }
    }
    rows
}

/// Calls `value` for every lane.
pub fn lanes<const RUNS: usize>(value: impl FnMut(usize) -> f32) -> [f32; RUNS] {
    std::array::from_fn(value)
}

/// The nearest integer, ties to even, of a number below 2^22 in magnitude: adding 1.5 * 2^23 leaves a mantissa in units of
/// 1.
pub fn nearest(value: f32) -> f32 {
    const INTEGER_OFFSET: f32 = 12_582_912.0;
    (value + INTEGER_OFFSET) - INTEGER_OFFSET
}

/// 1/x, or 0 if x is too small to divide by.
pub fn safe_inverse(x: f32) -> f32 {
    if x.abs() > 1e-30 { 1.0 / x } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_and_minima_are_unpacked_unchanged() {
        let scales = [1, 2, 3, 63, 17, 32, 48, 63];
        let minima = [63, 0, 60, 5, 15, 16, 47, 62];
        let packed = pack_scales(scales, minima);
        for run in 0..8 {
            assert_eq!(unpack_scale(&packed, run), (scales[run], minima[run]));
        }
    }
}
