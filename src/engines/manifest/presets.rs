//! Presets: an engine's load options under names, their comparisons, and the suites made of them.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Engine, Manifest};

/// The preset that needs no name.
pub const DEFAULT_PRESET: &str = "default";

/// Load options under a name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preset {
    pub about: String,
    pub options: Map<String, Value>,
    /// The dtype to load, unless the user names one.
    pub dtype: Option<String>,
    pub against: Option<Against>,
    /// The only suite that measures this preset, unless the user names the preset.
    pub suite: Option<String>,
}

/// Scenarios and their rows: the presets that name this suite, each after the preset that it is compared with.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnSuite {
    pub about: String,
    pub scenarios: Vec<String>,
}

/// Another preset of the same engine, and the name of the difference to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Against {
    pub preset: String,
    pub says: String,
}

impl Engine {
    /// The presets to measure besides the default one. A preset with the settings of the default one is left out.
    pub fn other_presets(&self) -> impl Iterator<Item = &String> {
        let presets = &self.manifest.presets;
        let usual = presets.get(DEFAULT_PRESET).cloned().unwrap_or_default();
        let settings = |preset: &Preset| (preset.options.clone(), preset.dtype.clone());
        let others = presets.iter().filter(|(name, it)| *name != DEFAULT_PRESET && it.suite.is_none());
        others.filter(move |(_, preset)| settings(preset) != settings(&usual)).map(|(name, _)| name)
    }

    /// A preset by its name, or the default one.
    pub fn preset(&self, name: Option<&str>) -> Result<(String, Preset)> {
        let name = name.unwrap_or(DEFAULT_PRESET);
        let preset = self.manifest.presets.get(name).cloned();
        let preset = preset.or_else(|| (name == DEFAULT_PRESET).then(Preset::default));
        let known: Vec<_> = self.manifest.presets.keys().map(|preset| format!("`{preset}`")).collect();
        let preset = preset.with_context(|| {
            format!(
                "engine `{}` has no preset `{name}`\nhint: its presets are {}",
                self.manifest.name,
                known.join(", ")
            )
        })?;
        Ok((name.to_string(), preset))
    }

    /// The rows of one of its suites, as `-e` takes them. Compared rows are next to each other.
    pub fn rows_of(&self, suite: &str) -> Vec<String> {
        let name = &self.manifest.name;
        let row = |preset: &String| match preset == DEFAULT_PRESET {
            true => name.clone(),
            false => format!("{name}:{preset}"),
        };
        let own = || self.manifest.presets.iter().filter(|(_, it)| it.suite.as_deref() == Some(suite));
        let mut rows: Vec<String> = Vec::new();
        for (preset, settings) in own() {
            let base = settings.against.as_ref().map(|it| &it.preset);
            let alike = own().filter(|(_, it)| it.against.as_ref().map(|it| &it.preset) == base);
            for row in base.into_iter().chain([preset]).chain(alike.map(|(name, _)| name)).map(row) {
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
        }
        rows
    }
}

/// Refuses comparisons with unknown presets, and suites without rows or scenarios.
pub(super) fn check(manifest: &Manifest) -> Result<()> {
    for (name, preset) in &manifest.presets {
        let Some(against) = &preset.against else { continue };
        let known = against.preset == DEFAULT_PRESET || manifest.presets.contains_key(&against.preset);
        if !known || against.preset == *name {
            bail!("`presets.{name}.against`: `{}` is no other preset of this engine", against.preset);
        }
    }
    for (name, preset) in &manifest.presets {
        let Some(suite) = preset.suite.as_ref().filter(|it| !manifest.suites.contains_key(*it)) else {
            continue;
        };
        bail!("`presets.{name}.suite`: no `suites.{suite}` in this manifest");
    }
    for (name, suite) in &manifest.suites {
        if !manifest.presets.values().any(|preset| preset.suite.as_ref() == Some(name)) {
            bail!("`suites.{name}`: no preset says that it is a row of it");
        }
        if suite.scenarios.is_empty() {
            bail!("`suites.{name}.scenarios`: expected at least one");
        }
    }
    Ok(())
}
