//! `orchestrate model pull`: the folder on stdout, for a pipe; the progress on stderr.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use model_files::hub::{self, Event, Repository, Settings};
use model_files::size;

use crate::commands::interrupts::Interrupts;
use crate::commands::output;
use crate::shell::Usage;
use crate::text;

#[derive(Debug, Args)]
pub struct PullArgs {
    /// `OWNER/NAME`, with `@REVISION` for a revision other than `main`
    #[arg(value_name = "REPO[@REV]")]
    pub repo: String,
    /// Only files that this pattern matches (`*` stands for anything, `?` for one character); may be given several times.
    /// Unless given: config, tokenizer, and the safetensors or the only GGUF file. Pickles (`*.bin`, `*.pt`) and `*.h5` are
    /// never fetched
    #[arg(long = "file", value_name = "PATTERN")]
    pub files: Vec<String>,
}

pub fn pull(arguments: &PullArgs) -> Result<u8> {
    let repository = Repository::parse(&arguments.repo).map_err(|error| Usage(error.to_string()))?;
    let settings = Settings::from_environment()?;
    // Ctrl-C must work here even when the parent process ignores it.
    let _interrupts = Interrupts::listen("interrupted: the next pull continues from here")?;
    let mut download = Download { repository: repository.to_string(), bar: None };
    let folder = hub::pull(&settings, &repository, &arguments.files, &mut |event| download.take(event))?;
    // The bar is removed before the path is printed, because stdout and stderr may share a terminal.
    drop(download);
    output::succeed(format!("{}\n", folder.display()))
}

/// The progress of a download: one bar for all files on a terminal, otherwise one line for each file.
struct Download {
    repository: String,
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
                self.print(&format!("{summary} ({}{present})", size(bytes)));
                self.bar = std::io::stderr().is_terminal().then(|| bar(bytes, cached_bytes));
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
