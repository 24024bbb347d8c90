//! Writing a model: the header of every file is computed first, then threads write the tensors, a few MB at a time
//! (a matrix that is transposed, as a whole). The output gets its name only when it is complete.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use crate::architecture::{GgufLayout, TensorSpec};
use crate::weights::Weights;
use crate::{Dtype, Format, Problem, size};

pub(crate) struct FilePlan {
    pub name: String,
    /// Everything before the tensors.
    pub header: Vec<u8>,
    pub tensors: Vec<TensorPlan>,
    /// Tensors that the network does not have, such as RoPE factors: the offset in the file, and the bytes.
    pub extra_tensors: Vec<(u64, Vec<u8>)>,
    pub bytes: u64,
}

pub(crate) struct TensorPlan {
    /// An index into the tensors.
    pub spec: usize,
    pub dtype: Dtype,
    /// From the beginning of the file.
    pub offset: u64,
}

/// Gets the bytes of tensors written so far, and the bytes of the whole files. An error that it returns ends the work and
/// removes the output.
pub type OnProgress<'a> = &'a (dyn Fn(u64, u64) -> Result<()> + Sync);

/// How many numbers one step writes, in whole rows: enough for long reads. It does not depend on the model's size, so memory
/// does not grow with the model. Only a transposed matrix is written in one step.
const STEP_NUMBERS: u64 = 1 << 20;

/// Writes the files into `folder`.
pub(crate) fn write_files(
    folder: &Path,
    files: &[FilePlan],
    specs: &[TensorSpec],
    format: Format,
    weights: &dyn Weights,
    on_progress: OnProgress,
) -> Result<()> {
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    check_space(folder, total, free_bytes(folder)?)?;
    // A first call before the work, so that a user can cancel early.
    on_progress(0, total)?;
    let mut opened = Vec::new();
    for plan in files {
        let path = folder.join(&plan.name);
        let file = File::create(&path).with_context(|| cannot_write(&path))?;
        let write_header = || -> std::io::Result<()> {
            file.set_len(plan.bytes)?;
            reserve(&file, plan.bytes)?;
            file.write_all_at(&plan.header, 0)?;
            plan.extra_tensors.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))
        };
        write_header().with_context(|| cannot_write(&path))?;
        opened.push((path, file));
    }
    let steps = steps(files, specs, format);
    let (next, progress) = (AtomicUsize::new(0), Mutex::new((0_u64, None::<anyhow::Error>)));
    let work = || {
        let mut bytes = Vec::new();
        while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
            let written = step.write(&opened[step.file], specs, format, weights, &mut bytes);
            let mut progress = progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let (done_bytes, first_error) = &mut *progress;
            *done_bytes += bytes.len() as u64;
            if let Err(error) = written.and_then(|()| on_progress(*done_bytes, total)) {
                first_error.get_or_insert(error);
            }
            if first_error.is_some() {
                return;
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (_, error) = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    error.map_or(Ok(()), Err)
}

/// Reserves the space now, so that no other program can take it. A file system that cannot reserve is not an error.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) -> std::io::Result<()> {
    Ok(())
}

fn check_space(folder: &Path, needed: u64, free: u64) -> Result<()> {
    // The folder has a temporary name that the user does not know.
    let folder = parent_of(folder);
    ensure!(
        needed <= free,
        Problem::new(
            format!(
                "not enough space in `{}`: {} needed, {} free",
                folder.display(),
                size(needed),
                size(free)
            ),
            "choose another disk, or a smaller dtype"
        )
    );
    Ok(())
}

/// A range of rows of one tensor.
struct Step {
    file: usize,
    spec: usize,
    dtype: Dtype,
    rows: Range<u64>,
    offset: u64,
    bytes: u64,
}

impl Step {
    fn write(
        &self,
        (path, file): &(PathBuf, File),
        specs: &[TensorSpec],
        format: Format,
        weights: &dyn Weights,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        bytes.resize(usize::try_from(self.bytes)?, 0);
        weights.encode(&specs[self.spec], format, self.rows.clone(), self.dtype, bytes)?;
        file.write_all_at(bytes, self.offset).with_context(|| cannot_write(path))
    }
}

fn steps(files: &[FilePlan], specs: &[TensorSpec], format: Format) -> Vec<Step> {
    let mut steps = Vec::new();
    for (file, plan) in files.iter().enumerate() {
        for tensor in &plan.tensors {
            let spec = &specs[tensor.spec];
            let (rows, columns) = spec.rows_in(format);
            let row_bytes = tensor.dtype.bytes(columns);
            let is_transposed = spec.gguf_layout == GgufLayout::Transposed;
            let step_rows = if is_transposed { rows } else { (STEP_NUMBERS / columns).clamp(1, rows) };
            let mut first = 0;
            while first < rows {
                let end = (first + step_rows).min(rows);
                steps.push(Step {
                    file,
                    spec: tensor.spec,
                    dtype: tensor.dtype,
                    rows: first..end,
                    offset: tensor.offset + first * row_bytes,
                    bytes: (end - first) * row_bytes,
                });
                first = end;
            }
        }
    }
    steps
}

