//! Conversion of numbers from and to the layouts of weight files, byte for byte as ggml defines them.
//!
//! The code is arithmetic on slices, without files, threads or tensors. It uses only operations that IEEE 754 makes exact
//! (add, multiply, divide, compare; no fused multiply-add, no libm), in an order fixed by the source. So the same numbers
//! give the same bytes on every machine.
//!
//! A number that a layout cannot hold is refused. A finite number never becomes infinite: `F16` and `BF16` refuse one
//! beyond their range, and the block formats refuse a block with an overflowing scale. NaN and infinities pass through the
//! floats; the block formats refuse them, because one would spoil its whole block.
//!
//! A new layout is a file in this folder, which declares its `Dtype`, and a line in `Dtype::ALL`.

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
    /// The readable dtypes. Each is declared in one of the files above.
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

/// Converts one or several whole rows of any dtype to f32. Lengths that disagree are an error.
pub fn widen(dtype: Dtype, bytes: &[u8], values: &mut [f32]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    (dtype.0.widen)(bytes, values);
    Ok(())
}

/// The reverse, rounded as each format's module describes. It fails if `can_narrow` is false, if the lengths disagree, or
/// if the format cannot hold a number. The error gives that number's index in `values`; `bytes` is then incomplete.
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

/// Whether this dtype can be written; every dtype can be read.
pub fn can_narrow(dtype: Dtype) -> bool {
    dtype.0.narrow.is_some()
}

/// A number that the format cannot hold, by its index in the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CannotHold {
    at: usize,
}

impl CannotHold {
    /// The number to report in a block: the first that is not finite, or else the one of greatest magnitude.
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

/// The greatest magnitude, or `None` if a number is not finite. Magnitudes of floats sort like the integers of their bits,
/// with infinity above every number and NaN above infinity. So one integer maximum finds all of them.
fn largest_magnitude(values: &[f32]) -> Option<f32> {
    let bits = values.iter().fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
    let magnitude = f32::from_bits(bits);
    magnitude.is_finite().then_some(magnitude)
}
