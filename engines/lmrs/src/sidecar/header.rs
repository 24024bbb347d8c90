//! What stands at the beginning of a file of packed weights. All of it is a claim until it was checked.
//!
//! ```text
//! 8 bytes `lmrspack`, 8: the length of the JSON, 16: its digest, then the JSON; the first matrix begins a MiB into the file
//! ```

use std::ops::Range;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{LAYOUT, PAGE};
use crate::matrix::{Format, Matrix};

const MAGIC: &[u8; 8] = b"lmrspack";
/// Room for the header, so that where matrices lie does not depend on how long it is to say so.
const ROOM: usize = 1 << 20;
/// Longer than any side of a matrix, and short enough that no product of two of them overflows.
const LONGEST: usize = 1 << 28;

/// What was packed, and as what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    layout: u32,
    form: String,
    /// Path, bytes, and when it was changed in nanoseconds: what tells a file from another without reading it.
    files: Vec<(PathBuf, u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    pub source: Source,
    pub matrices: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    format: String,
    pub outputs: usize,
    pub inputs: usize,
    pub at: usize,
    bytes: usize,
    pub sum: u64,
}

impl Source {
    pub fn of(weights: &[PathBuf], form: &str) -> Result<Self> {
        let file = |path: &PathBuf| {
            let about = || format!("`{}`", path.display());
            let path = path.canonicalize().with_context(about)?;
            let metadata = path.metadata().with_context(about)?;
            let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok((path, metadata.len(), u64::try_from(changed.as_nanos())?))
        };
        let files = weights.iter().map(file).collect::<Result<_>>()?;
        Ok(Self { layout: LAYOUT, form: form.into(), files })
    }

    /// Names the paths alone: files that were changed have their packed weights replaced.
    pub fn digest(&self) -> Result<String> {
        let paths: Vec<_> = self.files.iter().map(|(path, ..)| path).collect();
        Ok(places::digest(&serde_json::to_vec(&paths)?))
    }
}

impl Header {
    pub fn of(source: Source, matrices: &[(&str, &Matrix)], sum: impl Fn(&[u8]) -> u64) -> Self {
        let mut end = ROOM;
        let entry = |(name, matrix): &(&str, &Matrix)| {
            let at = end.next_multiple_of(PAGE);
            end = at + matrix.bytes();
            Entry {
                name: (*name).into(),
                format: format!("{:?}", matrix.format),
                outputs: matrix.outputs,
                inputs: matrix.inputs,
                at,
                bytes: matrix.bytes(),
                sum: sum(matrix.region().bytes()),
            }
        };
        let matrices = matrices.iter().map(entry).collect();
        Self { source, matrices }
    }

    pub fn file_bytes(&self) -> u64 {
        self.matrices.last().map_or(ROOM, |last| last.at + last.bytes) as u64
    }

    pub fn bytes(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        ensure!(json.len() <= ROOM - 32, "too many matrices to name");
        let (length, digest) = ((json.len() as u64).to_le_bytes(), places::digest(&json));
        Ok([MAGIC, length.as_slice(), digest.as_bytes(), &json].concat())
    }

    pub fn read(file: &[u8]) -> Result<Self> {
        let (magic, rest) = file.split_first_chunk::<8>().context("too short")?;
        let (length, rest) = rest.split_first_chunk::<8>().context("too short")?;
        let (digest, rest) = rest.split_first_chunk::<16>().context("too short")?;
        ensure!(magic == MAGIC, "no packed weights");
        let json = rest.get(..usize::try_from(u64::from_le_bytes(*length))?).context("too short")?;
        ensure!(places::digest(json).as_bytes() == digest, "a damaged header");
        Ok(serde_json::from_slice(json)?)
    }
}

impl Entry {
    pub fn format(&self) -> Result<Format> {
        use Format::{Bf16, F16, F32, Q4_0, Q4K, Q6K, Q8_0};
        let all = [F32, F16, Bf16, Q8_0, Q4_0, Q4K, Q6K];
        all.into_iter().find(|format| format!("{format:?}") == self.format).context("an unknown format")
    }

    /// Where it lies, if that is within the file and just what its shape needs.
    pub fn place(&self, file_bytes: usize) -> Result<Range<usize>> {
        ensure!(self.outputs <= LONGEST && self.inputs <= LONGEST, "`{}` is too large", self.name);
        ensure!(
            self.bytes == Matrix::bytes_for(self.format()?, self.outputs, self.inputs),
            "`{}`: its size",
            self.name
        );
        let end = self.at.checked_add(self.bytes).filter(|end| *end <= file_bytes);
        let end = end.with_context(|| format!("`{}` goes beyond the file", self.name))?;
        ensure!(self.at.is_multiple_of(PAGE), "`{}` begins within a page", self.name);
        Ok(self.at..end)
    }
}
