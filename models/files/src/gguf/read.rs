//! Reads the header of a GGUF file, metadata and the table of tensors, and the elements of metadata arrays. The weights after
//! the header are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{Header, Value};
use crate::text::printable;
use crate::weights::checked_elements;
use crate::{Dtype, Tensor};

/// Reads the header of one file. `file` is the index of the file, for `Tensor::file`.
pub fn read_header(path: &Path, file: usize) -> Result<Header> {
    read(path, file).with_context(|| format!("`{}`", path.display()))
}

/// The size of the read buffer. A vocabulary has up to hundreds of thousands of short texts. With this buffer, most of them are
/// skipped without a system call.
const BUFFER_BYTES: usize = 256 << 10;

/// The longest key that the format allows. Tensor names are shorter.
const MAX_KEY_BYTES: u64 = 65_535;

/// The most bytes of text to read from one file, keys and names included. The longest text in real headers is a
/// tokenizer.json of some 30 MB. The file size is no bound: a sparse file may be larger than memory.
const MAX_TEXT_BYTES: u64 = 1 << 27;

/// The most dimensions of a tensor, as in ggml. Tensors of the supported architectures have at most 2.
const MAX_DIMENSIONS: u32 = 4;

fn read(path: &Path, file: usize) -> Result<Header> {
    let mut source = Source::open(path)?;
    let file_bytes = source.file_bytes;
    let magic: [u8; 4] = source.bytes().context("not a GGUF file")?;
    ensure!(&magic == b"GGUF", "not a GGUF file: it begins with `{}`", magic.escape_ascii());
    let version = source.u32().context("version")?;
    // If the version is small only with swapped bytes, the file is big-endian.
    ensure!(version.swap_bytes() > 9, "big-endian GGUF is not supported");
    ensure!((2..=3).contains(&version), "GGUF version {version} is not supported; 2 and 3 are");
    let tensor_count = source.u64().context("number of tensors")?;
    let value_count = source.u64().context("number of metadata values")?;
    // A tensor's entry takes at least 24 bytes (name length, dimensions, type, offset), a value's 13 (key length, type, byte).
    source.check_count("tensors", tensor_count, 24)?;
    source.check_count("metadata values", value_count, 13)?;

    let mut metadata = BTreeMap::new();
    for index in 0..value_count {
        let key = source.name().with_context(|| format!("key of metadata value {index}"))?;
        let value = source.value().with_context(|| format!("metadata `{}`", printable(&key)))?;
        ensure!(metadata.insert(key.clone(), value).is_none(), "metadata `{}` occurs twice", printable(&key));
    }
    let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
    for index in 0..tensor_count {
        let name = source.name().with_context(|| format!("name of tensor {index}"))?;
        ensure!(names.insert(name.clone()), "tensor `{}` occurs twice", printable(&name));
        let entry = source.tensor().with_context(|| format!("tensor `{}`", printable(&name)))?;
        entries.push((name, entry));
    }

    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(found) => found.as_u64().filter(|bytes| (1..=1 << 20).contains(bytes)).with_context(|| {
            format!(
                "metadata `general.alignment`: expected a number of bytes from 1 to {}, found {found}",
                1 << 20
            )
        })?,
    };
    // A file without data may end before its padding.
    let data_start = source.position().next_multiple_of(alignment).min(file_bytes);
    let data_bytes = file_bytes - data_start;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, (dtype, shape, offset, bytes)) in entries {
        let end = offset.checked_add(bytes).filter(|&end| end <= data_bytes);
        ensure!(
            end.is_some(),
            "tensor `{}`: {bytes} bytes at offset {offset} of the data, which has {data_bytes} bytes",
            printable(&name)
        );
        tensors.push(Tensor { name, dtype, shape, file, offset: data_start + offset, bytes });
    }
    check_overlap(&tensors)?;
    Ok(Header { version, metadata, tensors })
}

