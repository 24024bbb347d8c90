//! Writes metadata and tensors into one file.

use super::MetadataValue;
use crate::Dtype;
use crate::architecture::{Layout, Part};
use crate::write::{FilePlan, TensorPlan};

const VERSION: u32 = 3;
const ALIGNMENT: u64 = 32;

/// A tensor that the weights do not hold: its name and its numbers.
pub(crate) type Literal = (&'static str, Vec<f32>);

pub(crate) fn plan(
    name: String,
    metadata: &[(String, MetadataValue)],
    parts: &[Part],
    dtypes: &[Dtype],
    literals: &[Literal],
) -> FilePlan {
    let mut header = Vec::new();
    header.extend(b"GGUF");
    header.extend(VERSION.to_le_bytes());
    header.extend(((parts.len() + literals.len()) as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut header, key);
        put(&mut header, value);
    }
    let (mut end, mut tensors, mut written) = (0_u64, Vec::new(), Vec::new());
    for (name, values) in literals {
        entry(&mut header, name, &[values.len() as u64], Dtype::F32, end);
        written.push((end, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()));
        end = (end + 4 * values.len() as u64).next_multiple_of(ALIGNMENT);
    }
    for (part, &dtype) in dtypes.iter().enumerate() {
        let shape = parts[part].shape_in(Layout::Gguf);
        entry(&mut header, &parts[part].gguf, &shape, dtype, end);
        tensors.push(TensorPlan { part, dtype, offset: end });
        end = (end + dtype.bytes(parts[part].elements())).next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let start = header.len() as u64;
    tensors.iter_mut().for_each(|tensor| tensor.offset += start);
    written.iter_mut().for_each(|(offset, _)| *offset += start);
    FilePlan { name, header, tensors, literals: written, bytes: start + end }
}

fn entry(header: &mut Vec<u8>, name: &str, shape: &[u64], dtype: Dtype, offset: u64) {
    text(header, name);
    header.extend((shape.len() as u32).to_le_bytes());
    // GGUF writes the innermost dimension first.
    shape.iter().rev().for_each(|size| header.extend(size.to_le_bytes()));
    header.extend(dtype.gguf_number().to_le_bytes());
    header.extend(offset.to_le_bytes());
}

fn text(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

fn put(header: &mut Vec<u8>, value: &MetadataValue) {
    match value {
        MetadataValue::U32(value) => number(header, 4, value.to_le_bytes()),
        MetadataValue::I32(value) => number(header, 5, value.to_le_bytes()),
        MetadataValue::F32(value) => number(header, 6, value.to_le_bytes()),
        MetadataValue::Bool(value) => number(header, 7, [u8::from(*value)]),
        MetadataValue::Text(value) => {
            header.extend(8_u32.to_le_bytes());
            text(header, value);
        }
        MetadataValue::U64(value) => number(header, 10, value.to_le_bytes()),
        MetadataValue::Texts(values) => {
            begin_array(header, 8, values.len());
            values.iter().for_each(|value| text(header, value));
        }
        MetadataValue::U32s(values) => {
            begin_array(header, 4, values.len());
            values.iter().for_each(|value| header.extend(value.to_le_bytes()));
        }
        MetadataValue::I32s(values) => {
            begin_array(header, 5, values.len());
            values.iter().for_each(|value| header.extend(value.to_le_bytes()));
        }
        MetadataValue::F32s(values) => {
            begin_array(header, 6, values.len());
            values.iter().for_each(|value| header.extend(value.to_le_bytes()));
        }
    }
}

fn number<const N: usize>(header: &mut Vec<u8>, kind: u32, bytes: [u8; N]) {
    header.extend(kind.to_le_bytes());
    header.extend(bytes);
}

fn begin_array(header: &mut Vec<u8>, kind: u32, length: usize) {
    header.extend(9_u32.to_le_bytes());
    header.extend(kind.to_le_bytes());
    header.extend((length as u64).to_le_bytes());
}
