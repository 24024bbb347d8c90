//! Packed weights of earlier loads, kept on disk: the next load of the same files maps them and packs nothing.
//!
//! One file for each model and form of its weights, under `packed/` in the data directory: a header that says what was packed,
//! then the memory as the load had filled it. It is a convenience. Whatever is wrong with it (damaged, of other files, of an
//! older layout, no room on the disk), the load goes on without it.
//!
//! Only packing tells which matrices a format cannot hold. The header lists them, and the file is named after the plan of a load
//! that knows of none: so the next load reads the list first, and packs nothing to find them again.

#![expect(unsafe_code, reason = "a file is mapped")]

mod header;
mod shelf;
mod sum;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;
use model_files::ModelFolder;

use crate::pool::Pool;
use crate::region::Region;
use header::{Header, Source};

/// Raised whenever what is packed lies in memory in another way.
pub const LAYOUT: u32 = 2;
/// Where the packed weights begin in their file: at a page.
const BEGIN: usize = 1 << 16;

/// Where the packed weights of a model in one form are, or will be.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    /// The files as they were before the load read them.
    source: Source,
}

impl Sidecar {
    /// `first_plan` says what would lie where in the memory that is kept if every matrix fitted, in words that change whenever
    /// it would lie otherwise.
    pub fn of(folder: &ModelFolder, first_plan: &str) -> Result<Self> {
        Self::within(&places::data_dir()?.join("packed"), &folder.weights, first_plan)
    }

    fn within(shelf: &Path, weights: &[PathBuf], first_plan: &str) -> Result<Self> {
        let source = Source::of(weights, first_plan)?;
        let path = shelf.join(format!("{}.packed", source.name()?));
        Ok(Self { path, source })
    }

    /// The matrices that an earlier load of these very files could not pack: empty where all fitted, or nothing is kept.
    pub fn unfit(&self) -> BTreeSet<String> {
        self.try_unfit().unwrap_or_default()
    }

    fn try_unfit(&self) -> Result<BTreeSet<String>> {
        let mut head = Vec::new();
        File::open(&self.path)?.take(BEGIN as u64).read_to_end(&mut head)?;
        let Header { source, unfit, .. } = Header::read(&head)?;
        ensure!(source.has_files_of(&self.source), "made of other files");
        Ok(unfit)
    }

    /// What an earlier load kept, if it is whole, of these very files and of this plan. It is read as a whole for that, and its
    /// pages are near when the first token needs them.
    pub fn read(&self, plan: &str, pool: &Pool) -> Option<Region> {
        let packed = self.try_read(plan, pool).ok()?;
        // Best effort: it counts as used now.
        let used = |file: File| file.set_modified(SystemTime::now());
        let _ = File::options().write(true).open(&self.path).and_then(used);
        Some(packed)
    }

    fn try_read(&self, plan: &str, pool: &Pool) -> Result<Region> {
        let file = File::open(&self.path)?;
        // SAFETY: a file has its name here only when it is whole, and nobody writes to it again: it is replaced or removed,
        // which leaves what is mapped as it is. Who cuts it off in place ends this process, as with any mapped weights.
        let whole = Region::of_file(unsafe { Mmap::map(&file) }?);
        let header = Header::read(whole.bytes())?;
        ensure!(header.source == self.source.by(plan), "made of other files, or by another plan");
        let end = BEGIN.checked_add(header.bytes).filter(|end| *end <= whole.bytes().len());
        let packed = whole.part(BEGIN..end.context("cut off")?);
        ensure!(sum::sum(pool, packed.bytes()) == header.sum, "damaged");
        Ok(packed)
    }

    /// Keeps what was packed by this plan, and which matrices did not fit, in place of what was kept before. What was not used
    /// for longest goes where there is too much.
    pub fn write(&self, plan: &str, unfit: &BTreeSet<String>, packed: &Region, pool: &Pool) -> Result<()> {
        let write = || -> Result<()> {
            let shelf = self.path.parent().context("no folder")?;
            std::fs::create_dir_all(shelf)?;
            let (bytes, sum) = (packed.bytes().len(), sum::sum(pool, packed.bytes()));
            shelf::make_room(shelf, (BEGIN + bytes) as u64, &self.path, shelf::free_bytes)?;
            let part = shelf::part_of(&self.path);
            let header = Header { source: self.source.by(plan), unfit: unfit.clone(), bytes, sum };
            let written =
                write_to(&part, &header, packed).and_then(|()| Ok(std::fs::rename(&part, &self.path)?));
            if written.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            written
        };
        write().with_context(|| format!("cannot keep packed weights as `{}`", self.path.display()))
    }
}

/// Nothing waits until it is on the disk: a file that a power cut left in pieces is found out by its sum.
fn write_to(path: &Path, header: &Header, packed: &Region) -> Result<()> {
    let mut file = File::create(path)?;
    let mut head = header.to_bytes()?;
    head.resize(BEGIN, 0);
    file.write_all(&head)?;
    file.write_all(packed.bytes())?;
    Ok(())
}
