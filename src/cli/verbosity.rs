//! How much a command prints besides its results. The command line sets it once, and every display calls `verbosity`.

use std::sync::OnceLock;

use clap::Args;

#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Messages")]
pub struct VerbosityArgs {
    /// Print only results and errors; a report keeps its warnings; default: progress too
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print also what is built and started, and why a run goes on or ends
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Results and errors. A report has its warnings, because they say how far its results can be trusted.
    Quiet,
    #[default]
    Usual,
    /// Further facts and decisions. `--debug` prints the lines of the protocol.
    Verbose,
}

static CHOSEN: OnceLock<Verbosity> = OnceLock::new();

impl VerbosityArgs {
    /// Makes this the verbosity of the process. A later call changes nothing.
    pub fn choose(self) {
        CHOSEN.get_or_init(|| match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Usual,
        });
    }
}

pub fn verbosity() -> Verbosity {
    CHOSEN.get().copied().unwrap_or_default()
}
