//! `orchestrate overhead`: what this program itself costs.

use anyhow::Result;

use super::output;
use crate::cli::exit_code::DONE;
use crate::run::overhead::Overhead;

pub fn overhead() -> Result<u8> {
    output::print(Overhead::measure()?.show().as_bytes())?;
    Ok(DONE)
}
