//! The number formats that this crate can read and write; it knows others only by name.
//!
//! Each is declared, with all its properties, in the file under `blocks` that reads it.

use std::fmt;

use crate::blocks::CannotHold;
use crate::{gguf, safetensors};

/// The memory layout of a tensor's numbers. Block formats are those of ggml, byte for byte.
#[derive(Clone, Copy)]
pub struct Dtype(pub(crate) &'static Encoding);

/// The properties of a dtype.
pub(crate) struct Encoding {
    /// The name in the headers of both formats.
    pub name: &'static str,
    /// The number of the tensor type in GGUF.
    pub gguf: u32,
    /// `general.file_type` in GGUF: llama.cpp's number for files whose matrices mostly have this dtype. `None` is not
    /// written.
    pub file_type: Option<u32>,
    /// `torch_dtype` in config.json; floats only.
    pub torch: Option<&'static str>,
    /// The numbers in a block, and its bytes.
    pub block: (usize, usize),
    pub widen: Widen,
    /// `None` for a dtype that can only be read.
    pub narrow: Option<Narrow>,
}

/// Converts whole blocks to as many numbers, and the reverse.
pub(crate) type Widen = fn(&[u8], &mut [f32]);
pub(crate) type Narrow = fn(&[f32], &mut [u8]) -> Result<(), CannotHold>;

impl Dtype {
    /// Finds a dtype by its name in headers or on the command line, in either case: `BF16`, `q4_k`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|dtype| dtype.as_str().eq_ignore_ascii_case(name)).copied()
    }

    /// Finds a dtype by its number in GGUF.
    pub(crate) fn of_gguf(number: u32) -> Option<Self> {
        Self::ALL.iter().find(|dtype| dtype.gguf_number() == number).copied()
    }

    /// The bits of a number in a dtype of either format, with its share of the block's scales. The name may be that of a
    /// dtype that this crate cannot read.
    pub fn bits_of(name: &str) -> Option<f64> {
        let is_it = |other: &str| other.eq_ignore_ascii_case(name);
        let own = || Self::named(name).map(|dtype| (dtype.block().0 as u64, dtype.block().1 as u64));
        let in_gguf = || gguf::TYPES.iter().find(|it| is_it(it.1)).map(|it| (it.2, it.3));
        let block = own().or_else(in_gguf).map(|(numbers, bytes)| bytes as f64 * 8.0 / numbers as f64);
        let in_safetensors = || safetensors::DTYPES.iter().find(|it| is_it(it.0)).map(|it| it.1 as f64);
        block.or_else(in_safetensors)
    }

    /// The name in the headers of both formats.
    pub const fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Whether each number is stored by itself, so that safetensors can hold it.
    pub const fn is_float(self) -> bool {
        self.0.torch.is_some()
    }

    /// The numbers in a block, and its bytes. A row is a whole number of blocks.
    pub const fn block(self) -> (usize, usize) {
        self.0.block
    }

    /// The bytes of this many numbers, which must fill whole blocks.
    pub const fn bytes(self, elements: u64) -> u64 {
        let (numbers, bytes) = self.0.block;
        elements / numbers as u64 * bytes as u64
    }

    /// The number of the dtype in GGUF.
    pub const fn gguf_number(self) -> u32 {
        self.0.gguf
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::TYPES;

    #[test]
    fn every_dtype_is_found_by_its_name_and_by_its_number_and_no_two_share_one() {
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::named(&dtype.as_str().to_ascii_lowercase()), Some(dtype));
            assert_eq!(Dtype::of_gguf(dtype.gguf_number()), Some(dtype));
        }
        assert_eq!((Dtype::Q4K.block(), Dtype::Q8_0.bytes(64)), ((256, 144), 68));
        assert_eq!((Dtype::named("Q9"), Dtype::of_gguf(u32::MAX)), (None, None));
    }

    #[test]
    fn the_bits_of_a_number_are_known_for_every_dtype_of_a_file_readable_or_not() {
        for &dtype in Dtype::ALL {
            let (numbers, bytes) = dtype.block();
            let bits = bytes as f64 * 8.0 / numbers as f64;
            assert_eq!(Dtype::bits_of(&dtype.as_str().to_ascii_lowercase()), Some(bits), "{dtype:?}");
        }
        let of = ["Q8_0", "q6_k", "iq4_nl", "MXFP4", "i64", "F8_E4M3", "bool", "half"].map(Dtype::bits_of);
        let expected = [8.5, 6.5625, 4.5, 4.25, 64.0, 8.0, 8.0].map(Some);
        assert_eq!((&of[..7], of[7]), (&expected[..], None));
    }

    #[test]
    fn the_types_of_gguf_say_of_every_dtype_what_its_own_file_says() {
        for &(number, name, elements, bytes) in TYPES {
            let Some(dtype) = Dtype::named(name).or_else(|| Dtype::of_gguf(number)) else { continue };
            let block = (elements as usize, bytes as usize);
            assert_eq!((dtype.gguf_number(), dtype.as_str(), dtype.block()), (number, name, block));
        }
    }
}
