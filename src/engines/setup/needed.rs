//! The work that a set-up would do, known before anything is built or downloaded.

use std::path::PathBuf;

use anyhow::Result;
use paths::Python;

use crate::engines::manifest::{Engine, Program};
use crate::engines::registry::{Registry, State};
use crate::machine::Device;
use crate::shell::Unavailable;

/// The missing parts of an engine on some devices.
pub struct Needed<'a> {
    pub engine: &'a Engine,
    /// The devices on which this machine can run the engine.
    pub devices: Vec<Device>,
    /// The programs that are not built.
    pub builds: Vec<Program<'a>>,
    /// The folder of the engine's environment, if the environment is missing. Engines may share it.
    pub environment: Option<PathBuf>,
    /// The reasons why the engine cannot run on the other devices.
    pub impossible: Vec<Unavailable>,
}

impl<'a> Needed<'a> {
    pub fn of(registry: &Registry, engine: &'a Engine, devices: &[Device]) -> Result<Self> {
        let (builds, impossible) = (Vec::new(), Vec::new());
        let mut needed = Self { engine, devices: Vec::new(), builds, environment: None, impossible };
        for device in devices {
            let program = engine.program_for(device);
            match registry.state(program) {
                State::CannotRun(unavailable) => {
                    if !needed.impossible.contains(&unavailable) {
                        needed.impossible.push(unavailable);
                    }
                    continue;
                }
                State::NotBuilt if needed.builds.iter().all(|build| build.binary != program.binary) => {
                    needed.builds.push(program);
                }
                State::NotBuilt | State::NoEnvironment | State::Ready(_) => {}
            }
            needed.devices.push(device.clone());
        }
        let lacks_environment = matches!(engine.python(), Some(Ok(Python::NotSetUp)));
        if lacks_environment && !needed.devices.is_empty() {
            needed.environment = engine.environment().transpose()?;
        }
        Ok(needed)
    }

    /// Whether the engine can run here and lacks nothing.
    pub fn is_ready(&self) -> bool {
        !self.devices.is_empty() && !self.has_work()
    }

    pub fn has_work(&self) -> bool {
        !self.builds.is_empty() || self.environment.is_some()
    }
}
