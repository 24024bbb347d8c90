//! The cache of packed weights on disk: the next load of the same files maps them instead of packing again.
//!
//! There is one file for each model and requested format, under `packed/` in the data directory. It has a header and then the
//! packed memory. The cache is optional: if a file is damaged, outdated or of other sources, or the disk is full, the load
//! continues without it.
//!
//! Only packing reveals the matrices that a format cannot hold. The header lists them. The file is named after the packing
//! plan (`weights::Plan`) in which every matrix fits, so the next load finds the list first and packs nothing twice.
//!
//! ```text
//! file    8 bytes `lmrspack`, 8 bytes: the length of the JSON, 16 bytes: its digest, then the JSON (`Header`), which
//!         is untrusted until checked; from byte `PACKED_OFFSET` on, the packed memory
//! ```

#![expect(unsafe_code, reason = "a file is mapped")]

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Error, Result, ensure};
use memmap2::Mmap;
use model_files::ModelFolder;
use serde::{Deserialize, Serialize};

use crate::pool::Pool;
use crate::region::Region;

/// The version of the packed layouts of all formats. Raise it when one of them changes.
pub const LAYOUT_VERSION: u32 = 2;
/// The offset of the packed weights in their file, a multiple of the page size.
const PACKED_OFFSET: usize = 1 << 16;

/// The file with a model's packed weights in one requested format. The file may not exist yet.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    /// The source files as they were before the load read them.
    source: Source,
}

impl Sidecar {
    /// `first_plan` describes the packed layout if every matrix fits. Different layouts must have different texts.
    pub fn of(folder: &ModelFolder, first_plan: &str) -> Result<Self> {
        Self::in_directory(&paths::packed_weights()?, &folder.weights, first_plan)
    }

    fn in_directory(directory: &Path, weights: &[PathBuf], first_plan: &str) -> Result<Self> {
        let source = Source::of(weights, first_plan)?;
        let path = directory.join(format!("{}.packed", source.name()?));
        Ok(Self { path, source })
    }

    /// The matrices that an earlier load of the same files could not pack: empty if all fitted, or without a cached file.
    pub fn unfit(&self) -> BTreeSet<String> {
        self.try_unfit().unwrap_or_default()
    }

    fn try_unfit(&self) -> Result<BTreeSet<String>> {
        let mut head = Vec::new();
        File::open(&self.path)?.take(PACKED_OFFSET as u64).read_to_end(&mut head)?;
        let Header { source, unfit, .. } = Header::read(&head)?;
        ensure!(source.has_same_files(&self.source), "packed from other files");
        Ok(unfit)
    }

    /// The packed weights of an earlier load, if they are intact and match these files and this plan. The check reads the
    /// whole file, so its pages are in memory for the first token.
    pub fn read(&self, plan: &str, pool: &Pool) -> Option<Region> {
        let packed = self.try_read(plan, pool).ok()?;
        // Marks the file as used, best effort.
        let used = |file: File| file.set_modified(SystemTime::now());
        let _ = File::options().write(true).open(&self.path).and_then(used);
        Some(packed)
    }

    fn try_read(&self, plan: &str, pool: &Pool) -> Result<Region> {
        let file = File::open(&self.path)?;
        // SAFETY: a file has this name only when it is complete, and it is never written again, only replaced or removed; both
        // keep the mapping valid. If another process truncates it in place, this process ends, as with any mapped weights.
        let mapped = Region::from_file(unsafe { Mmap::map(&file) }?);
        let header = Header::read(mapped.bytes())?;
        ensure!(header.source == self.source.with_plan(plan), "packed from other files, or by another plan");
        let end = PACKED_OFFSET.checked_add(header.bytes).filter(|end| *end <= mapped.bytes().len());
        let packed = mapped.part(PACKED_OFFSET..end.context("truncated")?);
        ensure!(checksum(pool, packed.bytes()) == header.sum, "the checksum differs");
        Ok(packed)
    }

