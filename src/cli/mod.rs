//! The parts of the command line that several commands share: groups of arguments, exit codes, and
//! the verbosity. A command's own arguments are in its file.

pub mod exit_code;
pub mod refusal;
mod run;
pub mod run_file;
mod verbosity;
mod view;

pub use run::{BaselineArgs, JudgeArgs, OtherRuns, PassEnvArgs, RunArgs, parse_key_value};
pub use verbosity::{Verbosity, VerbosityArgs, verbosity};
pub use view::{ViewArgs, formats, formats_where};
