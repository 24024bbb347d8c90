//! Building engines and creating their environments. The only code that installs anything, and it says first how large
//! that is. Each step is one command; its output goes to the displays line by line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;

use crate::event::{Event, Listener};
use crate::manifest::{Engine, SetUp};
use crate::plan::Unavailable;
use crate::record::Warning;
use crate::registry::{Registry, State};
use crate::shell::{megabytes, pasteable, this_program};

/// Lines of a failed command's output that are shown.
const LAST_LINES: usize = 6;
/// What pip, uv and cargo say when they reach nothing.
const NO_NETWORK: [&str; 5] = ["connection", "dns error", "network", "offline", "could not resolve host"];

/// What set-up needs to know of its surroundings.
pub struct SettingUp<'a> {
    pub registry: &'a Registry,
    /// A variable that marks every process of this run, so that none is left behind.
    pub mark: (&'static str, &'a str),
    pub listener: Listener<'a>,
    /// What a reader of the record should know.
    pub warnings: Vec<Warning>,
}

impl SettingUp<'_> {
    /// Before a run: builds the engine, and sets it up where its manifest lets a run do so.
    pub fn prepare(&mut self, engine: &Engine) -> Result<(), Unavailable> {
        if let Err(error) = self.build(engine) {
            let trouble = self.unavailable(engine, "it does not build", &error);
            if matches!(self.registry.state(engine), State::NotBuilt) {
                return Err(trouble);
            }
            let (name, reason) = (&engine.manifest.name, trouble.reason);
            let message = format!(
                "`{name}` is measured as it was built before; now {reason} (`--no-setup` builds nothing)"
            );
            let warning = Warning { configuration: None, message };
            (self.listener)(Event::Warned(warning.clone()));
            self.warnings.push(warning);
        }
        match self.registry.state(engine) {
            State::NoEnvironment if engine.manifest.setup == SetUp::Auto => {
                let made = self.environment(engine);
                made.map_err(|error| self.unavailable(engine, "its environment cannot be set up", &error))
            }
            _ => Ok(()),
        }
    }

    /// On request: builds the engine and sets it up.
    pub fn set_up(&mut self, engine: &Engine) -> Result<()> {
        if let State::Never(unavailable) = self.registry.state(engine) {
            let hint = unavailable.hint.map_or(String::new(), |hint| format!("\nhint: {hint}"));
            bail!("`{}` cannot run here: {}{hint}", engine.manifest.name, unavailable.reason);
        }
        self.build(engine)?;
        match self.registry.state(engine) {
            State::NoEnvironment => self.environment(engine),
            _ => Ok(()),
        }
    }

    /// Cargo knows better than this program whether anything is to be done; it says so within a moment.
    fn build(&mut self, engine: &Engine) -> Result<()> {
        let (Some(root), Some(build)) = (&self.registry.root, &engine.manifest.build) else { return Ok(()) };
        if matches!(self.registry.state(engine), State::Never(_)) {
            return Ok(());
        }
        let command = match &build.package {
            Some(package) => {
                let mut command: Vec<String> =
                    ["cargo", "build", "--release", "-p", package].map(String::from).into();
                if !build.features.is_empty() {
                    command.extend(["--features".into(), build.features.join(",")]);
                }
                command
            }
            None => build.command.clone(),
        };
        let root = root.clone();
        match self.registry.state(engine) {
            State::NotBuilt => self.step(engine, "building", build.note.clone(), &command, &root),
            _ => self.step(engine, "bringing its build up to date", None, &command, &root),
        }
    }

    fn environment(&mut self, engine: &Engine) -> Result<()> {
        let (Some(environment), Some(folder)) = (&engine.manifest.environment, engine.environment()) else {
            return Ok(());
        };
        let folder = folder?;
        let parent = folder.parent().context("an environment lies in a folder")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create `{}`", parent.display()))?;
        // Two runs at once: the second waits here and finds the work done.
        let lock =
            File::create(folder.with_extension("lock")).context("cannot create the environment's lock")?;
        lock.lock().context("cannot lock the environment")?;
        if places::interpreter(&folder).is_some() {
            return Ok(());
        }
        let (download, installed) = (environment.download_mb, environment.installed_mb);
        check_space(parent, download + installed)?;
        // Said before anything is fetched.
        let note = format!(
            "{} to download, {} installed in {}",
            megabytes(download),
            megabytes(installed),
            folder.display()
        );
        let (name, what) = (engine.manifest.name.clone(), "setting up its environment".to_string());
        (self.listener)(Event::SetUpStarted { engine: name, what, note: Some(note) });
        let uv = self.uv(engine, parent)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let requirements = folder.with_extension("requirements.txt");
        std::fs::write(&requirements, engine.requirements.as_deref().unwrap_or_default())?;
        let venv = ["venv", "--clear", "--python", &environment.python, &text(&folder)];
        self.step(engine, "setting up Python", None, &command(&uv, &venv), parent)?;
        let python = text(&folder.join("bin/python"));
        let install = ["pip", "install", "--python", &python, "-r", &text(&requirements)];
        self.step(engine, "setting up its packages", None, &command(&uv, &install), parent)?;
        // Written last: an environment without it is half made.
        std::fs::write(folder.join(places::READY_FILE), "")?;
        Ok(())
    }

    /// `uv` from PATH, else our own, from PyPI by the machine's Python.
    fn uv(&mut self, engine: &Engine, parent: &Path) -> Result<PathBuf> {
        if let Ok(uv) = which::which("uv") {
            return Ok(uv);
        }
        let tools = places::data_dir()?.join("tools/uv");
        let uv = tools.join("bin/uv");
        if !uv.is_file() {
            let python = which::which("python3")
                .context("neither `uv` nor `python3` is on PATH\nhint: install Python 3")?;
            let target = tools.to_string_lossy().into_owned();
            let arguments = [
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--upgrade",
                "--target",
                &target,
                "uv",
            ];
            let installed = self.step(engine, "installing uv", None, &command(&python, &arguments), parent);
            if let Err(error) = installed {
                let said = format!("{error:#}");
                let said = said.split("\nhint:").next().unwrap_or_default();
                bail!("{said}\nhint: install `uv`, or pip for `{}`", python.display());
            }
        }
        Ok(uv)
    }

    /// Runs one command, and tells the displays every line of it.
    fn step(
        &mut self,
        engine: &Engine,
        what: &str,
        note: Option<String>,
        command: &[String],
        dir: &Path,
    ) -> Result<()> {
        let engine = engine.manifest.name.clone();
        (self.listener)(Event::SetUpStarted { engine: engine.clone(), what: what.into(), note });
        let (program, arguments) = command.split_first().context("an empty command")?;
        let expression = duct::cmd(program, arguments).dir(dir).env(self.mark.0, self.mark.1);
        let reader = expression.stdin_null().stderr_to_stdout().unchecked().reader();
        let reader = reader
            .with_context(|| format!("`{program}` cannot be started\nhint: is it installed and on PATH?"))?;
        let mut last: Vec<String> = Vec::new();
        for line in BufReader::new(&reader).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim().to_string();
            (self.listener)(Event::SetUpSaid { engine: engine.clone(), line: line.clone() });
            last.push(line);
            last.drain(..last.len().saturating_sub(LAST_LINES));
        }
        let status = reader.try_wait()?.context("the command closed its output and went on")?.status;
        let failed = (!status.success())
            .then(|| last.iter().filter(|line| !line.is_empty()).cloned().collect::<Vec<_>>().join("\n"));
        let reason = failed.as_deref().map(|said| cause(said).to_string());
        (self.listener)(Event::SetUpFinished { engine, failed: reason });
        match failed {
            Some(said) => bail!("{said}\nhint: {}", pasteable(command)),
            None => Ok(()),
        }
    }

    fn unavailable(&self, engine: &Engine, what: &str, error: &anyhow::Error) -> Unavailable {
        let text = format!("{error:#}");
        let said = text.split("\nhint:").next().unwrap_or_default();
        let (mut cause, lower) = (cause(said).to_string(), said.to_ascii_lowercase());
        if NO_NETWORK.iter().any(|sign| lower.contains(sign)) {
            cause.push_str(" (is there a network?)");
        }
        let hint = Some(format!("{} setup {}", this_program(), engine.manifest.name));
        Unavailable { reason: format!("{what}: {cause}"), hint }
    }
}

