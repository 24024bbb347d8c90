//! The stored noise floors: one file for each machine, by its fingerprint, in the data directory. An unreadable file
//! gives a warning and no floors. An unreadable entry is skipped and stays in the file: another version may have written it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::analysis::noise_floors::{Key, KnownFloor, known_for};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::record::CalibratedFloor;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Calibration {
    /// For people; the file's name identifies the machine too.
    #[serde(default)]
    machine: Value,
    floors: Vec<Value>,
}

/// The readable floors of a file, and a warning about unreadable ones.
#[derive(Debug, Default, PartialEq)]
pub struct StoredFloors {
    pub known: Vec<KnownFloor>,
    pub warning: Option<String>,
}

pub fn file_of(machine: &Machine) -> Result<PathBuf> {
    Ok(paths::data_dir()?.join("calibration").join(format!("{}.json", machine.fingerprint())))
}

pub fn read(file: &Path) -> StoredFloors {
    let path = file.display();
    match parse(file) {
        Ok(Calibration { floors, .. }) => {
            let known_floor = |entry: &Value| serde_json::from_value(entry.clone()).ok();
            let known: Vec<KnownFloor> = floors.iter().filter_map(known_floor).collect();
            let unread = floors.len() - known.len();
            let all = floors.len();
            let warning = format!(
                "{unread} of {all} noise floors in `{path}` cannot be read and are not used; run `orchestrate calibrate` again"
            );
            StoredFloors { known, warning: (unread > 0).then_some(warning) }
        }
        Err(error) => {
            let warning = format!(
                "the calibration of this machine is not used: cannot read `{path}`: {error:#}; run `orchestrate calibrate` again"
            );
            StoredFloors { known: Vec::new(), warning: Some(warning) }
        }
    }
}

/// Stores these floors in place of older ones with the same key. The write is atomic: a reader meanwhile sees the old file.
pub fn store(file: &Path, machine: &Machine, newest: &[KnownFloor]) -> Result<()> {
    let write = || -> Result<()> {
        // A file that is no calibration is replaced.
        let mut calibration = parse(file).unwrap_or_default();
        let is_replaced = |entry: &Value| {
            serde_json::from_value::<Key>(entry.clone())
                .is_ok_and(|key| newest.iter().any(|it| it.key == key))
        };
        calibration.floors.retain(|entry| !is_replaced(entry));
        for floor in newest {
            calibration.floors.push(serde_json::to_value(floor)?);
        }
        calibration.machine = serde_json::to_value(machine)?;
        let folder = file.parent().context("it has no folder")?;
        std::fs::create_dir_all(folder)?;
        let staged = file.with_extension(format!("json.{}", std::process::id()));
        let text = serde_json::to_string_pretty(&calibration)? + "\n";
        let moved = std::fs::write(&staged, text).and_then(|()| std::fs::rename(&staged, file));
        Ok(moved.inspect_err(|_| drop(std::fs::remove_file(&staged)))?)
    };
    write().with_context(|| format!("cannot store the noise floors in `{}`", file.display()))
}

/// The stored file. A missing file is empty; any other error is reported.
fn parse(file: &Path) -> Result<Calibration> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Calibration::default()),
        Err(error) => Err(error.into()),
    }
}

/// The stored noise floors of this machine for a plan, and a warning about floors that cannot be read.
pub fn of_plan(plan: &Plan, machine: &Machine) -> (Vec<CalibratedFloor>, Option<String>) {
    // Without a data directory nothing is stored.
    let Ok(file) = file_of(machine) else { return (Vec::new(), None) };
    let stored = read(&file);
    (known_for(plan, &stored.known), stored.warning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mode, Prompt};
    use stats::NoiseFloor;

    /// A file with this text, in a folder that is removed when its `TempDir` is dropped.
    fn stored(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc.json");
        std::fs::write(&file, text).unwrap();
        (folder, file)
    }

    fn floor(engine: &str, difference: f64) -> KnownFloor {
        let key = Key {
            engine: engine.into(),
            preset: None,
            model: "m".into(),
            device: "cpu".into(),
            dtype: None,
            threads: 2,
            options: serde_json::Map::new(),
            mode: Mode::Warm,
            workload: "decode".into(),
            prompt: Prompt::Tokens(32),
            max_new_tokens: 64,
            shape: Default::default(),
            metric: crate::plan::MetricId::DECODE_RATE,
        };
        let paired = NoiseFloor::of(&[difference; 20]).unwrap();
        let since = "2026-01-02T03:04:05Z".into();
        KnownFloor { key, paired, between: None, since, record: "r".into(), configuration: 0 }
    }

    #[test]
    fn a_new_noise_floor_replaces_only_the_one_with_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let (file, machine) = (folder.path().join("calibration/abc.json"), Machine::default());
        assert_eq!(read(&file), StoredFloors::default());
        store(&file, &machine, &[floor("a", 0.1), floor("b", 0.2)]).unwrap();
        store(&file, &machine, &[floor("a", 0.3)]).unwrap();
        let stored = read(&file);
        assert_eq!((stored.known, stored.warning), (vec![floor("b", 0.2), floor("a", 0.3)], None));
        // No half-written file is left.
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_broken_file_gives_a_warning_and_the_next_calibration_replaces_it() {
        for text in ["{\"floors\": [{\"eng", "", "[1]", "\u{0}\u{1}"] {
            let (_folder, file) = stored(text);
            let StoredFloors { known, warning } = read(&file);
            let warning = warning.unwrap();
            assert!(warning.contains("abc.json") && warning.contains("orchestrate calibrate"), "{warning}");
            assert_eq!(known, [], "{text}");
            store(&file, &Machine::default(), &[floor("a", 0.1)]).unwrap();
            assert_eq!(read(&file).known.len(), 1, "{text}");
        }
    }

    #[test]
    fn an_unreadable_entry_is_skipped_and_stays_in_the_file() {
        let mut valid = serde_json::to_value(floor("a", 0.1)).unwrap();
        let mut invalid = valid.clone();
        (invalid["paired"]["log_ratio"], invalid["engine"]) = ((-1).into(), "c".into());
        valid["field_of_another_version"] = true.into();
        let text = serde_json::json!({ "floors": [invalid, 7, valid] }).to_string();
        let (_folder, file) = stored(&text);
        let StoredFloors { known, warning } = read(&file);
        assert_eq!(known, [floor("a", 0.1)]);
        assert!(warning.unwrap().contains("2 of 3 noise floors"));
        store(&file, &Machine::default(), &[floor("b", 0.2)]).unwrap();
        assert_eq!(parse(&file).unwrap().floors.len(), 4);
    }

    #[test]
    fn a_write_error_names_the_file() {
        let (_folder, file) = stored("{\"floors\":[]}");
        let path_in_file = file.join("x.json");
        let error = store(&path_in_file, &Machine::default(), &[]).unwrap_err();
        assert!(format!("{error:#}").contains("x.json"), "{error:#}");
        assert!(read(&path_in_file).warning.is_some());
    }
}
