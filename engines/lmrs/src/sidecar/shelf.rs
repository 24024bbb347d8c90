//! The folder in which packed weights are kept, and how much of the disk it may have.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Error, Result, ensure};

/// All of it together.
const LIMIT_BYTES: u64 = 20_000_000_000;
/// What is left to others on the disk.
const LEFT_FREE_BYTES: u64 = 1_000_000_000;
/// A file that was begun so long ago is not being written any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The name of a file while it is written, another one each time: two loads of a process may keep the same.
pub fn part_of(path: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("part-{}-{count}", std::process::id()))
}

/// Removes what was not used for longest until there is room for so much more, and what was begun and left. `instead` is what
/// the new file will replace; `free_bytes` is asked how much of the disk is free. Where not even all that is kept would make
/// room enough, it stays.
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

/// What is kept afterwards, in bytes.
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

/// Another process may have been faster, or have it mapped, which is no matter.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// What a user without privileges can still write.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let disk = nix::sys::statvfs::statvfs(folder);
    let disk = disk.with_context(|| format!("cannot ask for the free space of `{}`", folder.display()))?;
    // As wide as the system makes them, which is not everywhere the same.
    #[expect(clippy::useless_conversion, reason = "u32 on some systems")]
    Ok(u64::from(disk.blocks_available()).saturating_mul(u64::from(disk.fragment_size())))
}
