//! safetensors: eight bytes with the header's length, a JSON header, and the tensors in sequence. The reader reads headers
//! and no weights; the writer plans files, which `write` fills.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::architecture::TensorSpec;
use crate::text::printable;
use crate::weights::checked_elements;
use crate::write::{FilePlan, TensorPlan};
use crate::{Dtype, Tensor};

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The longest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the tensors of one file, in the order of their bytes. `file` is the index of the file, for `Tensor::file`.
pub fn read_header(path: &Path, file: usize) -> Result<Vec<Tensor>> {
    let read = || {
        let opened = File::open(path)?;
        let file_bytes = opened.metadata()?.len();
        parse_header(opened, file_bytes, file)
    };
    read().with_context(|| format!("`{}`", path.display()))
}

/// Reads the tensors from the beginning of a file of this size. Memory grows with the bytes read, never with the sizes
/// that the header states.
pub fn parse_header(mut reader: impl Read, file_bytes: u64, file: usize) -> Result<Vec<Tensor>> {
    ensure!(file_bytes >= 8, "{file_bytes} bytes are too few for a safetensors file");
    let mut length = [0_u8; 8];
    reader.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    ensure!(
        header_bytes <= file_bytes - 8,
        "the header claims {header_bytes} bytes, and the file holds {} after the first 8",
        file_bytes - 8
    );
    ensure!(
        header_bytes <= MAX_HEADER_BYTES,
        "the header claims {header_bytes} bytes, more than the format allows"
    );
    let mut header = Vec::new();
    let read = reader.take(header_bytes).read_to_end(&mut header)?;
    ensure!(read as u64 == header_bytes, "the file ends within its header");
    let Entries(entries) = serde_json::from_slice(&header).context("header")?;
    locate_tensors(entries, file, 8 + header_bytes, file_bytes)
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

/// Locates the tensors in the file, and checks that every byte after the header belongs to exactly one of them.
fn locate_tensors(
    entries: Vec<(String, Entry)>,
    file: usize,
    data_start: u64,
    file_bytes: u64,
) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let tensor = entry.locate(&name, file, data_start, file_bytes);
        tensors.push(tensor.with_context(|| format!("tensor `{}`", printable(&name)))?);
    }
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    let mut end = data_start;
    for tensor in &tensors {
        let name = printable(&tensor.name);
        ensure!(tensor.offset >= end, "tensor `{name}`: its bytes overlap those of another tensor");
        ensure!(
            tensor.offset == end,
            "tensor `{name}`: {} bytes before it belong to no tensor",
            tensor.offset - end
        );
        end += tensor.bytes;
    }
    ensure!(end == file_bytes, "{} bytes after the last tensor belong to no tensor", file_bytes - end);
    Ok(tensors)
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    fn locate(self, name: &str, file: usize, data_start: u64, file_bytes: u64) -> Result<Tensor> {
        let known = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype);
        let Some(&(dtype, bits)) = known else { bail!("unknown dtype `{}`", printable(&self.dtype)) };
        let (begin, end) = self.data_offsets;
        ensure!(begin <= end, "its first offset, {begin}, is above its second, {end}");
        let data_bytes = file_bytes - data_start;
        ensure!(
            end <= data_bytes,
            "the file is truncated: the tensor ends at byte {end} of the data, which has {data_bytes}"
        );
        let total_bits = checked_elements(&self.shape).and_then(|elements| elements.checked_mul(bits));
        let expected = total_bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        ensure!(
            expected == Some(end - begin),
            "shape {:?} of {dtype} does not fill the {} bytes between its offsets",
            self.shape,
            end - begin
        );
        let (offset, bytes) = (data_start + begin, end - begin);
        Ok(Tensor { name: name.into(), dtype, shape: self.shape, file, offset, bytes })
    }
}

