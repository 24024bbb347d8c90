//! `orchestrate baseline`: lists, shows and removes baselines.

use std::fmt::Write as _;
use std::time::SystemTime;

use anyhow::Result;
use clap::Subcommand;

use super::description::{Baseline, Row};
use super::store;
use crate::cli::exit_code::DONE;
use crate::commands::output;
use crate::text::line;

#[derive(Debug, Subcommand)]
pub enum BaselineCommand {
    /// List all baselines with their age and size
    List,
    /// Show the machine, command and programs of a baseline
    Show {
        /// A name that `orchestrate baseline list` prints
        name: String,
    },
    /// Remove a baseline with its record and programs
    Remove {
        /// A name that `orchestrate baseline list` prints
        name: String,
    },
}

pub fn baseline(command: &BaselineCommand) -> Result<u8> {
    let text = match command {
        BaselineCommand::List => list()?,
        BaselineCommand::Show { name } => show(&Baseline::read(name)?)?,
        BaselineCommand::Remove { name } => remove(name)?,
    };
    output::print_text(&text).map(|()| DONE)
}

fn list() -> Result<String> {
    let mut text = String::new();
    let names = store::names()?;
    for name in &names {
        let size = model_files::size(store::bytes(name)?);
        match Baseline::read(name) {
            Ok(baseline) => {
                let rows = baseline.configurations.iter().map(|row| format!("`{}`", line(&row.label)));
                let (summary, rows) = (baseline.summary(SystemTime::now()), rows.collect::<Vec<_>>());
                writeln!(text, "{summary}, {size}\n    {}", rows.join(", "))?;
            }
            // A damaged baseline is listed too, so that the user can remove it.
            Err(error) => {
                let error = format!("{error:#}").replace('\n', "\n    ");
                writeln!(text, "baseline `{name}`, {size}\n    {error}")?;
            }
        }
    }
    if names.is_empty() {
        text.push_str("no baselines\nhint: orchestrate -e ENGINE --save-baseline NAME\n");
    }
    Ok(text)
}

fn show(baseline: &Baseline) -> Result<String> {
    let mut text = format!("{}\n", baseline.summary(SystemTime::now()));
    let cpu = baseline.machine.cpu.model.as_deref().unwrap_or("unknown");
    let lines = [
        ("measured", baseline.measured.clone()),
        ("machine", format!("{cpu}, {}", baseline.machine.os)),
        ("command", crate::shell::pasteable(&baseline.command)),
        ("record", store::record_path(&baseline.name)?.display().to_string()),
        ("size", model_files::size(store::bytes(&baseline.name)?)),
    ];
    for (name, value) in lines {
        writeln!(text, "{name:<9} {}", line(&value))?;
    }
    for Row { label, program, .. } in &baseline.configurations {
        writeln!(text, "\n`{}`", line(label))?;
        writeln!(text, "    program   {}", line(&program.path))?;
        writeln!(text, "    sha256    {}", program.digest.as_deref().unwrap_or("unknown"))?;
        if let Some(copy) = &program.copy {
            writeln!(text, "    copy      {}", store::copy_path(&baseline.name, copy)?.display())?;
        }
        for warning in program.warnings(&line(label)) {
            writeln!(text, "    warning: {warning}")?;
        }
    }
    for warning in baseline.warnings(SystemTime::now()) {
        writeln!(text, "\nwarning: {warning}")?;
    }
    Ok(text)
}

fn remove(name: &str) -> Result<String> {
    if !store::exists(name)? {
        // Reading fails, with an error whose hint has known names.
        Baseline::read(name)?;
    }
    Ok(format!("removed {}\n", store::remove(name)?.display()))
}
