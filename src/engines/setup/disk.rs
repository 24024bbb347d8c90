//! The disk space of environments, and the environments that no engine here uses any more.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::engines::manifest::Engine;

/// The bytes of its files on the disk, including files shared with other folders.
pub fn used_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let below = if metadata.is_dir() { used_bytes(&entry.path()) } else { 0 };
        Some(metadata.blocks() * 512 + below)
    });
    sizes.sum()
}

/// Environments with pins that no engine here has: of older pins or of another checkout.
pub fn unused(engines: &[Engine]) -> Result<Vec<PathBuf>> {
    let used: Vec<PathBuf> = engines.iter().filter_map(Engine::environment).collect::<Result<_>>()?;
    let entries = std::fs::read_dir(paths::data_dir()?.join("environments")).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir())).map(|it| it.path());
    let mut unused: Vec<PathBuf> =
        folders.filter(|folder| paths::interpreter(folder).is_some() && !used.contains(folder)).collect();
    unused.sort();
    Ok(unused)
}