/// The line of a tool's last words that says why. Tools say the cause in their first line of an error, and advice after
/// it; what stands before is chatter.
fn cause(said: &str) -> &str {
    let is_error = |line: &&str| line.trim_start().to_ascii_lowercase().starts_with("error");
    let names_error = |line: &&str| line.to_ascii_lowercase().contains("error");
    let line = said.lines().find(is_error).or(said.lines().find(names_error)).or(said.lines().last());
    let line = line.unwrap_or_default().trim();
    match line.get(..7) {
        Some(start) if start.eq_ignore_ascii_case("error: ") => &line[7..],
        _ => line,
    }
}

/// Removes every environment that was made for an engine, older requirements included. Gives the folders.
pub fn remove(engine: &Engine) -> Result<Vec<PathBuf>> {
    let environments = places::data_dir()?.join("environments");
    let prefix = format!("{}-", engine.manifest.name);
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(&environments).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // What follows the name is a digest: `toy-fast-0123...` is no environment of `toy`.
        let Some(digest) = name.strip_prefix(&prefix).map(|rest| rest.split('.').next().unwrap_or(rest))
        else {
            continue;
        };
        if digest.len() != 16 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let path = entry.path();
        let gone = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        gone.with_context(|| format!("cannot remove `{}`", path.display()))?;
        if !name.contains('.') {
            removed.push(path);
        }
    }
    Ok(removed)
}

fn check_space(dir: &Path, needed_mb: u64) -> Result<()> {
    let Ok(stat) = statvfs(dir) else { return Ok(()) };
    let free_mb = (stat.blocks_available() as f64 * stat.fragment_size() as f64 / 1e6) as u64;
    if free_mb < needed_mb {
        let (free, needed) = (megabytes(free_mb), megabytes(needed_mb));
        let home = places::HOME_VARIABLE;
        bail!("`{}` has {free} free, {needed} are needed\nhint: export {home}=/a/larger/disk", dir.display());
    }
    Ok(())
}

fn command(program: &Path, arguments: &[&str]) -> Vec<String> {
    std::iter::once(program.to_string_lossy().into_owned())
        .chain(arguments.iter().map(|it| it.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::cause;

    #[test]
    fn the_cause_is_the_first_line_that_a_tool_calls_an_error() {
        let pip = "Looking in links: /wheels\nWARNING: Retrying after ProxyError\nERROR: No matching distribution found for uv";
        assert_eq!(cause(pip), "No matching distribution found for uv");
        let uv = "Resolved 3 packages\nerror: Failed to fetch: `x`\n  Caused by: dns error";
        assert_eq!(cause(uv), "Failed to fetch: `x`");
        assert_eq!(cause("warning: x\ncould not compile: linker error"), "could not compile: linker error");
        assert_eq!(cause("gave up"), "gave up");
    }
}
