//! An engine as the registry found it, with its start on each device or the reason why it cannot start.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::manifest::Against;
use crate::machine::Device;
use crate::shell::Unavailable;

/// A requested engine, as the registry found it.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    pub engine: String,
    pub preset: Option<String>,
    pub options: Map<String, Value>,
    /// The dtype to load, unless the command line names one.
    pub dtype: Option<String>,
    pub against: Option<Against>,
    /// The start on every device that is not in `devices`.
    pub own: Start,
    /// The starts on the device families that the manifest names.
    pub devices: BTreeMap<String, Start>,
    pub alone: bool,
}

/// How an engine is started on a device, or why it cannot be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    pub command: Vec<String>,
    pub unavailable: Option<Unavailable>,
}

impl Start {
    pub fn by(program: impl AsRef<Path>) -> Self {
        Self { command: vec![program.as_ref().to_string_lossy().into_owned()], unavailable: None }
    }

    pub fn never(unavailable: Unavailable) -> Self {
        Self { command: Vec::new(), unavailable: Some(unavailable) }
    }
}

impl Candidate {
    pub fn on(&self, device: &Device) -> &Start {
        self.devices.get(&device.family()).unwrap_or(&self.own)
    }

    /// Replaces the start on a device.
    pub fn start_on(&mut self, device: &Device, start: Start) {
        *self.devices.get_mut(&device.family()).unwrap_or(&mut self.own) = start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_in_capitals_starts_the_program_of_its_family() {
        let devices = BTreeMap::from([("cuda".to_string(), Start::by("on-cuda"))]);
        let mut candidate = Candidate { own: Start::by("on-cpu"), devices, ..Candidate::default() };
        for name in ["cuda", "CUDA", "Cuda:1"] {
            assert_eq!(candidate.on(&name.into()).command, ["on-cuda"], "{name}");
        }
        assert_eq!(candidate.on(&"CPU".into()).command, ["on-cpu"]);
        candidate.start_on(&"CUDA:0".into(), Start::by("anew"));
        assert_eq!((&*candidate.own.command[0], &*candidate.devices["cuda"].command[0]), ("on-cpu", "anew"));
    }
}
