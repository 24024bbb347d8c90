//! `orchestrate setup` of several engines: states the sizes, asks once, and sets up what is not ready. A failure of one engine
//! does not stop the others.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdin};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::with_set_up::with_set_up;
use crate::cli::exit_code::{DONE, FAILED_CASES};
use crate::cli::{Verbosity, verbosity};
use crate::commands::output::{self, WIDTH};
use crate::engines::manifest::{Engine, Environment, Program};
use crate::engines::registry::Registry;
use crate::engines::setup::{self, Needed};
use crate::machine::Device;
use crate::shell::{Unavailable, Usage, megabytes, this_command_with};
use crate::text;

/// Engines to set up together.
pub struct SeveralEngines<'a> {
    pub registry: &'a Registry,
    pub engines: &'a [&'a Engine],
    pub devices: &'a [Device],
    /// Whether `engines` has all known engines. An engine that cannot run here is then no failure.
    pub all: bool,
}

impl SeveralEngines<'_> {
    pub fn set_up(&self, without_asking: bool) -> Result<u8> {
        let needed = self.engines.iter().map(|engine| Needed::of(self.registry, engine, self.devices));
        let needed = needed.collect::<Result<Vec<_>>>()?;
        if self.registry.root.is_none() && needed.iter().all(|it| it.devices.is_empty()) {
            output::print_error(&without_checkout(self.all, &needed));
            return Ok(FAILED_CASES);
        }
        let work: Vec<&Needed> = needed.iter().filter(|it| it.has_work()).collect();
        if !work.is_empty() && (verbosity() != Verbosity::Quiet || !without_asking) {
            output::print_notice(&plan(&needed));
        }
        if !work.is_empty() && !without_asking && !confirm(work.len())? {
            output::print_notice("nothing was set up\n");
            return Ok(FAILED_CASES);
        }
        let failed: Vec<(&str, String)> = with_set_up(self.registry, false, |setting_up| {
            let mut failed = Vec::new();
            for it in &work {
                let mut results = it.devices.iter().map(|device| setting_up.set_up(it.engine, device));
                if let Some(Err(error)) = results.find(Result::is_err) {
                    failed.push((name(it.engine), format!("{error:#}")));
                }
            }
            failed
        })?;
        output::print_text(&summary(&needed, &failed))?;
        let cannot_run = needed.iter().any(|it| it.devices.is_empty());
        Ok(if failed.is_empty() && (self.all || !cannot_run) { DONE } else { FAILED_CASES })
    }
}

/// The error where no program of the engines is installed, and there is no source to build one.
fn without_checkout(all: bool, needed: &[Needed]) -> anyhow::Error {
    let names = || needed.iter().map(|it| name(it.engine)).collect::<Vec<_>>().join(" ");
    let engines = if all { "--all".into() } else { names() };
    Usage(format!(
        "nothing was set up: engines are built from source, and this program is in no checkout of the source; run the hint in a checkout\n\
         hint: cargo run --release -- setup {engines}"
    ))
    .into()
}

/// States the download of one engine, and asks. Without a download or with `--yes`, returns true and does not ask.
pub fn confirm_download(
    registry: &Registry,
    engine: &Engine,
    devices: &[Device],
    without_asking: bool,
) -> Result<bool> {
    let needed = [Needed::of(registry, engine, devices)?];
    if without_asking || needed.iter().all(|it| it.environment.is_none()) {
        return Ok(true);
    }
    output::print_notice(&plan(&needed));
    let confirmed = confirm(1)?;
    if !confirmed {
        output::print_notice("nothing was set up\n");
    }
    Ok(confirmed)
}

fn name(engine: &Engine) -> &str {
    &engine.manifest.name
}

