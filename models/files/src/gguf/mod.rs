//! GGUF: one file with metadata, a table of tensors, and their bytes. `read` has the reader; the writer is here.

mod read;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use read::OTHER_TYPES;
pub use read::{read_f32s, read_header, read_i32s, read_texts};

use crate::architecture::TensorSpec;
use crate::text::printable;
use crate::write::{FilePlan, TensorPlan};
use crate::{Dtype, Format, Tensor};

pub(crate) const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";
pub(crate) const EOS_KEY: &str = "tokenizer.ggml.eos_token_id";

/// The keys of further EOS ids, as in llama.cpp: the ends of a turn and of a message.
pub(crate) const OTHER_EOS_KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// The content of a file before the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub version: u32,
    pub metadata: BTreeMap<String, Value>,
    /// In the order of the file.
    pub tensors: Vec<Tensor>,
}

/// A metadata value that was read. An array is kept without its elements, because vocabularies are long; `read_texts` and others
/// read them from the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array {
        /// The type of the array's elements, by GGUF's numbers for value types.
        kind: u32,
        length: u64,
        /// The offset of the array's first element in the file.
        offset: u64,
    },
}

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum ValueToWrite {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
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

/// The value as in a message: a list is not printed, and control characters are escaped.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(formatter, "`{value}`"),
            Self::Signed(value) => write!(formatter, "`{value}`"),
            // The debug form avoids the hundreds of digits of a large number.
            Self::Float(value) => write!(formatter, "`{value:?}`"),
            Self::Bool(value) => write!(formatter, "`{value}`"),
            Self::Text(value) => write!(formatter, "`\"{}\"`", printable(value)),
            Self::Array { .. } => formatter.write_str("a list"),
        }
    }
}

const VERSION: u32 = 3;
/// The multiple of bytes at which each tensor begins: GGUF's default.
const ALIGNMENT: u64 = 32;

/// A tensor that a conversion computes and adds: its name and its numbers.
pub(crate) type ExtraTensor = (&'static str, Vec<f32>);

/// Lays out a file: its header, and the offset of each tensor.
pub(crate) fn plan(
    name: String,
    metadata: &[(String, ValueToWrite)],
    specs: &[TensorSpec],
    dtypes: &[Dtype],
    extra_tensors: &[ExtraTensor],
) -> FilePlan {
    let mut header = Vec::new();
    header.extend(b"GGUF");
    header.extend(VERSION.to_le_bytes());
    header.extend(((specs.len() + extra_tensors.len()) as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_text(&mut header, key);
        write_value(&mut header, value);
    }
    let (mut end, mut tensors, mut extra_bytes) = (0_u64, Vec::new(), Vec::new());
    for (name, values) in extra_tensors {
        write_tensor_entry(&mut header, name, &[values.len() as u64], Dtype::F32, end);
        extra_bytes.push((end, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()));
        end = (end + 4 * values.len() as u64).next_multiple_of(ALIGNMENT);
    }
    for (spec, &dtype) in dtypes.iter().enumerate() {
        let shape = specs[spec].shape_in(Format::Gguf);
        write_tensor_entry(&mut header, &specs[spec].gguf, &shape, dtype, end);
        tensors.push(TensorPlan { spec, dtype, offset: end });
        end = (end + dtype.bytes(specs[spec].elements())).next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let start = header.len() as u64;
    tensors.iter_mut().for_each(|tensor| tensor.offset += start);
    extra_bytes.iter_mut().for_each(|(offset, _)| *offset += start);
    FilePlan { name, header, tensors, extra_tensors: extra_bytes, bytes: start + end }
}

fn write_tensor_entry(header: &mut Vec<u8>, name: &str, shape: &[u64], dtype: Dtype, offset: u64) {
    write_text(header, name);
    header.extend((shape.len() as u32).to_le_bytes());
    // GGUF writes the innermost dimension first.
    shape.iter().rev().for_each(|size| header.extend(size.to_le_bytes()));
    header.extend(dtype.gguf_number().to_le_bytes());
    header.extend(offset.to_le_bytes());
}

fn write_text(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

/// Writes a value after its type, with GGUF's numbers for value types.
fn write_value(header: &mut Vec<u8>, value: &ValueToWrite) {
    match value {
        ValueToWrite::U32(value) => write_number(header, 4, value.to_le_bytes()),
        ValueToWrite::I32(value) => write_number(header, 5, value.to_le_bytes()),
        ValueToWrite::F32(value) => write_number(header, 6, value.to_le_bytes()),
        ValueToWrite::Bool(value) => write_number(header, 7, [u8::from(*value)]),
        ValueToWrite::Text(value) => {
            header.extend(8_u32.to_le_bytes());
            write_text(header, value);
        }
        ValueToWrite::U64(value) => write_number(header, 10, value.to_le_bytes()),
        ValueToWrite::Texts(values) => {
            begin_array(header, 8, values.len());
            values.iter().for_each(|value| write_text(header, value));
        }
        ValueToWrite::I32s(values) => {
            begin_array(header, 5, values.len());
            values.iter().for_each(|value| header.extend(value.to_le_bytes()));
        }
        ValueToWrite::F32s(values) => {
            begin_array(header, 6, values.len());
            values.iter().for_each(|value| header.extend(value.to_le_bytes()));
        }
    }
}

fn write_number<const N: usize>(header: &mut Vec<u8>, kind: u32, bytes: [u8; N]) {
    header.extend(kind.to_le_bytes());
    header.extend(bytes);
}

fn begin_array(header: &mut Vec<u8>, kind: u32, length: usize) {
    header.extend(9_u32.to_le_bytes());
    header.extend(kind.to_le_bytes());
    header.extend((length as u64).to_le_bytes());
}
