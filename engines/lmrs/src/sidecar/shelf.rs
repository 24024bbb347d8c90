//! The cache directory of packed weights, and its disk limits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Error, Result, ensure};

/// The most bytes of all files together.
const LIMIT_BYTES: u64 = 20_000_000_000;
const LEFT_FREE_BYTES: u64 = 1_000_000_000;
/// The age from which an incomplete file counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A temporary name for a file that is being written, different each time: two loads in a process may write the same file.
pub fn part_of(path: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("part-{}-{count}", std::process::id()))
}

/// Removes abandoned files, and then the least recently used ones until `bytes` more fit. The new file replaces `instead`;
/// `free_bytes` returns the free space of the disk. If even an empty cache would not make enough room, everything stays.
pub fn make_room(
    shelf: &Path,
    bytes: u64,
    instead: &Path,
    free_bytes: impl Fn(&Path) -> Result<u64>,
) -> Result<()> {
    ensure!(bytes <= LIMIT_BYTES, "{bytes} bytes are more than are kept");
    let kept = shrink(shelf, LIMIT_BYTES - bytes, instead);
    let lacking = || Ok::<_, Error>((bytes + LEFT_FREE_BYTES).saturating_sub(free_bytes(shelf)?));
    let first = lacking()?;
    if 0 < first && first <= kept {
        shrink(shelf, kept - first, instead);
    }
    ensure!(lacking()? == 0, "the disk has no room for {bytes} bytes");
    Ok(())
}

/// Removes files beyond the limit. Returns the bytes that remain.
pub fn shrink(shelf: &Path, limit: u64, instead: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(shelf) else { return 0 };
    let mut kept = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = entry.metadata() else { continue };
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(OsStr::to_str) {
            Some("packed") if path != instead => kept.push((used, metadata.len(), path)),
            Some(part) if part.starts_with("part-") && used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                remove(&path)
            }
            _ => {}
        }
    }
    kept.sort_unstable_by(|one, other| other.cmp(one));
    let mut held = 0_u64;
    for (_, bytes, path) in kept {
        held = held.saturating_add(bytes);
        if held > limit {
            remove(&path);
            held -= bytes;
        }
    }
    held
}

/// Removes a file; failures do not matter, because another process may have removed it or have it mapped.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// The space that an unprivileged user can still write.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let disk = nix::sys::statvfs::statvfs(folder);
    let disk = disk.with_context(|| format!("cannot ask for the free space of `{}`", folder.display()))?;
    // The width of these numbers differs between systems.
    #[expect(clippy::useless_conversion, reason = "u32 on some systems")]
    Ok(u64::from(disk.blocks_available()).saturating_mul(u64::from(disk.fragment_size())))
}