/// The dtype of a tensor in a model of the requested dtype. In GGUF some tensors are always f32, and rows that do not divide
/// into quantization blocks take `q8_0`, else `f16`.
pub(crate) fn dtype_of(spec: &TensorSpec, requested: Dtype, format: Format) -> Dtype {
    if format == Format::Safetensors {
        return requested;
    }
    if spec.is_f32_in_gguf() {
        return Dtype::F32;
    }
    let (_, columns) = spec.rows_in(Format::Gguf);
    let fits = |dtype: &Dtype| columns.is_multiple_of(dtype.block().0 as u64);
    [requested, Dtype::Q8_0, Dtype::F16].into_iter().find(fits).unwrap_or(Dtype::F16)
}

/// The bytes that an unprivileged user can still write to the disk of this folder. The folder need not exist yet.
pub(crate) fn free_bytes(folder: &Path) -> Result<u64> {
    let folder = std::path::absolute(folder)?;
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let disk = rustix::fs::statvfs(existing)
        .with_context(|| format!("cannot read the free space of `{}`", existing.display()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A temporary folder in the parent folder of the output.
pub(crate) struct Staged {
    folder: PathBuf,
    output: PathBuf,
    /// The parent folders that `new` created, innermost first.
    created_parents: Vec<PathBuf>,
}

impl Staged {
    /// Creates the temporary folder. Refuses an output that exists, unless it is an empty folder.
    pub fn new(output: &Path) -> Result<Self> {
        let exists = output.symlink_metadata().is_ok() && !is_empty_folder(output);
        ensure!(
            !exists,
            Problem::new(
                format!("`{}` exists already", output.display()),
                "name another path with `--out`, or remove it first"
            )
        );
        let name = output
            .file_name()
            .with_context(|| format!("`{}` is not a path for a model", output.display()))?;
        let parent = parent_of(output);
        let ancestors = parent.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let created_parents =
            ancestors.take_while(|folder| !folder.exists()).map(Path::to_path_buf).collect();
        let name = name.to_string_lossy();
        remove_abandoned(parent, Some(&name));
        let folder = parent.join(temporary_name(&name));
        let staged = Self { folder, output: output.to_path_buf(), created_parents };
        let created = std::fs::create_dir_all(&staged.folder);
        created.with_context(|| cannot_write(parent))?;
        Ok(staged)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, content).with_context(|| cannot_write(&path))
    }

    /// Renames the folder to the output.
    pub fn finish(self) -> Result<()> {
        self.rename(&self.folder)
    }

    /// Renames one file of the folder to the output and removes the others.
    pub fn finish_file(self, name: &str) -> Result<()> {
        self.rename(&self.folder.join(name))
    }

    fn rename(&self, from: &Path) -> Result<()> {
        std::fs::rename(from, &self.output).with_context(|| cannot_write(&self.output))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // The folder no longer exists if it became the output; otherwise removal is best effort.
        let _ = std::fs::remove_dir_all(&self.folder);
        // `remove_dir` leaves folders with content, such as the parents of a finished output.
        let _ = self.created_parents.iter().try_for_each(std::fs::remove_dir);
    }
}

/// Writes a file or a folder under a temporary name beside its path, then renames it.
pub(crate) fn write_atomically(path: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let temporary =
        path.with_file_name(temporary_name(&path.file_name().unwrap_or_default().to_string_lossy()));
    let written = std::fs::create_dir_all(parent_of(path))
        .and_then(|()| write(&temporary))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: the first error matters more.
        let _ = std::fs::remove_file(&temporary).or_else(|_| std::fs::remove_dir_all(&temporary));
    }
    written.with_context(|| cannot_write(path))
}

pub(crate) fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

/// The text before the process id in a temporary name.
const PROCESS_MARK: &str = ".part-";

/// The name of an output while this process writes it.
pub(crate) fn temporary_name(name: &str) -> String {
    format!(".{name}{PROCESS_MARK}{}", std::process::id())
}

/// Removes the temporary folders of killed processes: those of one output, or all in this folder. Best effort.
pub(crate) fn remove_abandoned(folder: &Path, output: Option<&str>) {
    let (Ok(entries), true) = (std::fs::read_dir(folder), Path::new("/proc/self").exists()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let parts = name.strip_prefix('.').and_then(|name| name.rsplit_once(PROCESS_MARK));
        let Some((_, process)) = parts.filter(|(name, _)| output.is_none_or(|output| output == *name)) else {
            continue;
        };
        let is_number = !process.is_empty() && process.bytes().all(|digit| digit.is_ascii_digit());
        if is_number && !Path::new("/proc").join(process).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_removes_temporary_output_of_killed_processes_and_not_of_running_ones() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        // No process has such an id.
        let (abandoned, unrelated) = (".output.part-4294967295", ".other.part-4294967295");
        let running = format!(".output{PROCESS_MARK}1");
        for name in [abandoned, unrelated, &running] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        drop(Staged::new(&folder.join("output")).unwrap());
        let exist = [abandoned, unrelated, &running].map(|name| folder.join(name).exists());
        assert_eq!(exist, [false, true, true]);
    }
}
