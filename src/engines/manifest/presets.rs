//! Presets: an engine's load options under names, their comparisons, and the suites made of them.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

/// Refuses comparisons with unknown presets, and suites without rows or scenarios.
pub(super) fn check(presets: &BTreeMap<String, Preset>, suites: &BTreeMap<String, OwnSuite>) -> Result<()> {
    for (name, preset) in presets {
        let Some(against) = &preset.against else { continue };
        let known = against.preset == DEFAULT_PRESET || presets.contains_key(&against.preset);
        if !known || against.preset == *name {
            bail!("`presets.{name}.against`: `{}` is no other preset of this engine", against.preset);
        }
    }
    for (name, preset) in presets {
        let Some(suite) = preset.suite.as_ref().filter(|it| !suites.contains_key(*it)) else {
            continue;
        };
        bail!("`presets.{name}.suite`: no `suites.{suite}` in this manifest");
    }
    for (name, suite) in suites {
        if !presets.values().any(|preset| preset.suite.as_ref() == Some(name)) {
            bail!("`suites.{name}`: no preset names this suite");
        }
        if suite.scenarios.is_empty() {
            bail!("`suites.{name}.scenarios`: expected at least one");
        }
    }
    Ok(())
}
