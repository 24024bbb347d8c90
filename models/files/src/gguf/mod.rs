//! GGUF: one file with metadata, a table of tensors, and their bytes.

mod arrays;
mod read;
mod write;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use arrays::{f32s, i32s, texts};
pub use arrays::{read_byte_texts, read_f32s, read_i32s, read_texts};
pub use read::read_header;
pub(crate) use write::plan;

use crate::Tensor;
use crate::shown::shown;

/// Other ids that end a text, besides `eos_token_id`, as in llama.cpp: the ends of a turn and of a message.
pub(crate) const OTHER_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// The content of a file before the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub version: u32,
    pub metadata: BTreeMap<String, Value>,
    /// In the order of the file.
    pub tensors: Vec<Tensor>,
}

/// A metadata value. An array keeps only its position, because vocabularies are long; `read_texts` and others read it
/// later.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array {
        /// The type of its elements, by GGUF's numbers for value types.
        kind: u32,
        length: u64,
        /// The offset of its first element in the file.
        offset: u64,
    },
}

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    U32s(Vec<u32>),
}

impl Value {
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }
}

/// The value for a message: lists are not printed, and control characters are escaped.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(formatter, "`{value}`"),
            Self::Signed(value) => write!(formatter, "`{value}`"),
            // The debug form avoids the hundreds of digits of a large number.
            Self::Float(value) => write!(formatter, "`{value:?}`"),
            Self::Bool(value) => write!(formatter, "`{value}`"),
            Self::Text(value) => write!(formatter, "`\"{}\"`", shown(value)),
            Self::Array { .. } => formatter.write_str("a list"),
        }
    }
}

/// All tensor types of ggml, readable here or not: number, name, elements in a block, bytes of a block. `Dtype` comes
/// first.
pub(crate) const TYPES: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
];