/// The text before the question: the builds and downloads, the engines that are ready or cannot run here, and the total size.
fn plan(needed: &[Needed]) -> String {
    let mut text = String::from("to set up:\n");
    let mut environments: BTreeMap<&PathBuf, (&str, &Environment)> = BTreeMap::new();
    for it in needed.iter().filter(|it| it.has_work()) {
        let mut steps: Vec<String> = it.builds.iter().map(build_step).collect();
        if let (Some(folder), Some(environment)) = (&it.environment, &it.engine.manifest.environment) {
            steps.push(match environments.get(folder) {
                Some((other, _)) => format!("uses the environment of `{other}`"),
                None => environment_step(environment),
            });
            environments.entry(folder).or_insert((name(it.engine), environment));
        }
        let lines = text::wrap(&format!("{}: {}", name(it.engine), steps.join("; ")), WIDTH - 2, "    ");
        lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    text.push_str(&list_of("ready", needed.iter().filter(|it| it.is_ready())));
    text.push_str(&impossible(needed));
    if let Some(folder) = environments.keys().next().and_then(|folder| folder.parent()) {
        text.push_str(&total(environments.values().map(|(_, environment)| *environment), folder));
    }
    text
}

fn build_step(program: &Program) -> String {
    let device = program.only_for.map_or_else(String::new, |family| format!(" for {family}"));
    let note = program.build.and_then(|build| build.note.as_ref());
    format!("build{device}{}", note.map_or_else(String::new, |note| format!(" ({note})")))
}

fn environment_step(environment: &Environment) -> String {
    let (download, installed) = (megabytes(environment.download_mb), megabytes(environment.installed_mb));
    let note = environment.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
    format!("{download} to download, {installed} installed{note}")
}

/// The sum over environments, and the free space where they are made.
fn total<'a>(environments: impl Iterator<Item = &'a Environment>, folder: &Path) -> String {
    let sizes = environments.map(|it| (it.download_mb, it.installed_mb));
    let (download, installed) = sizes.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let free = setup::free_mb(folder).map_or_else(String::new, |free| format!(" ({} free)", megabytes(free)));
    let (download, installed, folder) = (megabytes(download), megabytes(installed), folder.display());
    text::break_lines(
        &format!("total: {download} to download, {installed} installed in {folder}{free}"),
        WIDTH,
    )
}

/// `ready: `a`, `b``, or nothing without engines.
fn list_of<'a>(title: &str, engines: impl Iterator<Item = &'a Needed<'a>>) -> String {
    let names: Vec<String> = engines.map(|it| format!("`{}`", name(it.engine))).collect();
    if names.is_empty() {
        String::new()
    } else {
        text::break_lines(&format!("{title}: {}", names.join(", ")), WIDTH)
    }
}

/// A line for each reason why an engine cannot run here, on some or on all of the devices.
fn impossible(needed: &[Needed]) -> String {
    let mut text = String::new();
    for (it, Unavailable { reason, .. }) in
        needed.iter().flat_map(|it| it.impossible.iter().map(move |why| (it, why)))
    {
        let what = if it.devices.is_empty() { "cannot run here" } else { "cannot run here on some devices" };
        text.push_str(&text::break_lines(&format!("{what}: `{}`: {reason}", name(it.engine)), WIDTH));
    }
    text
}

/// Asks on a terminal. Without one, refuses with the command that does not ask.
fn confirm(engines: usize) -> Result<bool> {
    if !(stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let hint = this_command_with(&["--yes"]);
        return Err(Usage(format!(
            "this set-up must be confirmed, and there is no terminal; nothing was set up\nhint: {hint}"
        ))
        .into());
    }
    output::print_notice(&format!("set up {}? [y/N] ", text::plural(engines, "engine")));
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn summary(needed: &[Needed], failed: &[(&str, String)]) -> String {
    let has_failed = |it: &&Needed| failed.iter().any(|(engine, _)| *engine == name(it.engine));
    let ready = needed.iter().filter(|it| !it.devices.is_empty() && !has_failed(it));
    let mut text = list_of("ready", ready);
    for (engine, error) in failed {
        // The message of a tool may begin with `error: `.
        let error = error.strip_prefix("error: ").unwrap_or(error);
        for (index, line) in error.lines().enumerate() {
            let start = if index == 0 { format!("failed: `{engine}`: ") } else { "    ".into() };
            text.push_str(&text::break_lines(&format!("{start}{line}"), WIDTH));
        }
    }
    text.push_str(&impossible(needed));
    if !failed.is_empty() {
        text.push_str("the same command tries the failed engines again, and skips those that are ready\n");
    }
    text
}
