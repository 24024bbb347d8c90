//! `orchestrate model synth`.

use anyhow::{Result, ensure};
use model_files::{Goal, Shape, synthesise};

use super::{bar::Bar, check_writable, dtype, format, written};
use crate::cli::model::SynthArgs;
use crate::shell::Usage;

pub fn synth(arguments: &SynthArgs) -> Result<u8> {
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    let shape = match (&arguments.config, &arguments.name) {
        (Some(path), _) => {
            ensure!(path.exists(), Usage(format!("there is no `{}`", path.display())));
            Shape::of_config(path)?
        }
        (None, name) => Shape::named(name.as_deref().unwrap_or_default()).map_err(usage)?,
    };
    let goal = Goal {
        format: format(&arguments.format)?,
        dtype: dtype(&arguments.dtype)?,
        out: arguments.out.clone(),
    };
    check_writable(goal.format, goal.dtype, "--format")?;
    let bar = Bar::begin(&shape.name)?;
    let made = synthesise(&shape, arguments.seed, &goal, &bar.watch());
    written(bar, made)
}
