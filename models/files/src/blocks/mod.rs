//! The dtypes that this crate reads and writes, in the layout that ggml defines. A quantized dtype stores numbers in
//! quantization blocks, here called blocks: each has some numbers and their common scales.
//!
//! The code is arithmetic on slices, without files, threads or tensors. It uses only operations that IEEE 754 defines to the
//! last bit (add, multiply, divide, compare; no fused multiply-add, no libm), in an order fixed by the source. So the same
//! numbers give the same bytes on every machine.
//!
//! A number that a dtype cannot hold is refused. A finite number never becomes infinite: `F16` and `BF16` refuse numbers
//! beyond their range, and quantized dtypes refuse a block with an overflowing scale. Float dtypes keep NaN and infinities;
//! quantized dtypes refuse them, because one of them makes its whole block useless.
//!
//! A new dtype is a `Dtype`, declared in the file that converts it, and a line in `Dtype::ALL`.

mod float;
mod k_quants;
mod legacy;
mod q4_k;
mod q6_k;

use std::fmt;

use anyhow::{Result, bail, ensure};
use half::f16;

use crate::{Problem, gguf, safetensors};

/// The memory layout of a tensor's numbers.
#[derive(Clone, Copy)]
pub struct Dtype(&'static Encoding);

/// The properties of a dtype.
struct Encoding {
    /// The name in ggml, and in the headers of safetensors.
    name: &'static str,
    /// The number of the tensor type in GGUF.
    gguf: u32,
    /// `general.file_type` in GGUF: llama.cpp's number for files whose matrices mostly have this dtype. `None`: the
    /// writer omits the field.
    file_type: Option<u32>,
    /// `torch_dtype` in config.json; floats only.
    torch: Option<&'static str>,
    /// The size of a block: in numbers, and in bytes. A float is a block of its own.
    block: (usize, usize),
    /// Converts bytes of this dtype to f32.
    widen: fn(&[u8], &mut [f32]),
    /// Converts f32 to bytes of this dtype. `None` for a dtype that can only be read.
    narrow: Option<Narrow>,
}

/// The error is the index of a number that the dtype cannot hold.
type Narrow = fn(&[f32], &mut [u8]) -> Result<(), usize>;

impl Encoding {
    /// The defaults of quantized dtypes, which are only readable. Each dtype sets its own `name`, `gguf`, `block` and `widen`.
    const QUANTIZED: Self = Self {
        name: "",
        gguf: 0,
        file_type: None,
        torch: None,
        block: (1, 1),
        widen: |_, _| (),
        narrow: None,
    };
}

impl Dtype {
    /// The readable dtypes. Each is declared in a submodule.
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

    /// Finds a dtype by its name in headers or on the command line, in capitals or not: `BF16`, `q4_k`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|dtype| dtype.as_str().eq_ignore_ascii_case(name)).copied()
    }

    /// Finds a dtype by its number in GGUF.
    pub(crate) fn of_gguf(number: u32) -> Option<Self> {
        Self::ALL.iter().find(|dtype| dtype.gguf_number() == number).copied()
    }

    /// The bits that one number takes, with its share of the block's scales. `name` is a dtype of GGUF or safetensors, also
    /// one that this crate cannot read.
    pub fn bits_of(name: &str) -> Option<f64> {
        let is_named = |other: &str| other.eq_ignore_ascii_case(name);
        let readable = || Self::named(name).map(|dtype| (dtype.block().0 as u64, dtype.block().1 as u64));
        let in_gguf = || gguf::OTHER_TYPES.iter().find(|t| is_named(t.1)).map(|t| (t.2, t.3));
        let block = readable().or_else(in_gguf).map(|(numbers, bytes)| bytes as f64 * 8.0 / numbers as f64);
        let in_safetensors = || safetensors::DTYPES.iter().find(|t| is_named(t.0)).map(|t| t.1 as f64);
        block.or_else(in_safetensors)
    }

    pub const fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Whether each number is stored by itself, so that safetensors can hold it.
    pub const fn is_float(self) -> bool {
        self.0.torch.is_some()
    }

    /// The size of a block: in numbers, and in bytes. A tensor's row is a whole number of blocks.
    pub const fn block(self) -> (usize, usize) {
        self.0.block
    }

    /// The bytes of this many numbers, which must fill whole blocks.
    pub const fn bytes(self, elements: u64) -> u64 {
        let (numbers, bytes) = self.0.block;
        elements / numbers as u64 * bytes as u64
    }

    pub(crate) const fn gguf_number(self) -> u32 {
        self.0.gguf
    }

    pub(crate) const fn gguf_file_type(self) -> Option<u32> {
        self.0.file_type
    }

    pub(crate) const fn torch(self) -> Option<&'static str> {
        self.0.torch
    }
}

