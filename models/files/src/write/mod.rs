//! Writing a model: the header of every file is computed first, then threads write the tensors, a few MB at a time. The
//! output gets its name only when it is complete.

pub(crate) mod model;
mod staged;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use crate::architecture::{Layout, Order, Part};
use crate::weights::Weights;
use crate::{Dtype, Format, size, space::free_bytes};

pub(crate) use staged::{Staged, part_name, remove_abandoned};

/// The plan of a file.
pub(crate) struct FilePlan {
    pub name: String,
    /// Everything before the tensors.
    pub header: Vec<u8>,
    pub tensors: Vec<TensorPlan>,
    /// Bytes that come from no weights, and their offsets.
    pub literals: Vec<(u64, Vec<u8>)>,
    pub bytes: u64,
}

pub(crate) struct TensorPlan {
    /// An index into the parts.
    pub part: usize,
    pub dtype: Dtype,
    pub offset: u64,
}

/// Progress callback: bytes done, bytes in total. An error ends the work and removes the output.
pub type Watch<'a> = &'a (dyn Fn(u64, u64) -> Result<()> + Sync);

/// Numbers of one step: enough for long reads, few enough that memory does not grow with the model.
const STEP: u64 = 1 << 20;

/// Writes the files into `folder`.
pub(crate) fn fill(
    folder: &Path,
    files: &[FilePlan],
    parts: &[Part],
    layout: Layout,
    weights: &dyn Weights,
    watch: Watch,
) -> Result<()> {
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    check_space(folder, total, free_bytes(folder)?)?;
    // Reported once before the work, so that a user can cancel early.
    watch(0, total)?;
    let mut opened = Vec::new();
    for plan in files {
        let path = folder.join(&plan.name);
        let file = File::create(&path).with_context(|| format!("cannot write `{}`", path.display()))?;
        let begin = || -> std::io::Result<()> {
            file.set_len(plan.bytes)?;
            reserve(&file, plan.bytes)?;
            file.write_all_at(&plan.header, 0)?;
            plan.literals.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))
        };
        begin().with_context(|| format!("cannot write `{}`", path.display()))?;
        opened.push((path, file));
    }
    let steps = steps(files, parts, layout);
    let (next, done) = (AtomicUsize::new(0), Mutex::new((0_u64, None::<anyhow::Error>)));
    let work = || {
        let mut bytes = Vec::new();
        while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
            let written = step.write(&opened[step.file], parts, layout, weights, &mut bytes);
            let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.0 += bytes.len() as u64;
            let told = written.and_then(|()| watch(done.0, total));
            if let Err(error) = told {
                done.1.get_or_insert(error);
            }
            if done.1.is_some() {
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
    let (_, failed) = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

/// Reserves the space now, so that other programs cannot fill the disk. A file system without support is no error.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, fallocate};
    let Ok(bytes) = i64::try_from(bytes) else { return Ok(()) };
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(error @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) -> std::io::Result<()> {
    Ok(())
}

fn check_space(folder: &Path, needed: u64, free: u64) -> Result<()> {
    // The folder has a temporary name that the user does not know.
    let place = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(
        needed <= free,
        "not enough space in `{}`: {} needed, {} free\nhint: choose another disk, or a smaller dtype",
        place.display(),
        size(needed),
        size(free)
    );
    Ok(())
}

/// A range of rows of one tensor.
struct Step {
    file: usize,
    part: usize,
    dtype: Dtype,
    rows: Range<u64>,
    offset: u64,
    bytes: u64,
}

impl Step {
    fn write(
        &self,
        (path, file): &(PathBuf, File),
        parts: &[Part],
        layout: Layout,
        weights: &dyn Weights,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        bytes.resize(usize::try_from(self.bytes)?, 0);
        weights.encode(&parts[self.part], layout, self.rows.clone(), self.dtype, bytes)?;
        file.write_all_at(bytes, self.offset).with_context(|| format!("cannot write `{}`", path.display()))
    }
}

fn steps(files: &[FilePlan], parts: &[Part], layout: Layout) -> Vec<Step> {
    let mut steps = Vec::new();
    for (file, plan) in files.iter().enumerate() {
        for tensor in &plan.tensors {
            let part = &parts[tensor.part];
            let (rows, columns) = part.rows_in(layout);
            let row_bytes = tensor.dtype.bytes(columns);
            let whole = part.order == Order::Transposed;
            let at_once = if whole { rows } else { (STEP / columns).clamp(1, rows) };
            let mut first = 0;
            while first < rows {
                let end = (first + at_once).min(rows);
                steps.push(Step {
                    file,
                    part: tensor.part,
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

/// The dtype of a part in a model of the requested dtype. In GGUF some parts are always f32, and rows that do not divide
/// into blocks take the next finer format that fits.
pub(crate) fn dtype_of(part: &Part, asked: Dtype, format: Format) -> Dtype {
    if format == Format::Safetensors {
        return asked;
    }
    if part.is_f32_in_gguf() {
        return Dtype::F32;
    }
    let (_, columns) = part.rows_in(Layout::Gguf);
    let fits = |dtype: &Dtype| columns.is_multiple_of(dtype.block().0 as u64);
    [asked, Dtype::Q8_0, Dtype::F16].into_iter().find(fits).unwrap_or(Dtype::F16)
}
