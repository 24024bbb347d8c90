//! `orchestrate`: measures LLM inference engines, and says how sure it is.

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

use anyhow::Result;
use clap::Parser;

use cli::exit_code::{DONE, ERROR, USAGE};
use cli::{Cli, Command};
use commands::{
    baseline, calibrate, check, compare, listing, measure, model, null_engine, output, overhead, request,
    setup,
};
use shell::Usage;

fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(code) => code.into(),
        Err(error) => {
            output::complain(&error);
            let usage = error.chain().any(|cause| cause.is::<Usage>());
            if usage { USAGE.into() } else { ERROR.into() }
        }
    }
}

fn dispatch(cli: Cli) -> Result<u8> {
    match cli.command {
        None => measure::measure(&cli.run),
        Some(Command::Run(arguments)) => measure::measure(&arguments),
        Some(Command::Engines) => listing::engines(),
        Some(Command::Scenarios) => listing::scenarios(),
        Some(Command::Metrics) => listing::metrics(),
        Some(Command::Setup(arguments)) => setup::set_up(&arguments),
        Some(Command::Model(command)) => model::model(&command),
        Some(Command::Request(arguments)) => request::request(&arguments),
        Some(Command::Report(arguments)) => output::report_again(&arguments),
        Some(Command::Compare(arguments)) => compare::compare(&arguments),
        Some(Command::Baseline(command)) => baseline::command(&command),
        Some(Command::Calibrate(arguments)) => calibrate::calibrate(*arguments),
        Some(Command::Check(arguments)) => check::check(&arguments),
        Some(Command::Machine(arguments)) => commands::machine::machine(&arguments),
        Some(Command::Overhead(arguments)) => overhead::overhead(&arguments),
        Some(Command::NullEngine) => null_engine::serve(),
        Some(Command::Schema) => output::schema(),
        Some(Command::ProbeGpu { devices }) => commands::machine::probe_gpu(devices),
        Some(Command::Keeper { run }) => {
            run::process::keep(&run);
            Ok(DONE)
        }
    }
}
