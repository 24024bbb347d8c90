//! Numbers in and out of the layouts that weights have in files, byte for byte as ggml defines them.
//!
//! Everything here is arithmetic on slices: no files, no threads, no tensors. Only operations that IEEE 754 makes exact
//! to the last bit are used (add, multiply, divide, compare; no fused multiply-add, nothing of libm), in an order that
//! the source fixes, so the same numbers give the same bytes on every machine.
//!
//! What a layout cannot hold is refused rather than bent. A finite number never becomes infinite: `F16` and `BF16`
//! refuse one beyond their range, and the block formats refuse a block whose scale would overflow. NaN and infinities
//! pass through the floats and are refused by the block formats, in which one of them would spoil its whole block.
//!
//! A new layout is a file in this folder, which declares its `Dtype`, and its line in `Dtype::ALL`. Nothing else names it.

mod fit;
mod k_scales;

use anyhow::{Result, bail, ensure};

use crate::Dtype;

mod float;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q5_k;
mod q6_k;
mod q8_0;

impl Dtype {
    /// Those that can be read. Each is declared in one of the files above.
    pub const ALL: &'static [Self] = &[
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];
}

/// Numbers as f32 from one row or several whole rows of any dtype. The lengths must agree; it is an error otherwise.
pub fn widen(dtype: Dtype, bytes: &[u8], values: &mut [f32]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    (dtype.0.widen)(bytes, values);
    Ok(())
}

/// The reverse, rounded as each format's module says. An error where `can_narrow` is false, where the lengths disagree,
/// and for a number that the format cannot hold, which is named by its index in `values`; `bytes` is then unfinished.
pub fn narrow(dtype: Dtype, values: &[f32], bytes: &mut [u8]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    let Some(narrow) = dtype.0.narrow else {
        bail!("`{}` can be read and not written", dtype.as_str());
    };
    match narrow(values, bytes) {
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
    dtype.0.narrow.is_some()
}

/// A number that the format has no bits for, by its index in the slice at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CannotHold {
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