/// The name of a tensor type, the numbers in its block and the block's bytes.
fn tensor_type(number: u32) -> Result<(&'static str, u64, u64)> {
    if let Some(dtype) = Dtype::of_gguf(number) {
        let (block, bytes) = dtype.block();
        return Ok((dtype.as_str(), block as u64, bytes as u64));
    }
    let other = OTHER_TYPES.iter().find(|(known, ..)| *known == number);
    other
        .map(|&(_, name, block, bytes)| (name, block, bytes))
        .with_context(|| format!("unknown type {number}"))
}

/// Checks that tensors do not overlap: GGUF stores shared weights once, under one name.
fn check_overlap(tensors: &[Tensor]) -> Result<()> {
    let mut sorted: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    sorted.sort_by_key(|tensor| tensor.offset);
    for pair in sorted.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        ensure!(
            first.offset + first.bytes <= second.offset,
            "tensors `{}` and `{}` overlap",
            printable(&first.name),
            printable(&second.name)
        );
    }
    Ok(())
}

/// An open file, with the number of its unread bytes.
struct Source {
    reader: BufReader<File>,
    file_bytes: u64,
    bytes_left: u64,
    /// The bytes of text that may still be read.
    text_bytes_left: u64,
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        // A small file takes a small buffer.
        let buffer_bytes = usize::try_from(file_bytes)?.clamp(1, BUFFER_BYTES);
        let reader = BufReader::with_capacity(buffer_bytes, file);
        Ok(Self { reader, file_bytes, bytes_left: file_bytes, text_bytes_left: MAX_TEXT_BYTES })
    }

    fn position(&self) -> u64 {
        self.file_bytes - self.bytes_left
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        ensure!(
            N as u64 <= self.bytes_left,
            "the file ends here: {N} bytes are needed, and {} are left",
            self.bytes_left
        );
        self.consume(N as u64)?;
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

    /// A text of at most `max_bytes` bytes, UTF-8 or not.
    fn text(&mut self, max_bytes: u64) -> Result<Vec<u8>> {
        let length = self.u64()?;
        self.consume(length)?;
        ensure!(length <= max_bytes, "claims a text of {length} bytes, and the limit is {max_bytes}");
        let left = self.text_bytes_left.checked_sub(length);
        self.text_bytes_left = left.with_context(|| {
            format!("all texts together exceed {MAX_TEXT_BYTES} bytes with this one of {length}")
        })?;
        let mut bytes = vec![0; usize::try_from(length)?];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// A key or a tensor's name. Invalid UTF-8 is replaced, so that messages can show it.
    fn name(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.text(MAX_KEY_BYTES)?).into_owned())
    }

    fn value(&mut self) -> Result<Value> {
        Ok(match self.u32().context("type")? {
            0 => Value::Unsigned(u8::from_le_bytes(self.bytes()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Bool(self.bytes::<1>()?[0] != 0),
            8 => Value::Text(String::from_utf8_lossy(&self.text(MAX_TEXT_BYTES)?).into_owned()),
            9 => self.array()?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            other => bail!("unknown value type {other}"),
        })
    }

    /// Skips the elements and stores their position.
    fn array(&mut self) -> Result<Value> {
        let (kind, length) = (self.u32().context("type of its elements")?, self.u64().context("length")?);
        let offset = self.position();
        let min_element_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            // A text takes at least the 8 bytes that state its length.
            8 => 8,
            9 => bail!("an array of arrays is not supported"),
            other => bail!("array of unknown value type {other}"),
        };
        self.check_count("array elements", length, min_element_bytes)?;
        if kind == 8 {
            for index in 0..length {
                let skipped = self.u64().and_then(|bytes| self.skip(bytes));
                skipped.with_context(|| format!("text {index}"))?;
            }
        } else {
            self.skip(length * min_element_bytes)?;
        }
        Ok(Value::Array { kind, length, offset })
    }

    /// Reads a tensor's dtype, shape, offset in the data, and number of bytes.
    fn tensor(&mut self) -> Result<(&'static str, Vec<u64>, u64, u64)> {
        let dimensions = self.u32().context("number of dimensions")?;
        ensure!(dimensions <= MAX_DIMENSIONS, "claims {dimensions} dimensions");
        let mut size = |dimension| self.u64().with_context(|| format!("dimension {dimension}"));
        let mut shape = (0..dimensions).map(&mut size).collect::<Result<Vec<_>>>()?;
        let (kind, offset) = (self.u32().context("type")?, self.u64().context("offset")?);
        let (dtype, block, block_bytes) = tensor_type(kind)?;
        let row = shape.first().copied().unwrap_or(1);
        ensure!(
            row.is_multiple_of(block),
            "rows of {row} numbers do not divide into blocks of {block} ({dtype})"
        );
        let bytes = checked_elements(&shape).and_then(|elements| (elements / block).checked_mul(block_bytes));
        let bytes = bytes.with_context(|| format!("shape {shape:?} overflows"))?;
        shape.reverse(); // GGUF writes the innermost dimension first.
        Ok((dtype, shape, offset, bytes))
    }

    /// Refuses a count that the remaining bytes cannot hold, before a loop uses it.
    fn check_count(&self, items: &str, count: u64, min_bytes_each: u64) -> Result<()> {
        let fits = count.checked_mul(min_bytes_each).is_some_and(|bytes| bytes <= self.bytes_left);
        ensure!(fits, "claims {count} {items}, and {} bytes are left", self.bytes_left);
        Ok(())
    }

    /// Skips bytes. Within the buffer this only changes an index.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.consume(bytes)?;
        Ok(self.reader.seek_relative(i64::try_from(bytes)?)?)
    }

    /// Counts the next bytes as read; refuses more than are left.
    fn consume(&mut self, bytes: u64) -> Result<()> {
        ensure!(bytes <= self.bytes_left, "claims {bytes} bytes, and {} are left", self.bytes_left);
        self.bytes_left -= bytes;
        Ok(())
    }
}

