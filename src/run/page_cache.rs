//! The pages of a model's files that the kernel keeps in memory. Before a launch they are dropped, so that the engine reads the
//! files from the disk, or they are filled, so that it need not.
//!
//! Mapped pages cannot be dropped, so nothing may run that has the files mapped.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The share of a file that may stay in memory: pages that another process reads again at once.
const MAX_SHARE_LEFT: f64 = 0.01;
/// The share of the files that must be in memory after they are read.
const MIN_SHARE_FILLED: f64 = 0.99;
/// Folders below a model's folder are read to this depth. Deeper ones hold no weights.
const MAX_FOLDER_DEPTH: u32 = 4;

/// Drops the kernel's copies of these files. An error says why a file stays in memory.
pub fn drop_pages(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let of_file = || format!("the pages of `{}` cannot be dropped", path.display());
        let file = File::open(path).with_context(of_file)?;
        drop_pages_of(&file).with_context(of_file)?;
        let Pages { all, in_memory } = pages_of(&file).with_context(of_file)?;
        if in_memory as f64 > all as f64 * MAX_SHARE_LEFT {
            bail!(
                "cannot read the files from the disk: {:.0} % of `{}` stays in memory; another process has it mapped, its file \
                 system is in memory, or it belongs to another user",
                100.0 * in_memory as f64 / all as f64,
                path.display()
            );
        }
    }
    Ok(())
}

/// Reads these files where they are not in memory. Returns whether they are in memory then; a file that cannot be read does not
/// count, because the engine reports it.
pub fn fill(files: &[PathBuf]) -> bool {
    let mut pages = Pages::default();
    for mut file in files.iter().filter_map(|path| File::open(path).ok()) {
        if pages_of(&file).is_ok_and(|it| it.in_memory < it.all) {
            let _ = std::io::copy(&mut file, &mut std::io::sink());
        }
        let Pages { all, in_memory } = pages_of(&file).unwrap_or_default();
        (pages.all, pages.in_memory) = (pages.all + all, pages.in_memory + in_memory);
    }
    pages.in_memory as f64 >= pages.all as f64 * MIN_SHARE_FILLED
}

/// The files of a model.
pub fn files_of(model: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    match model.is_dir() {
        true => add_files_below(model, MAX_FOLDER_DEPTH, &mut files),
        false => files.extend(parts_of(model)),
    }
    files
}

pub fn bytes_of(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum()
}

/// The files with packed weights that these processes have mapped.
pub fn packed_files_of(pids: &[u32]) -> BTreeSet<PathBuf> {
    let Ok(packed) = paths::packed_weights() else { return BTreeSet::new() };
    let maps = pids.iter().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).ok());
    let of_line = |line: &str| line.find('/').map(|at| PathBuf::from(&line[at..]));
    let files = maps.flat_map(|maps| maps.lines().filter_map(of_line).collect::<Vec<_>>());
    files.filter(|file| file.starts_with(&packed) && file.is_file()).collect()
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

/// The file, or all parts of a model whose files have names like `model-00001-of-00002.gguf`.
fn parts_of(file: &Path) -> Vec<PathBuf> {
    let model_and_count = |path: &Path| -> Option<(String, String)> {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let (part, count) = name.rsplit_once("-of-")?;
        let (model, number) = part.rsplit_once('-')?;
        number.parse::<u32>().ok().map(|_| (model.to_string(), count.to_string()))
    };
    let (Some(wanted), Some(folder)) = (model_and_count(file), file.parent()) else {
        return vec![file.to_path_buf()].into_iter().filter(|file| file.is_file()).collect();
    };
    let is_part = |path: &PathBuf| path.is_file() && model_and_count(path).as_ref() == Some(&wanted);
    entries(folder).into_iter().filter(is_part).collect()
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

#[cfg(target_os = "linux")]
fn drop_pages_of(file: &File) -> std::io::Result<()> {
    // A page that is not yet on the disk cannot be dropped. Some file systems have no pages to write.
    let _ = rustix::fs::fdatasync(file);
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

    fn folder_with(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "weights").unwrap();
        }
        folder
    }

    /// The names of the files of a model in a folder.
    fn names_of(folder: &tempfile::TempDir, model: &str) -> Vec<String> {
        let files = files_of(&folder.path().join(model));
        let name = |path: &PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
        let mut names: Vec<String> = files.iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_files_of_a_folder_include_those_of_its_folders() {
        let folder = folder_with(&["model.safetensors", "part/more.bin"]);
        assert_eq!(names_of(&folder, ""), ["model.safetensors", "part/more.bin"]);
    }

    #[test]
    fn a_model_of_several_files_does_not_include_other_models() {
        let parts = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
        let others =
            ["a-00001-of-00003.gguf", "b-00001-of-00002.gguf", "llama-3.2-3b.gguf", "llama-3.1-8b.gguf"];
        let folder = folder_with(&[&parts[..], &others].concat());
        assert_eq!(names_of(&folder, parts[0]), parts);
        assert_eq!(names_of(&folder, others[2]), [others[2]]);
        assert_eq!(names_of(&folder, "absent.gguf"), [""; 0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_read_is_in_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 3 * rustix::param::page_size() + 1]).unwrap();
        assert!(fill(&[file.path().to_path_buf()]));
        assert_eq!(pages_of(file.as_file()).unwrap(), Pages { all: 4, in_memory: 4 });
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(pages_of(empty.as_file()).unwrap(), Pages::default());
    }
}
