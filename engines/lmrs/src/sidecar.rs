//! The cache of packed weights on disk: the next load of the same files maps them instead of packing again.
//!
//! There is one file for each model and format conversion, under `packed/` in the data directory. It has a header and then the
//! packed memory. The cache is optional: if a file is damaged, outdated or of other sources, or the disk is full, the load
//! continues without it.
//!
//! Only packing reveals the matrices that a format cannot hold. The header lists them. The file is named after the plan that
//! assumes that every matrix fits, so the next load finds the list first and packs nothing twice.

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

/// The version of the packed layout. Raise it after every change.
pub const LAYOUT: u32 = 2;
/// The offset of the packed weights in their file, a multiple of the page size.
const BEGIN: usize = 1 << 16;

/// The file with a model's packed weights in one format conversion, present or future.
#[derive(Debug)]
pub struct Sidecar {
    path: PathBuf,
    /// The source files as they were before the load read them.
    source: Source,
}

impl Sidecar {
    /// `first_plan` is a text of the packed layout if every matrix fits. Different layouts must have different texts.
    pub fn of(folder: &ModelFolder, first_plan: &str) -> Result<Self> {
        Self::within(&paths::data_dir()?.join("packed"), &folder.weights, first_plan)
    }

    fn within(shelf: &Path, weights: &[PathBuf], first_plan: &str) -> Result<Self> {
        let source = Source::of(weights, first_plan)?;
        let path = shelf.join(format!("{}.packed", source.name()?));
        Ok(Self { path, source })
    }

    /// The matrices that an earlier load of the same files could not pack: empty if all fitted, or without a cached file.
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

    /// The packed weights of an earlier load, if they are intact and match these files and this plan. The check reads the whole
    /// file, so its pages are in memory for the first token.
    pub fn read(&self, plan: &str, pool: &Pool) -> Option<Region> {
        let packed = self.try_read(plan, pool).ok()?;
        // Marks the file as used, best effort.
        let used = |file: File| file.set_modified(SystemTime::now());
        let _ = File::options().write(true).open(&self.path).and_then(used);
        Some(packed)
    }

    fn try_read(&self, plan: &str, pool: &Pool) -> Result<Region> {
        let file = File::open(&self.path)?;
        // SAFETY: a file has this name only when it is complete, and it is never written again, only replaced or removed; both
        // keep the mapping valid. If another process truncates it in place, this process ends, as with any mapped weights.
        let whole = Region::of_file(unsafe { Mmap::map(&file) }?);
        let header = Header::read(whole.bytes())?;
        ensure!(header.source == self.source.by(plan), "made of other files, or by another plan");
        let end = BEGIN.checked_add(header.bytes).filter(|end| *end <= whole.bytes().len());
        let packed = whole.part(BEGIN..end.context("cut off")?);
        ensure!(sum::sum(pool, packed.bytes()) == header.sum, "damaged");
        Ok(packed)
    }

    /// Stores the packed weights of this plan and the list of unfit matrices, in place of an older file. If space is short, the
    /// least recently used files are removed.
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

/// Does not wait for the disk: the checksum detects a file that a power cut left incomplete.
fn write_to(path: &Path, header: &Header, packed: &Region) -> Result<()> {
    let mut file = File::create(path)?;
    let mut head = header.to_bytes()?;
    head.resize(BEGIN, 0);
    file.write_all(&head)?;
    file.write_all(packed.bytes())?;
    Ok(())
}
