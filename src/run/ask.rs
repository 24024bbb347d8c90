//! Asks a program without a manifest for the values that its `load` accepts, before anything of a run starts.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::launch::{Settings, launching};
use super::process::{Conversation, Hello};
use crate::engines::load_values::LoadValues;
use crate::plan::Configuration;

/// The values that the program's `hello` lists. Without an answer, every value is accepted here, and the program's row will have
/// the error.
pub fn ask_load_values(program: &Path, run: &str, settings: &Settings) -> Result<LoadValues> {
    let name = program.to_string_lossy().into_owned();
    let configuration =
        Configuration { label: name.clone(), command: vec![name], threads: 1, ..Configuration::default() };
    let (no_model, process_number, settings) = ("", 0, Settings { debug: false, ..settings.clone() });
    let launching = launching(&configuration, no_model, run, process_number, &settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        let Ok(mut conversation) = Conversation::start(&launching, settings.deadlines) else { return None };
        let answer = conversation.hello().await;
        conversation.process.end(Duration::ZERO).await;
        answer.ok()
    });
    Ok(match answer {
        Some(Hello::Known(facts)) => LoadValues::from(&facts.capabilities),
        Some(Hello::Minimal) => LoadValues::of_minimal_engine(),
        Some(Hello::NoAnswer) | None => LoadValues::default(),
    })
}
