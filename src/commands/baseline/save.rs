//! Saves a run as a baseline.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;

use super::accept;
use super::age::Age;
use super::description::{Baseline, Kept};
use super::program::{self, Program};
use super::store::{self, check_name};
use crate::record::RunRecord;

/// A saved baseline.
#[derive(Debug)]
pub struct Saved {
    pub baseline: Baseline,
    pub folder: PathBuf,
    /// The age of the baseline that it replaced.
    pub replaced: Option<Age>,
    /// Cases without a place in it, and programs without a full copy.
    pub warnings: Vec<String>,
}

impl Saved {
    /// The path of the baseline, and warnings for the user.
    pub fn lines(&self) -> Vec<String> {
        let name = &self.baseline.name;
        let rows = self.baseline.configurations.len();
        let replaced = self.replaced.map(|age| format!(", replacing one that was {age}")).unwrap_or_default();
        let (count, folder) = (if rows == 1 { "row" } else { "rows" }, self.folder.display());
        let saved = format!("baseline `{name}` is saved{replaced}: {rows} {count}, in `{folder}`");
        let warnings = self.warnings.iter().map(|warning| format!("warning: {warning}"));
        std::iter::once(saved).chain(warnings).collect()
    }
}

/// Saves a run under a name. The error is a `Refused` where its values may not become a baseline. The run's own record
/// stays as it is.
pub fn save(name: &str, record_path: &Path, record: &RunRecord) -> Result<Saved> {
    check_name(name)?;
    let accepted = accept::accept(record)?;
    let mut staged = store::Staged::new(name)?;
    let header = &record.header;
    let mut baseline = Baseline::of(name, header);
    let mut programs: BTreeMap<_, Program> = BTreeMap::new();
    let mut warnings = accepted.left_out;
    for row in accepted.rows {
        let configuration = &header.plan.configurations[row];
        // Presets of one engine share its program.
        let started = (configuration.engine.as_str(), configuration.command.first());
        let keep = || program::keep(&mut staged, configuration, &header.started);
        let program = programs.entry(started).or_insert_with(keep).clone();
        warnings.extend(program.warnings(&configuration.label));
        let (label, engine) = (configuration.label.clone(), configuration.engine.clone());
        baseline.configurations.push(Kept { label, engine, program });
    }
    staged.copy_record(record_path)?;
    staged.write_page(&baseline)?;
    let before = Baseline::read(name).ok();
    let folder = staged.commit()?;
    let replaced = before.map(|before| before.age(SystemTime::now()));
    Ok(Saved { baseline, folder, replaced, warnings })
}
