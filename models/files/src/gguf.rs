//! The header of a GGUF file: metadata and the table of tensors. The weights after it are not read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::tensor::{Tensor, checked_elements};

/// What stands before the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub version: u32,
    pub metadata: BTreeMap<String, Value>,
    /// In the order of the file.
    pub tensors: Vec<Tensor>,
}

/// A metadata value. Of an array only the length is kept: vocabularies are long, and their readers come later.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array { length: u64 },
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

/// Reads the header of one file. `file` becomes `Tensor::file`.
pub fn read_header(path: &Path, file: usize) -> Result<Header> {
    read(path, file).with_context(|| format!("`{}`", path.display()))
}

/// Tensor types: number, name, elements in a block, bytes of a block.
const TYPES: [(u32, &str, u64, u64); 33] = [
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

/// Arrays of arrays go no deeper: the reader recurses, and a file must not choose its depth.
const MAX_ARRAY_DEPTH: u32 = 4;

/// Today's models have at most 2; ggml itself allows 4.
const MAX_DIMENSIONS: u32 = 4;

fn read(path: &Path, file: usize) -> Result<Header> {
    let opened = File::open(path)?;
    let file_bytes = opened.metadata()?.len();
    let mut source = Source { reader: BufReader::new(opened), left: file_bytes };
    let magic: [u8; 4] = source.bytes()?;
    ensure!(&magic == b"GGUF", "not a GGUF file: it begins with `{}`", magic.escape_ascii());
    let version = source.u32()?;
    ensure!(version.swap_bytes() > 9, "big-endian GGUF is not supported");
    ensure!((2..=3).contains(&version), "GGUF version {version} is not supported; 2 and 3 are");
    let (tensor_count, value_count) = (source.u64()?, source.u64()?);
    // A tensor's entry takes at least 24 bytes (length, dimensions, type, offset), a value's at least 13.
    source.check_count("tensors", tensor_count, 24)?;
    source.check_count("metadata values", value_count, 13)?;

    let mut metadata = BTreeMap::new();
    for index in 0..value_count {
        let key = source.text().with_context(|| format!("key of metadata value {index}"))?;
        let kind = source.u32()?;
        let value = source.value(kind, 0).with_context(|| format!("metadata `{}`", key.escape_debug()))?;
        ensure!(
            metadata.insert(key.clone(), value).is_none(),
            "metadata `{}` stands there twice",
            key.escape_debug()
        );
    }
    let mut entries = Vec::new();
    for index in 0..tensor_count {
        let name = source.text().with_context(|| format!("name of tensor {index}"))?;
        let entry = source.tensor().with_context(|| format!("tensor `{}`", name.escape_debug()))?;
        entries.push((name, entry));
    }

    let alignment = metadata.get("general.alignment").and_then(Value::as_u64).unwrap_or(32);
    ensure!((1..=1 << 20).contains(&alignment), "`general.alignment` is {alignment}");
    let data_start = (file_bytes - source.left).next_multiple_of(alignment);
    let data_bytes = file_bytes.saturating_sub(data_start);
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, (dtype, shape, offset, bytes)) in entries {
        let end = offset.checked_add(bytes).filter(|&end| end <= data_bytes);
        ensure!(
            end.is_some(),
            "tensor `{name}`: {bytes} bytes at {offset} of the data, and the file holds {data_bytes}"
        );
        tensors.push(Tensor { name, dtype, shape, file, offset: data_start + offset, bytes });
    }
    Ok(Header { version, metadata, tensors })
}

/// The file, and how much of it is left to be claimed.
struct Source {
    reader: BufReader<File>,
    left: u64,
}

impl Source {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.claim(N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        self.claim(length)?;
        let mut bytes = vec![0; usize::try_from(length)?];
        self.reader.read_exact(&mut bytes)?;
        // Some vocabularies hold broken UTF-8; a name or a key that does is still worth showing.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.bytes()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Bool(self.bytes::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => self.array(depth)?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            other => bail!("unknown value type {other}"),
        })
    }

    fn array(&mut self, depth: u32) -> Result<Value> {
        ensure!(depth < MAX_ARRAY_DEPTH, "arrays nested deeper than {MAX_ARRAY_DEPTH}");
        let (kind, length) = (self.u32()?, self.u64()?);
        let fixed = match kind {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        };
        if let Some(bytes) = fixed {
            self.check_count("array elements", length, bytes)?;
            self.skip(length * bytes)?;
            return Ok(Value::Array { length });
        }
        // A text takes at least its length, an array its type and length.
        self.check_count("array elements", length, 8)?;
        for _ in 0..length {
            if kind == 8 {
                let bytes = self.u64()?;
                self.skip(bytes)?;
            } else {
                self.value(kind, depth + 1)?;
            }
        }
        Ok(Value::Array { length })
    }

    fn tensor(&mut self) -> Result<(&'static str, Vec<u64>, u64, u64)> {
        let dimensions = self.u32()?;
        ensure!(dimensions <= MAX_DIMENSIONS, "claims {dimensions} dimensions");
        let mut shape = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        let (kind, offset) = (self.u32()?, self.u64()?);
        let Some(&(_, dtype, block, block_bytes)) = TYPES.iter().find(|(number, ..)| *number == kind) else {
            bail!("unknown type {kind}");
        };
        let row = shape.first().copied().unwrap_or(1);
        ensure!(row.is_multiple_of(block), "rows of {row} do not divide into blocks of {block} ({dtype})");
        let bytes = checked_elements(&shape).and_then(|elements| (elements / block).checked_mul(block_bytes));
        let bytes = bytes.with_context(|| format!("shape {shape:?} overflows"))?;
        shape.reverse(); // GGUF writes the innermost dimension first.
        Ok((dtype, shape, offset, bytes))
    }

    /// Refuses a count that the rest of the file cannot hold, before anything loops over it.
    fn check_count(&self, what: &str, count: u64, least_bytes_each: u64) -> Result<()> {
        let fits = count.checked_mul(least_bytes_each).is_some_and(|bytes| bytes <= self.left);
        ensure!(fits, "claims {count} {what}, and {} bytes are left", self.left);
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.claim(bytes)?;
        let skipped = std::io::copy(&mut self.reader.by_ref().take(bytes), &mut std::io::sink())?;
        ensure!(skipped == bytes, "the file ends early");
        Ok(())
    }

    fn claim(&mut self, bytes: u64) -> Result<()> {
        ensure!(bytes <= self.left, "claims {bytes} bytes, and {} are left", self.left);
        self.left -= bytes;
        Ok(())
    }
}
