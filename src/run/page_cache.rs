//! The pages of a model's files that the kernel keeps in memory. Before a launch they are dropped, so that the engine reads the
//! files from the disk, or they are filled, so that it need not.
//!
//! Mapped pages cannot be dropped, so nothing may run that has the files mapped.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The share of the files that may stay in memory: pages that another process reads again at once.
const MAX_SHARE_LEFT: f64 = 0.01;
/// Folders below a model's folder are read to this depth. Deeper ones hold no weights.
const MAX_FOLDER_DEPTH: u32 = 4;

/// Drops the kernel's copies of a model's files. An error says why they stay in memory.
pub fn drop_pages(model: &str) -> Result<()> {
    let mut pages = Pages::default();
    for path in files_of(model) {
        let file = open(&path)?;
        let in_file = || format!("the pages of `{}` cannot be dropped", path.display());
        drop_pages_of(&file).with_context(in_file)?;
        pages.add(pages_of(&file).with_context(in_file)?);
    }
    if pages.in_memory as f64 > pages.all as f64 * MAX_SHARE_LEFT {
        bail!(
            "needs the model's files out of the page cache, and {:.0} % of their pages stay there: another process has them open, \
             they are on a file system in memory, or they belong to another user",
            100.0 * pages.in_memory as f64 / pages.all as f64
        );
    }
    Ok(())
}

/// Reads the files of a model that are not in memory.
pub fn fill(model: &str) -> Result<()> {
    for path in files_of(model) {
        let mut file = open(&path)?;
        let pages = pages_of(&file).unwrap_or_default();
        if pages.in_memory < pages.all {
            std::io::copy(&mut file, &mut std::io::sink())
                .with_context(|| format!("cannot read `{}`", path.display()))?;
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// The files of a model, and the packed weights that engines keep for later loads.
fn files_of(model: &str) -> Vec<PathBuf> {
    let model = Path::new(model);
    let mut files = Vec::new();
    match model.is_dir() {
        true => add_files_below(model, MAX_FOLDER_DEPTH, &mut files),
        false => files.extend(parts_of(model)),
    }
    if let Ok(packed) = paths::packed_weights() {
        add_files_below(&packed, 1, &mut files);
    }
    files
}

fn add_files_below(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        // A model from a hub consists of links to files.
        if path.is_file() {
            files.push(path);
        } else if depth > 1 && path.is_dir() {
            add_files_below(&path, depth - 1, files);
        }
    }
}

/// The file, and the files beside it whose names differ in digits only: `model-00001-of-00002.gguf` is a part of a model.
fn parts_of(file: &Path) -> Vec<PathBuf> {
    let without_digits = |path: &Path| -> Option<String> {
        Some(path.file_name()?.to_string_lossy().chars().filter(|it| !it.is_ascii_digit()).collect())
    };
    let is_part = |path: &PathBuf| path.is_file() && without_digits(path) == without_digits(file);
    file.parent().map(|folder| entries(folder).into_iter().filter(is_part).collect()).unwrap_or_default()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Pages {
    all: usize,
    in_memory: usize,
}

impl Pages {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.in_memory += other.in_memory;
    }
}

#[cfg(target_os = "linux")]
fn drop_pages_of(file: &File) -> std::io::Result<()> {
    // A page that is not yet on the disk cannot be dropped.
    rustix::fs::fdatasync(file)?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

#[cfg(not(target_os = "linux"))]
fn drop_pages_of(_: &File) -> std::io::Result<()> {
    Err(std::io::Error::other("this is only possible on Linux"))
}

/// The pages of a file, and how many of them the kernel has in memory. It says that all are there if the file belongs to another
/// user.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no safe crate has `mincore`")]
fn pages_of(file: &File) -> std::io::Result<Pages> {
    use std::os::fd::AsRawFd;
    let length = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
    if length == 0 {
        return Ok(Pages::default());
    }
    let mut states = vec![0_u8; length.div_ceil(rustix::param::page_size())];
    // SAFETY: the mapping is new, it is never read, and it ends here. `states` has a byte for each of its pages.
    let found = unsafe {
        let (read, shared, fd) = (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
        let address = libc::mmap(std::ptr::null_mut(), length, read, shared, fd, 0);
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let found = match libc::mincore(address, length, states.as_mut_ptr()) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        libc::munmap(address, length);
        found
    };
    found?;
    // The other bits are reserved.
    let in_memory = states.iter().filter(|state| *state & 1 == 1).count();
    Ok(Pages { all: states.len(), in_memory })
}

#[cfg(not(target_os = "linux"))]
fn pages_of(_: &File) -> std::io::Result<Pages> {
    Err(std::io::Error::other("this is only possible on Linux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_folder_include_those_of_its_folders() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["model.safetensors", "part/more.bin"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "weights").unwrap();
        }
        let files = files_of(&folder.path().display().to_string());
        for name in ["model.safetensors", "part/more.bin"] {
            assert!(files.contains(&folder.path().join(name)), "{files:?}");
        }
    }

    #[test]
    fn the_files_of_a_file_are_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b-00001-of-00002.gguf"];
        let [first, second, _] = names.map(|name| folder.path().join(name));
        names.iter().for_each(|name| std::fs::write(folder.path().join(name), "weights").unwrap());
        let mut parts = parts_of(&first);
        parts.sort();
        assert_eq!(parts, [first, second]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_read_is_in_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 3 * rustix::param::page_size() + 1]).unwrap();
        fill(&file.path().display().to_string()).unwrap();
        assert_eq!(pages_of(file.as_file()).unwrap(), Pages { all: 4, in_memory: 4 });
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(pages_of(empty.as_file()).unwrap(), Pages::default());
    }
}
