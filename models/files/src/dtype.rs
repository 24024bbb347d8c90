//! The kinds of numbers that this crate can read and write, as opposed to those that it merely knows by name.

use crate::gguf::TYPES;

/// How a tensor's numbers lie in memory. Block formats are those of ggml, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl Dtype {
    pub const ALL: [Self; 13] = [
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

    /// By the name that headers and the command line use, in either case: `BF16`, `q4_k`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.as_str().eq_ignore_ascii_case(name))
    }

    /// As both formats spell it in their headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Each number stands for itself, so that safetensors can hold it.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Numbers that share a block, and the bytes that it takes. A row is a whole number of blocks.
    pub fn block(self) -> (usize, usize) {
        let (_, elements, bytes) = self.in_table();
        (elements as usize, bytes as usize)
    }

    /// The bytes of so many numbers, which fill whole blocks.
    pub fn bytes(self, elements: u64) -> u64 {
        let (_, block, bytes) = self.in_table();
        elements / block * bytes
    }

    /// What GGUF writes for it.
    pub fn gguf_number(self) -> u32 {
        self.in_table().0
    }

    fn in_table(self) -> (u32, u64, u64) {
        let found = TYPES.iter().find(|(_, name, ..)| *name == self.as_str());
        // A test holds that each variant is in the table.
        found.map_or((u32::MAX, 1, 0), |&(number, _, elements, bytes)| (number, elements, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_in_the_table_of_gguf_and_found_by_its_name() {
        for dtype in Dtype::ALL {
            assert_ne!(dtype.gguf_number(), u32::MAX, "{dtype:?}");
            assert_eq!(Dtype::named(&dtype.as_str().to_ascii_lowercase()), Some(dtype));
        }
        assert_eq!((Dtype::Q4K.block(), Dtype::Q8_0.bytes(64)), ((256, 144), 68));
        assert_eq!(Dtype::named("Q9"), None);
    }
}
