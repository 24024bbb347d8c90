//! Packed weights of earlier loads, kept on disk: the next load of the same files maps them and packs nothing.
//!
//! One file for each model and form of its weights, under `packed/` in the data directory: a header that says what was packed
//! and where each matrix lies, then the matrices as they lie in memory. It is a convenience. Whatever is wrong with it (damaged,
//! of other files, of an older layout, no room on the disk), the load goes on without it.

#![expect(unsafe_code, reason = "a file is mapped")]

mod header;
mod shelf;
mod sum;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;
use model_files::ModelFolder;

use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::region::Region;
use header::{Entry, Header, Source};

/// Raised whenever what is packed lies in memory in another way.
pub const LAYOUT: u32 = 1;
/// Where a matrix may begin: at a page.
const PAGE: usize = 4096;

/// Where the packed weights of a model in one form are, or will be.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    source: Source,
}

/// Matrices by the names under which they were kept.
pub type Packed = HashMap<String, Matrix>;

impl Sidecar {
    /// `form` names what the weights are packed as, such as `q8_0`.
    pub fn of(folder: &ModelFolder, form: &str) -> Result<Self> {
        Self::within(&places::data_dir()?.join("packed"), &folder.weights, form)
    }

    fn within(shelf: &Path, weights: &[PathBuf], form: &str) -> Result<Self> {
        let source = Source::of(weights, form)?;
        let path = shelf.join(format!("{}-{form}.packed", source.digest()?));
        Ok(Self { path, source })
    }

    /// What an earlier load kept, if it is whole and of these very files. It is read as a whole for that, and its pages are
    /// near when the first token needs them.
    pub fn read(&self, pool: &Pool) -> Option<Packed> {
        let packed = self.try_read(pool).ok()?;
        // Best effort: it counts as used now.
        let _ = File::options()
            .write(true)
            .open(&self.path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some(packed)
    }

    fn try_read(&self, pool: &Pool) -> Result<Packed> {
        let file = File::open(&self.path)?;
        // SAFETY: a file has its name here only when it is whole, and nobody writes to it again: it is replaced or removed,
        // which leaves what is mapped as it is. Who cuts it off in place ends this process, as with any mapped weights.
        let region = Region::of_file(unsafe { Mmap::map(&file) }?);
        let header = Header::read(region.bytes())?;
        ensure!(header.source == self.source, "made of other files");
        let matrix = |entry: Entry| {
            let place = entry.place(region.bytes().len())?;
            let matrix = Matrix::new(entry.format()?, entry.outputs, entry.inputs, region.part(place));
            ensure!(sum::sum(pool, matrix.region().bytes()) == entry.sum, "`{}` is damaged", entry.name);
            Ok((entry.name, matrix))
        };
        header.matrices.into_iter().map(matrix).collect()
    }

    /// Keeps these matrices, in place of what was kept before. What was not used for longest goes where there is too much.
    pub fn write(&self, matrices: &[(&str, &Matrix)], pool: &Pool) -> Result<()> {
        let shelf = self.path.parent().context("no folder")?;
        let made = std::fs::create_dir_all(shelf);
        made.with_context(|| format!("cannot write `{}`", shelf.display()))?;
        let header = Header::of(self.source.clone(), matrices, |bytes| sum::sum(pool, bytes));
        shelf::make_room(shelf, header.file_bytes(), &self.path)?;
        let part = shelf::part_of(&self.path);
        let written =
            write_to(&part, &header, matrices).and_then(|()| Ok(std::fs::rename(&part, &self.path)?));
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written.with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

/// Nothing waits until it is on the disk: a file that a power cut left in pieces is found out by its sums.
fn write_to(path: &Path, header: &Header, matrices: &[(&str, &Matrix)]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut at = 0;
    let mut put = |bytes: &[u8], at: &mut usize| -> Result<()> {
        file.write_all(bytes)?;
        *at += bytes.len();
        Ok(())
    };
    put(&header.bytes()?, &mut at)?;
    for (entry, (_, matrix)) in header.matrices.iter().zip(matrices) {
        put(&vec![0; entry.at - at], &mut at)?;
        put(matrix.region().bytes(), &mut at)?;
    }
    file.flush()?;
    Ok(())
}
