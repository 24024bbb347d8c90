//! Floats: one number per element, little-endian.
//!
//! ```text
//! F32    seeeeeee emmmmmmm mmmmmmmm mmmmmmmm
//! BF16   seeeeeee emmmmmmm                     the upper half of an F32
//! F16    seeeeemm mmmmmmmm                     exponents from 2^-14 to 2^15, subnormals down to 2^-24
//! ```
//!
//! Rounding is to nearest, ties to even, with subnormals. A finite number that would round to infinity is refused: a model
//! with one infinite weight answers NaN, and the conversion should report that. Infinities stay infinities. A NaN keeps its
//! sign and the upper bits of its payload, even a signalling one, so that values from a narrow float convert back to the
//! same bits. Only a payload whose upper bits are all zero gets the quiet bit.
//!
//! The code uses branchless integer operations, because processors and the `half` crate make signalling NaNs quiet, and
//! because the compiler can vectorise them. A test compares them with that crate.

use super::CannotHold;
use crate::Dtype;
use crate::dtype::Encoding;

impl Dtype {
    pub const F32: Self = Self(&Encoding {
        name: "F32",
        gguf: 0,
        file_type: Some(0),
        torch: Some("float32"),
        block: (1, 4),
        widen: widen_f32,
        narrow: Some(narrow_f32),
    });

    pub const F16: Self = Self(&Encoding {
        name: "F16",
        gguf: 1,
        file_type: Some(1),
        torch: Some("float16"),
        block: (1, 2),
        widen: widen_f16,
        narrow: Some(narrow_f16),
    });

    pub const BF16: Self = Self(&Encoding {
        name: "BF16",
        gguf: 30,
        file_type: Some(32),
        torch: Some("bfloat16"),
        block: (1, 2),
        widen: widen_bf16,
        narrow: Some(narrow_bf16),
    });
}

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;

pub fn widen_f32(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(bytes);
    }
}

pub fn narrow_f32(values: &[f32], bytes: &mut [u8]) -> Result<(), CannotHold> {
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = value.to_le_bytes();
    }
    Ok(())
}

pub fn widen_bf16(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32_from_bf16(u16::from_le_bytes(bytes));
    }
}

pub fn narrow_bf16(values: &[f32], bytes: &mut [u8]) -> Result<(), CannotHold> {
    // Halfway between the greatest bf16 and the next power of two.
    narrow_halves(values, bytes, bf16_from_f32, 0x7f7f_8000)
}

pub fn widen_f16(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32_from_f16(u16::from_le_bytes(bytes));
    }
}

pub fn narrow_f16(values: &[f32], bytes: &mut [u8]) -> Result<(), CannotHold> {
    narrow_halves(values, bytes, f16_from_f32, 65520_f32.to_bits())
}

/// Narrows to 16 bits. `limit` is the smallest magnitude that rounds to infinity.
fn narrow_halves(
    values: &[f32],
    bytes: &mut [u8],
    narrow: impl Fn(f32) -> u16,
    limit: u32,
) -> Result<(), CannotHold> {
    let too_large = |value: f32| (value.to_bits() & !SIGN).wrapping_sub(limit) < INFINITY - limit;
    let mut refused = false;
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = narrow(*value).to_le_bytes();
        refused |= too_large(*value);
    }
    match values.iter().position(|&value| refused && too_large(value)) {
        None => Ok(()),
        Some(at) => Err(CannotHold { at }),
    }
}

fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let upper = bits >> 16;
    // Adds just under a half, or a half if the last kept bit is odd.
    let rounded = bits.wrapping_add(0x7fff + (upper & 1)) >> 16;
    let nan = upper | if upper & 0x7f == 0 { 0x40 } else { 0 };
    (if bits & !SIGN > INFINITY { nan } else { rounded }) as u16
}