/// The most elements of an array. Arrays hold tokens and merges, some hundred thousand in real models. The file size is no
/// bound: a sparse file may be larger than memory.
const MAX_ELEMENTS: u64 = 1 << 24;

/// Reads the texts of one metadata array, which must be UTF-8. The errors of this function and of the next two do not name the
/// file: the caller adds it.
pub fn read_texts(path: &Path, header: &Header, key: &str) -> Result<Vec<String>> {
    read_array(path, header, key, (8, "text"), 8, |source, index| {
        let text = source.text(MAX_TEXT_BYTES).and_then(|bytes| Ok(String::from_utf8(bytes)?));
        text.with_context(|| format!("text {index}"))
    })
}

pub fn read_f32s(path: &Path, header: &Header, key: &str) -> Result<Vec<f32>> {
    read_array(path, header, key, (6, "f32"), 4, |source, _| source.bytes().map(f32::from_le_bytes))
}

pub fn read_i32s(path: &Path, header: &Header, key: &str) -> Result<Vec<i32>> {
    read_array(path, header, key, (5, "i32"), 4, |source, _| source.bytes().map(i32::from_le_bytes))
}

/// Reads an array of one type. Memory grows only with elements that are in the file.
fn read_array<T>(
    path: &Path,
    header: &Header,
    key: &str,
    (expected, name): (u32, &str),
    min_bytes_each: u64,
    element: impl Fn(&mut Source, u64) -> Result<T>,
) -> Result<Vec<T>> {
    let read = || {
        let (kind, length, offset) = match header.metadata.get(key) {
            Some(&Value::Array { kind, length, offset }) => (kind, length, offset),
            Some(other) => bail!("expected an array, found {other}"),
            None => bail!("this key is missing"),
        };
        ensure!(kind == expected, "expected an array of {name} (type {expected}), found type {kind}");
        ensure!(length <= MAX_ELEMENTS, "claims {length} array elements, and the limit is {MAX_ELEMENTS}");
        let mut source = Source::open(path)?;
        source.skip(offset)?;
        source.check_count("array elements", length, min_bytes_each)?;
        (0..length).map(|index| element(&mut source, index)).collect()
    };
    read().with_context(|| format!("metadata `{key}`"))
}

/// The tensor types of ggml that no `Dtype` reads: number, name, elements in a block, bytes of a block.
pub(crate) const OTHER_TYPES: &[(u32, &str, u64, u64)] = &[
    (9, "Q8_1", 32, 36),
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
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
];