/// The entries of the header, in order. A duplicate name is refused; a map would silently keep one of the two.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if !seen.insert(name.clone()) {
                        let name = printable(&name);
                        return Err(serde::de::Error::custom(format!("tensor `{name}` occurs twice")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// The safetensors files of the model in a folder: those of its index, else `model.safetensors`, else the only file.
pub(crate) fn shards(folder: &Path, names: &[String]) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if index.is_file() {
        return shards_of_index(folder, &index).with_context(|| format!("`{}`", index.display()));
    }
    match names {
        [only] => Ok(vec![folder.join(only)]),
        several if several.iter().any(|name| name == "model.safetensors") => {
            Ok(vec![folder.join("model.safetensors")])
        }
        several => {
            bail!("model `{}`: {} safetensors files and no `{INDEX}`", folder.display(), several.len())
        }
    }
}

fn shards_of_index(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_slice(&std::fs::read(index)?)?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    ensure!(!names.is_empty(), "`weight_map` is empty");
    let mut paths = Vec::new();
    for name in names {
        // A shard must be in the folder; an index that points elsewhere is broken or malicious.
        let printable_name = printable(name);
        ensure!(Path::new(name).file_name() == Some(name.as_ref()), "`{printable_name}` is not a file name");
        let path = folder.join(name);
        ensure!(path.is_file(), "shard `{printable_name}` is missing");
        let present: BTreeSet<String> =
            read_header(&path, 0)?.into_iter().map(|tensor| tensor.name).collect();
        let missing = weight_map.iter().find(|(tensor, shard)| *shard == name && !present.contains(*tensor));
        let missing = missing.map(|(tensor, _)| printable(tensor));
        ensure!(missing.is_none(), "tensor `{}` is not in `{printable_name}`", missing.unwrap_or_default());
        paths.push(path);
    }
    Ok(paths)
}

/// A tensor that would make a shard larger than this begins the next shard.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Plans the files of these tensors, `specs`, and the index if there are several files.
pub(crate) fn plan(specs: &[TensorSpec], dtypes: &[Dtype]) -> Result<(Vec<FilePlan>, Option<String>)> {
    let bytes = |spec: usize| dtypes[spec].bytes(specs[spec].elements());
    let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
    let mut shard_bytes = 0;
    for spec in 0..specs.len() {
        if shard_bytes > 0 && shard_bytes + bytes(spec) > SHARD_BYTES {
            shards.push(Vec::new());
            shard_bytes = 0;
        }
        shard_bytes += bytes(spec);
        if let Some(shard) = shards.last_mut() {
            shard.push(spec);
        }
    }
    let count = shards.len();
    let name = |shard: usize| match count {
        1 => "model.safetensors".to_string(),
        count => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
    };
    let files = shards
        .iter()
        .enumerate()
        .map(|(shard, shard_specs)| plan_file(name(shard), shard_specs, specs, dtypes));
    let files = files.collect::<Result<Vec<_>>>()?;
    let index = (count > 1).then(|| {
        let names = shards.iter().enumerate().flat_map(|(shard, shard_specs)| {
            shard_specs.iter().map(move |&spec| (specs[spec].name.clone(), Value::from(name(shard))))
        });
        let total: u64 = (0..specs.len()).map(bytes).sum();
        let index =
            json!({ "metadata": { "total_size": total }, "weight_map": names.collect::<Map<_, _>>() });
        format!("{index:#}\n")
    });
    Ok((files, index))
}

fn plan_file(
    name: String,
    shard_specs: &[usize],
    specs: &[TensorSpec],
    dtypes: &[Dtype],
) -> Result<FilePlan> {
    let (mut header, mut end) = (Map::new(), 0);
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut tensors = Vec::new();
    for &spec in shard_specs {
        let (begin, dtype) = (end, dtypes[spec]);
        end += dtype.bytes(specs[spec].elements());
        let entry =
            json!({ "dtype": dtype.as_str(), "shape": specs[spec].shape, "data_offsets": [begin, end] });
        header.insert(specs[spec].name.clone(), entry);
        tensors.push(TensorPlan { spec, dtype, offset: begin });
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // The first tensor begins at a multiple of eight bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    let start = 8 + text.len() as u64;
    tensors.iter_mut().for_each(|tensor| tensor.offset += start);
    let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    Ok(FilePlan { name, header, tensors, extra_tensors: Vec::new(), bytes: start + end })
}
