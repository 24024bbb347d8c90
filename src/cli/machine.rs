//! What `orchestrate machine` takes.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// How it is printed
    #[arg(long, value_enum, default_value_t = PageFormat::Table)]
    pub format: PageFormat,
    /// Only what the machine says of itself: do not probe what it can do at most
    #[arg(long)]
    pub no_probe: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageFormat {
    /// For a terminal
    Table,
    /// Everything
    Json,
}