/// Also converts the scales of blocks.
pub fn f32_from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let exponent = magnitude & 0x0f80_0000;
    // A subnormal's mantissa is in units of 2^-24. Setting the leading bit of 2^-14 keeps that unit, and subtracting it
    // again is exact.
    let leading = 0x3880_0000;
    let subnormal = (f32::from_bits(magnitude | leading) - f32::from_bits(leading)).to_bits();
    // The exponent's bias changes from 15 to 127; an exponent of all ones stays all ones.
    let normal = magnitude + (112 << 23) + if exponent == 0x0f80_0000 { 112 << 23 } else { 0 };
    f32::from_bits(sign | if exponent == 0 { subnormal } else { normal })
}

/// Also converts the scales of blocks. Infinite for numbers that are too large.
pub fn f16_from_f32(value: f32) -> u16 {
    let sign = (value.to_bits() & SIGN) >> 16;
    let bits = value.to_bits() & !SIGN;
    // Adding 0.5 leaves a mantissa in units of 2^-24, so the addition itself rounds to a multiple of it, ties to even.
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let normal = bits.wrapping_add(0xfff + ((bits >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    let payload = (bits >> 13) & 0x3ff;
    let nan = 0x7c00 | payload | if payload == 0 { 0x200 } else { 0 };
    let finite = if bits < 0x3880_0000 { subnormal } else { normal.min(0x7c00) };
    (sign | if bits > INFINITY { nan } else { finite }) as u16
}

/// The smallest f16 that is not below a number >= 0, or `None` if there is none.
pub fn f16_at_least(value: f32) -> Option<f32> {
    let nearest = f16_from_f32(value);
    let bits = nearest + u16::from(f32_from_f16(nearest) < value);
    Some(f32_from_f16(bits)).filter(|found| found.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides of every rounding, each tie itself, and numbers spread over all f32.
    fn many() -> impl Iterator<Item = f32> {
        let near_ties = (0..=u16::MAX).flat_map(|half| {
            let tie = f32_from_f16(half).to_bits() ^ 0x1000;
            let upper = u32::from(half) << 16 | 0x8000;
            [tie - 1, tie, tie + 1, upper - 1, upper, upper + 1]
        });
        (0..=u32::MAX).step_by(4099).chain(near_ties).map(f32::from_bits)
    }

    #[test]
    fn every_f16_and_bf16_widens_as_the_half_crate_does_and_comes_back_to_the_same_bits() {
        for bits in 0..=u16::MAX {
            let (f16, bf16) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
            if !f16.is_nan() {
                assert_eq!(f32_from_f16(bits).to_bits(), f16.to_f32().to_bits(), "{bits:#x}");
            }
            if !bf16.is_nan() {
                assert_eq!(f32_from_bf16(bits).to_bits(), bf16.to_f32().to_bits(), "{bits:#x}");
            }
            assert_eq!(f32_from_f16(bits).is_nan(), f16.is_nan(), "{bits:#x}");
            assert_eq!(f16_from_f32(f32_from_f16(bits)), bits);
            assert_eq!(bf16_from_f32(f32_from_bf16(bits)), bits);
        }
    }

    #[test]
    fn numbers_round_to_f16_and_bf16_as_in_the_half_crate_and_nan_stays_nan() {
        for value in many() {
            let (f16, bf16) = (f16_from_f32(value), bf16_from_f32(value));
            if value.is_nan() {
                assert!(half::f16::from_bits(f16).is_nan() && half::bf16::from_bits(bf16).is_nan());
                assert_eq!(f16 >> 15, (value.to_bits() >> 31) as u16);
            } else {
                assert_eq!(f16, half::f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(bf16, half::bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn a_scale_rounded_up_is_the_next_f16_and_none_beyond_the_last() {
        for value in many().filter(|value| *value >= 0.0) {
            match f16_at_least(value) {
                None => assert!(value > 65504.0),
                Some(found) => {
                    assert!(found >= value, "{value:e}");
                    let below = f16_from_f32(found).checked_sub(1).map(f32_from_f16);
                    assert!(below.is_none_or(|below| below < value), "{value:e}");
                }
            }
        }
    }
}
