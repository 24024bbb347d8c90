//! The identity of weights: a name that is the same in safetensors and GGUF. A conversion that changes no dtype keeps it.
//!
//! Each tensor of the network is hashed with SHA-256: its name, shape, dtype, and its numbers in GGUF's order, which can
//! be computed from both formats. The identity is the first half of the SHA-256 of these hashes. Tensors that GGUF has only in f32
//! are hashed in f32. Tensors that the network does not have, such as RoPE factors, are left out.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::architecture::{GgufLayout, TensorSpec};
use crate::text::hex;
use crate::weights::{FileWeights, Weights};
use crate::write::write_atomically;
use crate::{Dtype, Format, ModelFolder};

/// How many numbers to hash at once.
const NUMBERS_PER_STEP: u64 = 1 << 20;

impl ModelFolder {
    /// The identity: the stored one if the files have not changed since, else computed from all weights.
    pub fn identity(&self) -> Result<String> {
        let stored = StoredIdentity::of(self)?;
        if let Some(identity) = stored.find() {
            return Ok(identity);
        }
        let identity = self.compute_identity()?;
        stored.store(&identity);
        Ok(identity)
    }

    /// The identity, if it is known without reading the weights.
    pub fn known_identity(&self) -> Option<String> {
        StoredIdentity::of(self).ok()?.find()
    }

    fn compute_identity(&self) -> Result<String> {
        // Without this check, two models that differ in this matrix would have one identity.
        self.refuse_second_output_matrix()?;
        let (specs, weights) = (self.tensor_specs()?, FileWeights::open(self)?);
        let no_hashes = specs.iter().map(|_| None::<Result<[u8; 32]>>).collect::<Vec<_>>();
        let (next, hashes) = (AtomicUsize::new(0), Mutex::new(no_hashes));
        // The largest tensor comes first, so that no thread works on it alone at the end.
        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|&spec| std::cmp::Reverse(specs[spec].elements()));
        let work = || {
            while let Some(&spec) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let hash = hash_tensor(&specs[spec], &weights);
                let mut hashes = hashes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                hashes[spec] = Some(hash);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        let mut identity = Sha256::new();
        let hashes = hashes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        for hash in hashes {
            identity.update(hash.context("a tensor was not hashed")??);
        }
        // Half of the hash is enough to distinguish models.
        Ok(hex(&identity.finalize()[..16]))
    }
}

fn hash_tensor(spec: &TensorSpec, weights: &FileWeights) -> Result<[u8; 32]> {
    let dtype = if spec.is_f32_in_gguf() { Dtype::F32 } else { weights.dtype(spec)? };
    let shape: Vec<_> = spec.shape_in(Format::Gguf).iter().map(u64::to_string).collect();
    let mut hash = Sha256::new();
    hash.update(format!("{}\n{}\n{}\n", spec.gguf, dtype.as_str(), shape.join("x")));
    let (rows, columns) = spec.rows_in(Format::Gguf);
    let step_rows = if spec.gguf_layout == GgufLayout::Transposed {
        rows
    } else {
        (NUMBERS_PER_STEP / columns).clamp(1, rows)
    };
    let (mut first, mut bytes) = (0, Vec::new());
    while first < rows {
        let end = (first + step_rows).min(rows);
        bytes.resize(usize::try_from(dtype.bytes((end - first) * columns))?, 0);
        weights.encode(spec, Format::Gguf, first..end, dtype, &mut bytes)?;
        hash.update(&bytes);
        first = end;
    }
    Ok(hash.finalize().into())
}

/// The file in the program's data folder that may have the identity of these weights.
struct StoredIdentity {
    path: PathBuf,
    /// The path, the bytes and the time of change (in nanoseconds since 1970) of each weights file.
    files: Vec<(PathBuf, u64, u128)>,
}

/// The content of the file of a `StoredIdentity`.
#[derive(Serialize, Deserialize)]
struct IdentityFile {
    files: Vec<(PathBuf, u64, u128)>,
    identity: String,
}

impl StoredIdentity {
    fn of(model: &ModelFolder) -> Result<Self> {
        let mut files = Vec::new();
        for path in &model.weights {
            let path = path.canonicalize().with_context(|| format!("`{}`", path.display()))?;
            let metadata = path.metadata().with_context(|| format!("`{}`", path.display()))?;
            let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            files.push((path, metadata.len(), changed));
        }
        let first = files.first().map(|(path, ..)| path.to_string_lossy().into_owned()).unwrap_or_default();
        let name = format!("{}.json", paths::digest(first.as_bytes()));
        Ok(Self { path: paths::data_dir()?.join("identities").join(name), files })
    }

    fn find(&self) -> Option<String> {
        let entry: IdentityFile = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        (entry.files == self.files).then_some(entry.identity)
    }

    /// Best effort: without a stored identity the weights are read again.
    fn store(&self, identity: &str) {
        let entry = IdentityFile { files: self.files.clone(), identity: identity.into() };
        if let Ok(json) = serde_json::to_vec(&entry) {
            let _ = write_atomically(&self.path, |path| std::fs::write(path, json));
        }
    }
}
