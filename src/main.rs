//! `orchestrate`: measures LLM inference engines, with confidence intervals.

mod analysis;
mod cli;
mod commands;
mod engines;
mod machine;
mod plan;
mod record;
mod report;
mod run;
mod shell;
mod text;

use std::process::ExitCode;

use cli::exit_code;
use commands::{Cli, output};

fn main() -> ExitCode {
    let command_line = match Cli::of_command_line() {
        Ok(command_line) => command_line,
        Err(code) => return code.into(),
    };
    match command_line.dispatch() {
        Ok(code) => code.into(),
        Err(error) => {
            output::print_error(&error);
            exit_code::of_error(&error).into()
        }
    }
}
