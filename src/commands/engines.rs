//! `orchestrate engines`: the known engines, and whether they can run.

use std::fmt::Write as _;

use anyhow::Result;

use super::output::{self, WIDTH, folded, unchecked};
use crate::cli::exit_code::DONE;
use crate::engines::manifest::Program;
use crate::engines::own_python;
use crate::engines::registry::{Registry, State, missing, without_driver};
use crate::text;

pub fn engines() -> Result<u8> {
    let registry = Registry::open()?;
    let mut text = String::new();
    for engine in &registry.engines {
        let manifest = &engine.manifest;
        let (word, hint) = standing(&registry, engine.own_program());
        let reference = if manifest.reference { " (the reference)" } else { "" };
        // Wrapped lines of the heading are indented further than the lines below it.
        let head = format!("{}{reference}: {word}", manifest.name);
        text::wrap(&head, WIDTH, "      ").iter().try_for_each(|line| writeln!(text, "{line}"))?;
        writeln!(text, "    {}", manifest.about)?;
        if let Some(own) = own_python::of(engine) {
            writeln!(text, "    in {}", unchecked(&own))?;
        }
        for (name, preset) in &manifest.presets {
            let suite = preset.suite.as_ref().map_or_else(String::new, |suite| format!(" (suite {suite})"));
            writeln!(text, "    :{name}  {}{suite}", preset.about)?;
        }
        let mut hints = hint;
        for family in manifest.devices.keys() {
            let (word, more) = standing(&registry, engine.on_family(family));
            writeln!(text, "    on {family}: {word}")?;
            // One command may help on several devices, where they share a program.
            let more: Vec<Hint> = more.into_iter().filter(|hint| !hints.contains(hint)).collect();
            hints.extend(more);
        }
        for (hint, is_command) in hints {
            match is_command {
                true => writeln!(text, "    hint: {hint}")?,
                false => text.push_str(&folded(&format!("hint: {hint}"))),
            }
        }
    }
    writeln!(text, "\nAny program that speaks the protocol is an engine too: -e ./its-path")?;
    output::print(text::narrow(&text, WIDTH).as_bytes())?;
    Ok(DONE)
}

/// A hint, and whether it is a command: a command is pasted, so it is never wrapped.
type Hint = (String, bool);

/// The status of a program, with hints. A device that the machine lacks needs none.
fn standing(registry: &Registry, program: Program) -> (String, Vec<Hint>) {
    match registry.state(program) {
        State::Ready(_) => ("ready".into(), Vec::new()),
        state => {
            let missing = missing(program, &state);
            let hints = missing.hints().enumerate().map(|(place, hint)| (hint.to_string(), place == 0));
            let hints: Vec<Hint> = hints.filter(|_| without_driver(program).is_none()).collect();
            (missing.reason, hints)
        }
    }
}
