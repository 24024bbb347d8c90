//! The header of a safetensors file: eight bytes of length, then JSON. The weights after it are not read.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::shown::shown;
use crate::tensor::{Tensor, checked_elements};

/// The format's own bound on its header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The tensors of one file, in the order of their bytes. `file` becomes `Tensor::file`.
pub fn read_header(path: &Path, file: usize) -> Result<Vec<Tensor>> {
    let read = || {
        let opened = File::open(path)?;
        let file_bytes = opened.metadata()?.len();
        parse_header(opened, file_bytes, file)
    };
    read().with_context(|| format!("`{}`", path.display()))
}

/// The same from the beginning of a file of this size. Memory grows with the bytes read, never with the sizes that they
/// state.
pub fn parse_header(mut reader: impl Read, file_bytes: u64, file: usize) -> Result<Vec<Tensor>> {
    ensure!(file_bytes >= 8, "{file_bytes} bytes are too few for a safetensors file");
    let mut length = [0_u8; 8];
    reader.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    ensure!(
        header_bytes <= file_bytes - 8,
        "the header claims {header_bytes} bytes, and the file holds {} after its length",
        file_bytes - 8
    );
    ensure!(
        header_bytes <= MAX_HEADER_BYTES,
        "the header claims {header_bytes} bytes, over the format's bound"
    );
    let mut header = Vec::new();
    let read = reader.take(header_bytes).read_to_end(&mut header)?;
    ensure!(read as u64 == header_bytes, "the file ends within its header");
    let Entries(entries) = serde_json::from_slice(&header).context("header")?;
    place_all(entries, file, 8 + header_bytes, file_bytes)
}

/// Dtypes and their size in bits.
pub(crate) const DTYPES: [(&str, u64); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("I64", 64),
    ("U64", 64),
    ("F64", 64),
    ("C64", 64),
];

/// Checks that every byte after the header belongs to one tensor.
fn place_all(
    entries: Vec<(String, Entry)>,
    file: usize,
    data_start: u64,
    file_bytes: u64,
) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let tensor = entry.place(&name, file, data_start, file_bytes);
        tensors.push(tensor.with_context(|| format!("tensor `{}`", shown(&name)))?);
    }
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    let mut end = data_start;
    for tensor in &tensors {
        let name = shown(&tensor.name);
        ensure!(tensor.offset >= end, "tensor `{name}`: its bytes overlap those of another tensor");
        ensure!(
            tensor.offset == end,
            "tensor `{name}`: {} bytes before it belong to none",
            tensor.offset - end
        );
        end += tensor.bytes;
    }
    ensure!(end == file_bytes, "{} bytes after the last tensor belong to none", file_bytes - end);
    Ok(tensors)
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    fn place(self, name: &str, file: usize, data_start: u64, file_bytes: u64) -> Result<Tensor> {
        let known = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype);
        let Some(&(dtype, bits)) = known else { bail!("unknown dtype `{}`", shown(&self.dtype)) };
        let (begin, end) = self.data_offsets;
        ensure!(begin <= end, "offsets {begin} to {end} run backwards");
        let data_bytes = file_bytes - data_start;
        ensure!(
            end <= data_bytes,
            "the file is truncated: this ends at byte {end} of the data, and {data_bytes} are there"
        );
        let total_bits = checked_elements(&self.shape).and_then(|elements| elements.checked_mul(bits));
        let expected = total_bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        ensure!(
            expected == Some(end - begin),
            "shape {:?} of {dtype} does not fill the {} bytes it claims",
            self.shape,
            end - begin
        );
        let (offset, bytes) = (data_start + begin, end - begin);
        Ok(Tensor { name: name.into(), dtype, shape: self.shape, file, offset, bytes })
    }
}

/// The header's object, in order. A duplicate name is refused; a map would silently keep one of the two.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Entries;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), std::collections::HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    }
                    if !seen.insert(name.clone()) {
                        let name = shown(&name);
                        return Err(serde::de::Error::custom(format!("tensor `{name}` stands there twice")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Names)
    }
}