    /// Stores the packed weights of this plan and the list of unfit matrices, in place of an older file. If space is short, the
    /// least recently used files are removed.
    pub fn write(&self, plan: &str, unfit: &BTreeSet<String>, packed: &Region, pool: &Pool) -> Result<()> {
        let write = || -> Result<()> {
            let directory = self.path.parent().context("no folder")?;
            std::fs::create_dir_all(directory)?;
            let (bytes, sum) = (packed.bytes().len(), checksum(pool, packed.bytes()));
            make_room(directory, (PACKED_OFFSET + bytes) as u64, &self.path, free_bytes)?;
            let part = temporary_path(&self.path);
            let header = Header { source: self.source.with_plan(plan), unfit: unfit.clone(), bytes, sum };
            let written =
                write_to(&part, &header, packed).and_then(|()| Ok(std::fs::rename(&part, &self.path)?));
            if written.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            written
        };
        write().with_context(|| format!("cannot write packed weights to `{}`", self.path.display()))
    }
}

/// Writes the header and the packed memory, without waiting for the disk: the checksum detects a file that a power cut left
/// incomplete.
fn write_to(path: &Path, header: &Header, packed: &Region) -> Result<()> {
    let mut file = File::create(path)?;
    let mut head = header.to_bytes()?;
    head.resize(PACKED_OFFSET, 0);
    file.write_all(&head)?;
    file.write_all(packed.bytes())?;
    Ok(())
}

const MAGIC: &[u8; 8] = b"lmrspack";

/// The source files and the plan of packed weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Source {
    layout: u32,
    plan: String,
    /// Path, bytes, and modification time in nanoseconds: they identify a file without reading it.
    files: Vec<(PathBuf, u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    source: Source,
    /// The GGUF names of the matrices that the format cannot hold. The plan stores these matrices in another format.
    #[serde(default)]
    unfit: BTreeSet<String>,
    /// Bytes of the packed memory.
    bytes: usize,
    /// The checksum of these bytes.
    sum: u64,
}

impl Source {
    fn of(weights: &[PathBuf], plan: &str) -> Result<Self> {
        let file = |path: &PathBuf| {
            let location = || format!("`{}`", path.display());
            let path = path.canonicalize().with_context(location)?;
            let metadata = path.metadata().with_context(location)?;
            let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok((path, metadata.len(), u64::try_from(changed.as_nanos())?))
        };
        let files = weights.iter().map(file).collect::<Result<_>>()?;
        Ok(Self { layout: LAYOUT_VERSION, plan: paths::digest(plan.as_bytes()), files })
    }

    fn with_plan(&self, plan: &str) -> Self {
        Self { plan: paths::digest(plan.as_bytes()), ..self.clone() }
    }

    /// Whether the files are the same, under any plan.
    fn has_same_files(&self, other: &Self) -> bool {
        (self.layout, &self.files) == (other.layout, &other.files)
    }

    /// The file name, from the paths and the plan alone. So packed weights of changed files replace the older ones.
    fn name(&self) -> Result<String> {
        let paths: Vec<_> = self.files.iter().map(|(path, ..)| path).collect();
        Ok(format!("{}-{}", paths::digest(&serde_json::to_vec(&paths)?), self.plan))
    }
}

impl Header {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        ensure!(json.len() <= PACKED_OFFSET - 32, "too many files or matrices for a header");
        let (length, digest) = ((json.len() as u64).to_le_bytes(), paths::digest(&json));
        Ok([MAGIC, length.as_slice(), digest.as_bytes(), &json].concat())
    }

    fn read(file: &[u8]) -> Result<Self> {
        let (magic, rest) = file.split_first_chunk::<8>().context("truncated")?;
        let (length, rest) = rest.split_first_chunk::<8>().context("truncated")?;
        let (digest, rest) = rest.split_first_chunk::<16>().context("truncated")?;
        ensure!(magic == MAGIC, "not a file of packed weights");
        let json = rest.get(..usize::try_from(u64::from_le_bytes(*length))?).context("truncated")?;
        ensure!(paths::digest(json).as_bytes() == digest, "a damaged header");
        Ok(serde_json::from_slice(json)?)
    }
}

/// The most bytes of all packed files together.
const MAX_CACHE_BYTES: u64 = 20_000_000_000;
/// The bytes of the disk that stay free.
const MIN_FREE_BYTES: u64 = 1_000_000_000;
/// The age from which an incomplete file counts as abandoned.
const ABANDONED_AGE: Duration = Duration::from_secs(3600);

