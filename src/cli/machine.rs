//! What `orchestrate machine` takes.

use clap::Args;

use super::formats_but;
use crate::report::FORMATS;

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// How it is printed
    #[arg(long, value_name = "FORMAT", default_value = FORMATS[0].name, value_parser = formats_but(&["csv"]))]
    pub format: String,
    /// Only what the machine says of itself: do not probe what it can do at most
    #[arg(long)]
    pub no_probe: bool,
}
