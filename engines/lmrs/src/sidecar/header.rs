//! The header of a file of packed weights. Its contents are untrusted until checked.
//!
//! ```text
//! 8 bytes `lmrspack`, 8 bytes: the length of the JSON, 16 bytes: its digest, then the JSON
//! ```

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{BEGIN, LAYOUT};

const MAGIC: &[u8; 8] = b"lmrspack";

/// The source files and the plan of packed weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    layout: u32,
    plan: String,
    /// Path, bytes, and modification time in nanoseconds: they identify a file without reading it.
    files: Vec<(PathBuf, u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    pub source: Source,
    /// Matrices by GGUF name that the format cannot hold, so that the plan stores them in another format.
    #[serde(default)]
    pub unfit: BTreeSet<String>,
    pub bytes: usize,
    pub sum: u64,
}

impl Source {
    pub fn of(weights: &[PathBuf], plan: &str) -> Result<Self> {
        let file = |path: &PathBuf| {
            let about = || format!("`{}`", path.display());
            let path = path.canonicalize().with_context(about)?;
            let metadata = path.metadata().with_context(about)?;
            let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok((path, metadata.len(), u64::try_from(changed.as_nanos())?))
        };
        let files = weights.iter().map(file).collect::<Result<_>>()?;
        Ok(Self { layout: LAYOUT, plan: paths::digest(plan.as_bytes()), files })
    }

    /// The same files with another plan.
    pub fn by(&self, plan: &str) -> Self {
        Self { plan: paths::digest(plan.as_bytes()), ..self.clone() }
    }

    /// Whether the files are the same, under any plan.
    pub fn has_files_of(&self, other: &Self) -> bool {
        (self.layout, &self.files) == (other.layout, &other.files)
    }

    /// The file name, from the paths and the plan alone: changed files replace their packed weights.
    pub fn name(&self) -> Result<String> {
        let paths: Vec<_> = self.files.iter().map(|(path, ..)| path).collect();
        Ok(format!("{}-{}", paths::digest(&serde_json::to_vec(&paths)?), self.plan))
    }
}

impl Header {
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        ensure!(json.len() <= BEGIN - 32, "too many files or matrices to name");
        let (length, digest) = ((json.len() as u64).to_le_bytes(), paths::digest(&json));
        Ok([MAGIC, length.as_slice(), digest.as_bytes(), &json].concat())
    }

    pub fn read(file: &[u8]) -> Result<Self> {
        let (magic, rest) = file.split_first_chunk::<8>().context("cut off")?;
        let (length, rest) = rest.split_first_chunk::<8>().context("cut off")?;
        let (digest, rest) = rest.split_first_chunk::<16>().context("cut off")?;
        ensure!(magic == MAGIC, "no packed weights");
        let json = rest.get(..usize::try_from(u64::from_le_bytes(*length))?).context("cut off")?;
        ensure!(paths::digest(json).as_bytes() == digest, "a damaged header");
        Ok(serde_json::from_slice(json)?)
    }
}
