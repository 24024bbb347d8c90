//! The elements of metadata arrays, read on demand.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::read::Source;
use super::{Header, Value};

/// The most elements of an array. Arrays hold tokens and merges, some hundred thousand in real models. The file size is no
/// bound: a sparse file may be larger than memory.
const MAX_ELEMENTS: u64 = 1 << 24;

/// The texts of one metadata array. A text that is not UTF-8 is an error.
pub fn read_texts(path: &Path, header: &Header, key: &str) -> Result<Vec<String>> {
    texts(path, header, key).with_context(|| format!("`{}`", path.display()))
}

/// The texts of one metadata array as bytes, UTF-8 or not.
pub fn read_byte_texts(path: &Path, header: &Header, key: &str) -> Result<Vec<Vec<u8>>> {
    byte_texts(path, header, key).with_context(|| format!("`{}`: metadata `{key}`", path.display()))
}

pub fn read_f32s(path: &Path, header: &Header, key: &str) -> Result<Vec<f32>> {
    f32s(path, header, key).with_context(|| format!("`{}`", path.display()))
}

pub fn read_i32s(path: &Path, header: &Header, key: &str) -> Result<Vec<i32>> {
    i32s(path, header, key).with_context(|| format!("`{}`", path.display()))
}

/// Like `read_texts`, but the caller adds the file's name to an error; so do the next two.
pub(crate) fn texts(path: &Path, header: &Header, key: &str) -> Result<Vec<String>> {
    let text = |(index, bytes)| String::from_utf8(bytes).with_context(|| format!("text {index}"));
    let texts = byte_texts(path, header, key);
    let texts = texts.and_then(|texts| texts.into_iter().enumerate().map(text).collect());
    texts.with_context(|| format!("metadata `{key}`"))
}

pub(crate) fn f32s(path: &Path, header: &Header, key: &str) -> Result<Vec<f32>> {
    numbers(path, header, key, (6, "f32"), f32::from_le_bytes).with_context(|| format!("metadata `{key}`"))
}

pub(crate) fn i32s(path: &Path, header: &Header, key: &str) -> Result<Vec<i32>> {
    numbers(path, header, key, (5, "i32"), i32::from_le_bytes).with_context(|| format!("metadata `{key}`"))
}

fn byte_texts(path: &Path, header: &Header, key: &str) -> Result<Vec<Vec<u8>>> {
    let (mut source, length) = find(path, header, key, (8, "text"), 8)?;
    // Nothing is reserved up front: memory grows only with texts that are in the file.
    let mut text = |index| source.byte_text().with_context(|| format!("text {index}"));
    (0..length).map(&mut text).collect::<Result<Vec<_>>>()
}

fn numbers<T>(
    path: &Path,
    header: &Header,
    key: &str,
    kind: (u32, &str),
    read: fn([u8; 4]) -> T,
) -> Result<Vec<T>> {
    let (mut source, length) = find(path, header, key, kind, 4)?;
    (0..length).map(|_| source.bytes().map(read)).collect()
}

/// The file at the array's first element, and the number of elements; the file is long enough for all.
fn find(
    path: &Path,
    header: &Header,
    key: &str,
    (wanted, name): (u32, &str),
    least_bytes_each: u64,
) -> Result<(Source, u64)> {
    let (kind, length, offset) = match header.metadata.get(key) {
        Some(&Value::Array { kind, length, offset }) => (kind, length, offset),
        Some(other) => bail!("expected an array, found {other}"),
        None => bail!("it is missing"),
    };
    ensure!(kind == wanted, "expected an array of {name} (type {wanted}), found type {kind}");
    ensure!(
        length <= MAX_ELEMENTS,
        "claims {length} array elements, and {MAX_ELEMENTS} are the most that is believed"
    );
    let mut source = Source::open(path)?;
    source.skip(offset)?;
    source.check_count("array elements", length, least_bytes_each)?;
    Ok((source, length))
}
