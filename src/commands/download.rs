//! Downloads from the Hugging Face hub, with their progress on stderr: for `model pull`, and for runs with `--download`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use model_files::hub::{self, Event, Repository, Settings};
use model_files::size;

use super::interrupts::Interrupts;
use crate::cli::RunArgs;
use crate::cli::{Verbosity, verbosity};
use crate::plan::{Model, models};
use crate::shell::{Usage, this_command_with};
use crate::text;

/// Finds a model of a run by its name. With `--download`, a model that is not on this machine is fetched first. A dry run fetches
/// nothing and shows the files that a run would fetch.
pub fn model(name: Option<&str>, arguments: &RunArgs) -> Result<Model> {
    let is_absent = |name: &&str| !Path::new(name).exists() && hub::find(name).is_none();
    let absent = name.filter(is_absent).and_then(|name| Some((name, hub::parse_name(name)?)));
    let Some((name, (repository, files))) = absent else { return models::model(name) };
    if !arguments.download {
        let command = this_command_with(&["--download"]);
        bail!(Usage(format!("no model at `{name}`, and none of this name was pulled\nhint: {command}")));
    }
    if arguments.extent.dry_run {
        let mut download = Download { repository: repository.to_string(), is_planned_only: true, bar: None };
        hub::plan(&Settings::from_environment()?, &repository, &files, &mut |event| download.take(event))?;
        return Ok(models::before_download(name));
    }
    fetch(&repository, &files)?;
    models::model(Some(name))
}

/// Fetches the files that match the patterns, or without patterns those that engines need. Returns their folder.
pub fn fetch(repository: &Repository, files: &[String]) -> Result<PathBuf> {
    let settings = Settings::from_environment()?;
    // Ctrl-C must end a download even if this process was started with SIGINT ignored.
    Interrupts::listen("interrupted: the same command continues the download")?;
    let mut download = Download { repository: repository.to_string(), is_planned_only: false, bar: None };
    hub::pull(&settings, repository, files, &mut |event| download.take(event))
}

/// The progress of a download: one bar for all files on a terminal, otherwise one line for each file.
struct Download {
    repository: String,
    /// True in a dry run: nothing is fetched.
    is_planned_only: bool,
    bar: Option<ProgressBar>,
}

const BAR_TEMPLATE: &str =
    "{wide_msg} {bar:16} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
const DRAWS_PER_SECOND: u8 = 10;
const SHOWN_COMMIT_DIGITS: usize = 8;

impl Download {
    fn take(&mut self, event: Event) {
        match event {
            Event::Planned { commit, files, cached_files, bytes, cached_bytes } => {
                let commit = commit.get(..SHOWN_COMMIT_DIGITS).unwrap_or(commit);
                let summary = format!("{} at {commit}: {}", self.repository, text::plural(files, "file"));
                if cached_files == files {
                    return self.print(&format!("{summary} ({}), already complete", size(bytes)));
                }
                let present = match cached_bytes {
                    0 => String::new(),
                    bytes => format!(", {} already present", size(bytes)),
                };
                if self.is_planned_only {
                    return self.print(&format!("would fetch {summary} ({}{present})", size(bytes)));
                }
                self.print(&format!("{summary} ({}{present})", size(bytes)));
                let has_bar = std::io::stderr().is_terminal() && verbosity() != Verbosity::Quiet;
                self.bar = has_bar.then(|| bar(bytes, cached_bytes));
            }
            Event::FileStarted { name, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(text::line(name));
                }
            }
            Event::Progress { bytes } => {
                if let Some(bar) = &self.bar {
                    bar.set_position(bytes);
                }
            }
            Event::FileDone { name, bytes } => {
                if self.bar.is_none() {
                    self.print(&format!("  {} ({})", text::line(name), size(bytes)));
                }
            }
            Event::Waiting { why, wait } => {
                let when = match wait.as_secs() {
                    0 => "now".into(),
                    seconds => format!("in {seconds} s"),
                };
                self.print(&format!("  {}; trying again {when}", text::line(why)));
            }
        }
    }

    fn print(&self, line: &str) {
        if verbosity() == Verbosity::Quiet {
            return;
        }
        // A closed stderr does not end a download.
        let write = || drop(writeln!(std::io::stderr(), "{line}"));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

fn bar(bytes: u64, cached_bytes: u64) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
    // An invalid template does not end a download.
    let style = ProgressStyle::with_template(BAR_TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(bytes), target)
        .with_style(style)
        .with_finish(ProgressFinish::AndClear)
        .with_position(cached_bytes);
    // Bytes of earlier downloads do not count for the speed.
    bar.reset_eta();
    bar
}
