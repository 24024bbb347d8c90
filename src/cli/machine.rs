//! What `orchestrate machine` takes.

use clap::Args;

use super::formats_where;
use crate::report::{FORMATS, Format};

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// How it is printed
    #[arg(long, value_name = "FORMAT", default_value = FORMATS[0].name, value_parser = formats_where(|it| !it.has_lines()))]
    pub format: &'static Format,
    /// Only what the machine says of itself: do not probe what it can do at most
    #[arg(long)]
    pub no_probe: bool,
}
