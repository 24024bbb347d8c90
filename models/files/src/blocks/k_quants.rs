//! The K dtypes: a block has 256 numbers, in groups. This file reads Q2_K, Q3_K and Q5_K, which this crate does not write, and
//! has the common parts of Q4_K and Q6_K.
//!
//! ```text
//! Q2_K   byte  0  s[16]   one byte for each group of 16 numbers: lower 4 bits the scale, upper 4 bits the minimum
//!             16  q[64]   four numbers of 2 bits in each byte
//!             80  d       f16
//!             82  dmin    f16           number i = (d * scale) * q_i - dmin * minimum, both of group i / 16
//!
//! Q3_K   byte  0  h[32]   bit k of byte l is the highest bit of q_(32 k + l)
//!             32  q[64]   the lower bits of q_i: four numbers of 2 bits in each byte
//!             96  s[12]   scales of 6 bits. The lower 4 bits of groups 0 to 7 are the lower halves of bytes 0 to 7, those of
//!                         groups 8 to 15 the upper halves. The upper 2 bits of group 4 k + l are in byte 8 + l, at bit 2 k
//!            108  d       f16           number i = (d * (scale - 32)) * (q_i - 4), with the scale of group i / 16
//!
//! Q5_K   byte  0  d       f16
//!              2  dmin    f16
//!              4  s[12]   scales and minima of the 8 groups of 32 numbers, packed as in Q4_K
//!             16  h[32]   bit k of byte l is the highest bit of q_(32 k + l)
//!             48  q[128]  the lower bits of q_i: two numbers of 4 bits in each byte, as in Q4_K
//!                                       number i = (d * scale) * q_i - dmin * minimum, both of group i / 32
//!
//! In Q2_K and Q3_K, each half of a block has 128 numbers in 32 bytes of q. Number 32 k + l of a half is in its byte l, at
//! bit 2 k.
//! ```

use super::{Dtype, Encoding, f16_at, widen_blocks};

impl Dtype {
    pub const Q2K: Self = Self(&Encoding {
        name: "Q2_K",
        gguf: 10,
        block: (256, 84),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q2_k),
        ..Encoding::QUANTIZED
    });

    pub const Q3K: Self = Self(&Encoding {
        name: "Q3_K",
        gguf: 11,
        block: (256, 110),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q3_k),
        ..Encoding::QUANTIZED
    });

    pub const Q5K: Self = Self(&Encoding {
        name: "Q5_K",
        gguf: 13,
        block: (256, 176),
        widen: |bytes, values| widen_blocks(bytes, values, widen_q5_k),
        ..Encoding::QUANTIZED
    });
}

fn widen_q2_k(block: &[u8; 84], values: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[group] & 15);
        let minimum = dmin * f32::from(block[group] >> 4);
        let (first, shift) = two_bit_position(group);
        for (value, quant) in values.iter_mut().zip(&block[16 + first..]) {
            *value = scale * f32::from(quant >> shift & 3) - minimum;
        }
    }
}

fn widen_q3_k(block: &[u8; 110], values: &mut [f32; 256]) {
    let (d, scales) = (f16_at(block, 108), &block[96..108]);
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let lower = scales[group % 8] >> (group / 8 * 4) & 15;
        let upper = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * (f32::from(lower | upper << 4) - 32.0);
        let (first, shift) = two_bit_position(group);
        let lower = &block[32 + first..];
        let highest = &block[group % 2 * 16..];
        for ((value, lower), highest) in values.iter_mut().zip(lower).zip(highest) {
            let quant = lower >> shift & 3 | (highest >> (group / 2) & 1) << 2;
            *value = scale * (f32::from(quant) - 4.0);
        }
    }
}

fn widen_q5_k(block: &[u8; 176], values: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = unpack_scale(&block[4..16], group);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let lower = &block[48 + group / 2 * 32..];
        for ((value, lower), highest) in values.iter_mut().zip(lower).zip(&block[16..48]) {
            let quant = lower >> (group % 2 * 4) & 15 | (highest >> group & 1) << 4;
            *value = scale * f32::from(quant) - minimum;
        }
    }
}

/// The first of the 16 bytes of q that hold a group's numbers in Q2_K and Q3_K, and the lowest bit of a number in its byte.
fn two_bit_position(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}

/// The scale and the minimum of one group of Q4_K and Q5_K, which pack eight scales and eight minima of 6 bits into 12 bytes.
///
/// ```text
/// byte j      for j < 4: lower 6 bits scale j, upper 2 bits the upper bits of scale j + 4
/// byte 4 + j             lower 6 bits minimum j, upper 2 bits the upper bits of minimum j + 4
/// byte 8 + j             lower half the lower bits of scale j + 4, upper half those of minimum j + 4
/// ```
pub fn unpack_scale(packed: &[u8], group: usize) -> (u8, u8) {
    let j = group % 4;
    if group < 4 {
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

/// Transposed groups: row `i` holds number `i` of every group. The searches for scales compute one lane for each group, so
/// that the compiler can vectorise over the lanes and still keep the order of each group's sums.
pub type Rows<const GROUPS: usize, const LENGTH: usize> = [[f32; GROUPS]; LENGTH];

pub fn rows<const GROUPS: usize, const LENGTH: usize>(values: &[f32]) -> Rows<GROUPS, LENGTH> {
    let mut rows = [[0.0; GROUPS]; LENGTH];
    for (group, values) in values.as_chunks::<LENGTH>().0.iter().take(GROUPS).enumerate() {
        for (row, value) in rows.iter_mut().zip(values) {
            row[group] = *value;
        }
    }
    rows
}

/// The lanes that `value` computes, each from its group's index.
pub fn lanes<const GROUPS: usize>(value: impl FnMut(usize) -> f32) -> [f32; GROUPS] {
    std::array::from_fn(value)
}

/// Rounds a number below 2^22 in magnitude to the nearest integer, ties to even: a sum with 1.5 * 2^23 has no fraction.
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
        for group in 0..8 {
            assert_eq!(unpack_scale(&packed, group), (scales[group], minima[group]));
        }
    }
}
