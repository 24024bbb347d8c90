//! Numbers in and out of the layouts that weights have in files, byte for byte as ggml defines them.
//!
//! Everything here is arithmetic on slices: no files, no threads, no tensors. Only operations that IEEE 754 makes exact
//! to the last bit are used (add, multiply, divide, compare; no fused multiply-add, nothing of libm), in an order that
//! the source fixes, so the same numbers give the same bytes on every machine.
//!
//! What a layout cannot hold is refused rather than bent. A finite number never becomes infinite: `F16` and `BF16`
//! refuse one beyond their range, and the block formats refuse a block whose scale would overflow. NaN and infinities
//! pass through the floats and are refused by the block formats, in which one of them would spoil its whole block.

mod fit;
mod float;
mod k_scales;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q5_k;
mod q6_k;
mod q8_0;

use anyhow::{Result, bail, ensure};

use crate::Dtype;

/// Numbers as f32 from one row or several whole rows of any dtype. The lengths must agree; it is an error otherwise.
pub fn widen(dtype: Dtype, bytes: &[u8], values: &mut [f32]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    match dtype {
        Dtype::F32 => float::widen_f32(bytes, values),
        Dtype::F16 => float::widen_f16(bytes, values),
        Dtype::BF16 => float::widen_bf16(bytes, values),
        Dtype::Q4_0 => widen_blocks(bytes, values, q4::widen_0),
        Dtype::Q4_1 => widen_blocks(bytes, values, q4::widen_1),
        Dtype::Q5_0 => widen_blocks(bytes, values, q5::widen_0),
        Dtype::Q5_1 => widen_blocks(bytes, values, q5::widen_1),
        Dtype::Q8_0 => widen_blocks(bytes, values, q8_0::widen),
        Dtype::Q2K => widen_blocks(bytes, values, q2_k::widen),
        Dtype::Q3K => widen_blocks(bytes, values, q3_k::widen),
        Dtype::Q4K => widen_blocks(bytes, values, q4_k::widen),
        Dtype::Q5K => widen_blocks(bytes, values, q5_k::widen),
        Dtype::Q6K => widen_blocks(bytes, values, q6_k::widen),
    }
    Ok(())
}

/// The reverse, rounded as each format's module says. An error where `can_narrow` is false, where the lengths disagree,
/// and for a number that the format cannot hold, which is named by its index in `values`; `bytes` is then unfinished.
pub fn narrow(dtype: Dtype, values: &[f32], bytes: &mut [u8]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    let done = match dtype {
        Dtype::F32 => float::narrow_f32(values, bytes),
        Dtype::F16 => float::narrow_f16(values, bytes),
        Dtype::BF16 => float::narrow_bf16(values, bytes),
        Dtype::Q8_0 => narrow_blocks(values, bytes, q8_0::narrow),
        Dtype::Q4_0 => narrow_blocks(values, bytes, q4::narrow_0),
        Dtype::Q4K => narrow_blocks(values, bytes, q4_k::narrow),
        Dtype::Q6K => narrow_blocks(values, bytes, q6_k::narrow),
        _ => bail!("`{}` can be read and not written", dtype.as_str()),
    };
    match done {
        Ok(()) => Ok(()),
        Err(CannotHold { at }) => bail!(
            "number {at}, `{:e}`, cannot be held in `{}`\nhint: `F32` holds it",
            values.get(at).copied().unwrap_or(f32::NAN),
            dtype.as_str()
        ),
    }
}

/// Whether numbers can be rounded into this dtype; all can be widened from.
pub fn can_narrow(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q4K | Dtype::Q6K
    )
}

/// A number that the format has no bits for, by its index in the slice at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CannotHold {
    at: usize,
}

impl CannotHold {
    /// The number to name in a block: the first that is not finite, or else the one of greatest magnitude.
    fn in_block(values: &[f32]) -> Self {
        let mut at = 0;
        for (index, value) in values.iter().enumerate() {
            if !value.is_finite() {
                return Self { at: index };
            }
            if value.abs() > values.get(at).map_or(0.0, |seen| seen.abs()) {
                at = index;
            }
        }
        Self { at }
    }
}

fn check_lengths(dtype: Dtype, bytes: usize, numbers: usize) -> Result<()> {
    let (block, _) = dtype.block();
    ensure!(
        numbers.is_multiple_of(block),
        "{numbers} numbers are not whole blocks of `{}`, which hold {block}",
        dtype.as_str()
    );
    let expected = dtype.bytes(numbers as u64);
    ensure!(
        bytes as u64 == expected,
        "{numbers} numbers of `{}` take {expected} bytes, not {bytes}",
        dtype.as_str()
    );
    Ok(())
}

fn widen_blocks<const BYTES: usize, const NUMBERS: usize>(
    bytes: &[u8],
    values: &mut [f32],
    widen: impl Fn(&[u8; BYTES], &mut [f32; NUMBERS]),
) {
    for (block, values) in bytes.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
        widen(block, values);
    }
}

fn narrow_blocks<const NUMBERS: usize, const BYTES: usize>(
    values: &[f32],
    bytes: &mut [u8],
    narrow: impl Fn(&[f32; NUMBERS], &mut [u8; BYTES]) -> Option<()>,
) -> Result<(), CannotHold> {
    for (index, (values, block)) in values.as_chunks().0.iter().zip(bytes.as_chunks_mut().0).enumerate() {
        if narrow(values, block).is_none() {
            let CannotHold { at } = CannotHold::in_block(values);
            return Err(CannotHold { at: index * NUMBERS + at });
        }
    }
    Ok(())
}

/// The greatest magnitude, or nothing where a number is not finite. Magnitudes of floats are ordered like the integers
/// that spell them, infinity above every number and NaN above infinity, so that one integer maximum sees all of them.
fn largest_magnitude(values: &[f32]) -> Option<f32> {
    let bits = values.iter().fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
    let magnitude = f32::from_bits(bits);
    magnitude.is_finite().then_some(magnitude)
}
