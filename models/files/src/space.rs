//! The free space of a disk.

use std::path::Path;

use anyhow::{Context, Result};

/// The bytes that an unprivileged user can still write to the disk of this folder, which need not exist yet.
pub(crate) fn free_bytes(folder: &Path) -> Result<u64> {
    let folder = std::path::absolute(folder)?;
    let there = folder.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/"));
    let disk = nix::sys::statvfs::statvfs(there)
        .with_context(|| format!("cannot ask for the free space of `{}`", there.display()))?;
    // Block counts have 32 bits on macOS.
    let blocks = disk.blocks_available() as u64;
    Ok(blocks.saturating_mul(disk.fragment_size()))
}
