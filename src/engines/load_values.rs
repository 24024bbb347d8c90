//! The values that an engine's `load` accepts: from its manifest, or from the `hello` of a program without a manifest.

use std::fmt;

use protocol::{Capabilities, PLANTED_DELAY_OPTION};
use serde::Deserialize;

use crate::machine::Device;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadValues {
    /// Devices or families of devices: `cuda` stands for `cuda:1` too. Empty: unknown.
    pub devices: Vec<String>,
    /// Empty: unknown.
    pub dtypes: Vec<String>,
    /// The names of the options. `None`: unknown.
    pub options: Option<Vec<String>>,
}

/// A value of the command line that an engine might refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadValue<'a> {
    Device(&'a Device),
    Dtype(&'a str),
    /// The name of a load option.
    Option(&'a str),
}

impl LoadValues {
    /// The values of a program that supports only `generate`: it has no load options.
    pub fn of_minimal_engine() -> Self {
        Self { options: Some(Vec::new()), ..Self::default() }
    }

    /// Whether a load may have this value. True if the engine does not say.
    pub fn accepts(&self, value: LoadValue) -> bool {
        let Some(listed) = self.listed(value) else { return true };
        match value {
            LoadValue::Device(device) => {
                listed.iter().any(|name| Device::from(name.as_str()).family() == device.family())
            }
            // No engine lists this option, because the kits handle it.
            LoadValue::Option(PLANTED_DELAY_OPTION) => true,
            LoadValue::Dtype(name) | LoadValue::Option(name) => listed.iter().any(|listed| listed == name),
        }
    }

    /// The accepted values of the same kind. `None`: unknown.
    pub fn listed(&self, value: LoadValue) -> Option<&[String]> {
        let known = |list: &'_ [String]| !list.is_empty();
        match value {
            LoadValue::Device(_) => Some(&*self.devices).filter(|list| known(list)),
            LoadValue::Dtype(_) => Some(&*self.dtypes).filter(|list| known(list)),
            LoadValue::Option(_) => self.options.as_deref(),
        }
    }
}

impl From<&Capabilities> for LoadValues {
    fn from(capabilities: &Capabilities) -> Self {
        let Capabilities { devices, dtypes, options, .. } = capabilities.clone();
        Self { devices, dtypes, options }
    }
}

impl fmt::Display for LoadValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => write!(f, "device `{device}`"),
            Self::Dtype(dtype) => write!(f, "dtype `{dtype}`"),
            Self::Option(name) => write!(f, "load option `{name}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_accepts_what_it_lists_and_all_that_it_says_nothing_about() {
        let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let cpu =
            LoadValues { devices: list(&["cpu"]), dtypes: list(&["f32"]), options: Some(list(&["pin"])) };
        let gpus = LoadValues { devices: list(&["cuda:0", "cpu"]), ..LoadValues::default() };
        let accepts_device =
            |values: &LoadValues, name: &str| values.accepts(LoadValue::Device(&name.into()));
        assert!(
            accepts_device(&cpu, "cpu") && accepts_device(&cpu, "CPU:0") && !accepts_device(&cpu, "cuda")
        );
        // The engine itself knows the number of its GPUs.
        assert!(accepts_device(&gpus, "cuda:1") && !accepts_device(&gpus, "cdua"));
        assert!(cpu.accepts(LoadValue::Dtype("f32")) && !cpu.accepts(LoadValue::Dtype("F32")));
        assert!(cpu.accepts(LoadValue::Option(PLANTED_DELAY_OPTION)));
        assert!(cpu.accepts(LoadValue::Option("pin")) && !cpu.accepts(LoadValue::Option("pim")));
        let unknown = LoadValues::default();
        assert!(accepts_device(&unknown, "metal") && unknown.accepts(LoadValue::Option("x")));
        assert!(!LoadValues::of_minimal_engine().accepts(LoadValue::Option("x")));
    }
}