/// Names are unique, so equality compares them.
impl PartialEq for Dtype {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Dtype {}

impl fmt::Debug for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Converts one or several whole rows of any dtype to f32. Lengths that disagree are an error.
pub fn widen(dtype: Dtype, bytes: &[u8], values: &mut [f32]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    (dtype.0.widen)(bytes, values);
    Ok(())
}

/// Converts f32 to whole rows of a dtype, rounded as the dtype's module describes. It fails if `can_narrow` is false, if
/// the lengths disagree, or if the dtype cannot hold a number. The error gives that number's index in `values`; `bytes`
/// is then incomplete.
pub fn narrow(dtype: Dtype, values: &[f32], bytes: &mut [u8]) -> Result<()> {
    check_lengths(dtype, bytes.len(), values.len())?;
    let name = dtype.as_str();
    let Some(narrow) = dtype.0.narrow else { bail!("`{name}` can be read but not written") };
    narrow(values, bytes).map_err(|index| {
        let value = values.get(index).copied().unwrap_or(f32::NAN);
        let problem = format!("number {index}, `{value:e}`, does not fit into `{name}`");
        Problem::new(problem, "`F32` can store it").into()
    })
}

/// Whether this dtype can be written; every dtype can be read.
pub fn can_narrow(dtype: Dtype) -> bool {
    dtype.0.narrow.is_some()
}

fn check_lengths(dtype: Dtype, bytes: usize, numbers: usize) -> Result<()> {
    let ((block, _), name) = (dtype.block(), dtype.as_str());
    ensure!(
        numbers.is_multiple_of(block),
        "{numbers} numbers do not fill whole blocks of `{name}`, which have {block} numbers each"
    );
    let expected = dtype.bytes(numbers as u64);
    ensure!(bytes as u64 == expected, "{numbers} numbers of `{name}` take {expected} bytes, not {bytes}");
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
) -> Result<(), usize> {
    for (index, (values, block)) in values.as_chunks().0.iter().zip(bytes.as_chunks_mut().0).enumerate() {
        narrow(values, block).ok_or_else(|| index * NUMBERS + invalid_number(values))?;
    }
    Ok(())
}

/// The index of the number to report for a refused block: the first that is not finite, or else the largest.
fn invalid_number(values: &[f32]) -> usize {
    let not_finite = values.iter().position(|value| !value.is_finite());
    let magnitude = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    not_finite.or(values.iter().position(|value| value.abs() == magnitude)).unwrap_or(0)
}

/// The greatest magnitude, or `None` if a number is not finite. Magnitudes of floats sort like their bits as integers:
/// infinity is above every number and NaN above infinity. So the largest integer also shows infinity and NaN.
fn largest_magnitude(values: &[f32]) -> Option<f32> {
    let bits = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let magnitude = f32::from_bits(bits);
    magnitude.is_finite().then_some(magnitude)
}

/// The f16 at this byte of a block. The conversion in software is faster here: `to_f32` tests the processor at each call.
fn f16_at(block: &[u8], byte: usize) -> f32 {
    f16::from_le_bytes([block[byte], block[byte + 1]]).to_f32_const()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_unique_name_and_number() {
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::named(&dtype.as_str().to_ascii_lowercase()), Some(dtype));
            assert_eq!(Dtype::of_gguf(dtype.gguf_number()), Some(dtype));
        }
        assert_eq!((Dtype::Q4K.block(), Dtype::Q8_0.bytes(64)), ((256, 144), 68));
        assert_eq!((Dtype::named("Q9"), Dtype::of_gguf(u32::MAX)), (None, None));
    }

    #[test]
    fn the_bits_of_a_number_are_known_for_readable_and_unreadable_dtypes() {
        for &dtype in Dtype::ALL {
            let (numbers, bytes) = dtype.block();
            let bits = bytes as f64 * 8.0 / numbers as f64;
            assert_eq!(Dtype::bits_of(&dtype.as_str().to_ascii_lowercase()), Some(bits), "{dtype:?}");
        }
        let bits = ["Q8_0", "q6_k", "iq4_nl", "MXFP4", "i64", "F8_E4M3", "bool", "half"].map(Dtype::bits_of);
        let expected = [8.5, 6.5625, 4.5, 4.25, 64.0, 8.0, 8.0].map(Some);
        assert_eq!((&bits[..7], bits[7]), (&expected[..], None));
    }
}
