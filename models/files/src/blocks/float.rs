//! Floats: one number per element, little-endian.
//!
//! ```text
//! F32    seeeeeee emmmmmmm mmmmmmmm mmmmmmmm
//! BF16   seeeeeee emmmmmmm                     the upper half of an F32
//! F16    seeeeemm mmmmmmmm                     exponents from 2^-14 to 2^15, subnormals down to 2^-24
//! ```
//!
//! Rounding is to nearest, ties to even; subnormals are kept. A finite number that would round to infinity is refused,
//! because one infinite weight makes a model answer NaN. Infinities stay infinities. A NaN keeps its sign and the upper
//! bits of its payload. As in ggml, a signalling NaN becomes quiet when it is narrowed.

use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use half::{bf16, f16};

use super::{Dtype, Encoding};

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
        narrow: Some(|values, bytes| {
            // Halfway between the greatest f16 and the next power of two.
            narrow_to_16_bits(values, bytes, 65520.0, |values, bits| {
                bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values);
            })
        }),
    });

    pub const BF16: Self = Self(&Encoding {
        name: "BF16",
        gguf: 30,
        file_type: Some(32),
        torch: Some("bfloat16"),
        block: (1, 2),
        widen: widen_bf16,
        narrow: Some(|values, bytes| {
            // Halfway between the greatest bf16 and the next power of two.
            narrow_to_16_bits(values, bytes, f32::from_bits(0x7f7f_8000), |values, bits| {
                bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values);
            })
        }),
    });
}

fn widen_f32(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(bytes);
    }
}

fn narrow_f32(values: &[f32], bytes: &mut [u8]) -> Result<(), usize> {
    for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
        *bytes = value.to_le_bytes();
    }
    Ok(())
}

/// How many numbers are converted at once. They are copied, because the bytes of a file may not be aligned for 16 bits.
const CHUNK: usize = 256;

fn widen_f16(bytes: &[u8], values: &mut [f32]) {
    let mut bits = [0; CHUNK];
    for (bytes, values) in bytes.chunks(2 * CHUNK).zip(values.chunks_mut(CHUNK)) {
        for (bits, &bytes) in bits.iter_mut().zip(bytes.as_chunks().0) {
            *bits = u16::from_le_bytes(bytes);
        }
        bits[..values.len()].reinterpret_cast::<f16>().convert_to_f32_slice(values);
    }
}

/// Shifts as ggml does, so that every NaN keeps its bits.
fn widen_bf16(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}

/// Narrows to f16 or bf16. `limit` is the smallest finite magnitude that rounds to infinity.
fn narrow_to_16_bits(
    values: &[f32],
    bytes: &mut [u8],
    limit: f32,
    convert: impl Fn(&[f32], &mut [u16]),
) -> Result<(), usize> {
    let is_too_large = |value: &f32| value.is_finite() && value.abs() >= limit;
    let mut bits = [0; CHUNK];
    for (chunk, (values, bytes)) in values.chunks(CHUNK).zip(bytes.chunks_mut(2 * CHUNK)).enumerate() {
        if values.iter().fold(false, |any, value| any | is_too_large(value)) {
            return Err(chunk * CHUNK + values.iter().position(is_too_large).unwrap_or_default());
        }
        convert(values, &mut bits[..values.len()]);
        for (bits, bytes) in bits.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = bits.to_le_bytes();
        }
    }
    Ok(())
}

/// The smallest f16 that is not below a number >= 0, or `None` if there is none.
pub fn f16_at_least(value: f32) -> Option<f32> {
    let nearest = f16::from_f32(value);
    let bits = nearest.to_bits() + u16::from(nearest.to_f32() < value);
    Some(f16::from_bits(bits).to_f32()).filter(|rounded| rounded.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers spread over all f32, and each finite f16 >= 0 with both of its neighbours in f32.
    fn sample_numbers() -> impl Iterator<Item = f32> {
        let neighbours = (0..0x7c00).flat_map(|bits| {
            let bits = f16::from_bits(bits).to_f32().to_bits();
            [bits.saturating_sub(1), bits, bits + 1]
        });
        (0..=u32::MAX).step_by(4099).chain(neighbours).map(f32::from_bits)
    }

    #[test]
    fn f16_at_least_gives_the_smallest_f16_that_is_not_below_a_number() {
        for value in sample_numbers().filter(|value| *value >= 0.0) {
            match f16_at_least(value) {
                None => assert!(value > 65504.0),
                Some(rounded) => {
                    assert!(rounded >= value, "{value:e}");
                    let below = f16::from_f32(rounded).to_bits().checked_sub(1).map(f16::from_bits);
                    assert!(below.is_none_or(|below| below.to_f32() < value), "{value:e}");
                }
            }
        }
    }

    #[test]
    fn slices_of_every_length_convert_like_single_numbers() {
        let values: Vec<f32> = sample_numbers().filter(|value| value.abs() < 65504.0).step_by(997).collect();
        for length in [0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, values.len()] {
            let values = &values[..length];
            for (dtype, bits) in [
                (Dtype::F16, values.iter().map(|value| f16::from_f32(*value).to_bits()).collect::<Vec<_>>()),
                (Dtype::BF16, values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect()),
            ] {
                let expected: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                let (mut bytes, mut restored) = (vec![0xa5; 2 * length], vec![f32::NAN; length]);
                super::super::narrow(dtype, values, &mut bytes).unwrap();
                assert_eq!(bytes, expected, "{dtype:?}");
                super::super::widen(dtype, &bytes, &mut restored).unwrap();
                let mut narrowed = vec![0; 2 * length];
                super::super::narrow(dtype, &restored, &mut narrowed).unwrap();
                assert_eq!(narrowed, bytes, "{dtype:?}");
            }
        }
    }
}