/// A temporary name for a file that is being written, different each time: two loads in a process may write the same file.
fn temporary_path(path: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("part-{}-{count}", std::process::id()))
}

/// Removes abandoned files, and then others (chosen by `shrink`) until `bytes` more fit into the limit and onto the disk. If
/// even an empty cache would not free enough of the disk, no file is removed for the disk. The new file replaces `replaced`;
/// `free_bytes` returns the free space of the disk.
fn make_room(
    directory: &Path,
    bytes: u64,
    replaced: &Path,
    free_bytes: impl Fn(&Path) -> Result<u64>,
) -> Result<()> {
    ensure!(bytes <= MAX_CACHE_BYTES, "{bytes} bytes are more than the limit of {MAX_CACHE_BYTES}");
    let remaining = shrink(directory, MAX_CACHE_BYTES - bytes, replaced);
    let missing_bytes = || Ok::<_, Error>((bytes + MIN_FREE_BYTES).saturating_sub(free_bytes(directory)?));
    let missing = missing_bytes()?;
    if 0 < missing && missing <= remaining {
        shrink(directory, remaining - missing, replaced);
    }
    ensure!(missing_bytes()? == 0, "the disk has less than {} bytes free", bytes + MIN_FREE_BYTES);
    Ok(())
}

/// Removes abandoned files. Of the others, from the most recently used on, it keeps each one that still fits into `limit`
/// bytes. Returns the remaining bytes. `replaced` stays and does not count.
fn shrink(directory: &Path, limit: u64, replaced: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let mut remaining = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else { continue };
        let last_used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(OsStr::to_str) {
            Some("packed") if path != replaced => remaining.push((last_used, metadata.len(), path)),
            Some(part)
                if part.starts_with("part-") && last_used.elapsed().is_ok_and(|age| age > ABANDONED_AGE) =>
            {
                remove(&path)
            }
            _ => {}
        }
    }
    remaining.sort_unstable_by(|a, b| b.cmp(a));
    let mut total = 0_u64;
    for (_, bytes, path) in remaining {
        total = total.saturating_add(bytes);
        if total > limit {
            remove(&path);
            total -= bytes;
        }
    }
    total
}

/// Removes a file; failures do not matter, because another process may have removed it or have it mapped.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// The space that an unprivileged user can still write.
fn free_bytes(folder: &Path) -> Result<u64> {
    let disk = rustix::fs::statvfs(folder);
    let disk = disk.with_context(|| format!("cannot read the free space of `{}`", folder.display()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Bytes that one thread sums at a time.
const SUMMED_BYTES: usize = 4 << 20;
const LANES: usize = 8;

/// A checksum that finds damage at the speed of memory. It is not cryptographic.
fn checksum(pool: &Pool, bytes: &[u8]) -> u64 {
    let chunks: Vec<&[u8]> = bytes.chunks(SUMMED_BYTES).collect();
    let sums: Vec<_> = chunks.iter().map(|_| AtomicU64::new(0)).collect();
    pool.share(chunks.len(), &|index, _| sums[index].store(chunk_sum(chunks[index]), Ordering::Relaxed));
    mix(sums.into_iter().map(AtomicU64::into_inner).chain([bytes.len() as u64]))
}

/// Sums the words (8 bytes) of each of eight lanes, and sums each lane's intermediate sums again, so that the order of the
/// words matters (after Fletcher). Eight lanes fill a vector register.
fn chunk_sum(bytes: &[u8]) -> u64 {
    let (mut sums, mut sums_of_sums) = ([0_u64; LANES], [0_u64; LANES]);
    let mut add = |line: &[u8; 8 * LANES]| {
        for (lane, word) in line.as_chunks::<8>().0.iter().enumerate() {
            sums[lane] = sums[lane].wrapping_add(u64::from_le_bytes(*word));
            sums_of_sums[lane] = sums_of_sums[lane].wrapping_add(sums[lane]);
        }
    };
    let (lines, rest) = bytes.as_chunks::<{ 8 * LANES }>();
    lines.iter().for_each(&mut add);
    let mut last = [0; 8 * LANES];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    mix(sums.into_iter().chain(sums_of_sums))
}

/// FNV-1a on whole words; the shift lets high bits change low ones.
fn mix(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}
