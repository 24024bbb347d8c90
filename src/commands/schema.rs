//! `orchestrate schema`: the JSON Schema of the protocol.

use anyhow::Result;

use super::output;
use crate::cli::exit_code::DONE;

pub fn schema() -> Result<u8> {
    let mut text = serde_json::to_vec_pretty(&protocol::schema())?;
    text.push(b'\n');
    output::print(&text)?;
    Ok(DONE)
}
