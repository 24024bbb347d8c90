//! `orchestrate model`: the subcommands for models. Only reference answers need an engine; the crate `model-files` does the rest.

mod info;
mod list;
mod pull;
mod reference_answers;
mod write;

pub use write::DTYPES;

use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Make a model with a real model's shape and speed, but random weights: no download, the same bytes on every machine
    Synth(write::SynthArgs),
    /// Write a model in another format or another dtype
    Convert(write::ConvertArgs),
    /// Fetch a model from the Hugging Face hub
    Pull(pull::PullArgs),
    /// List the models on this machine, and the shapes that `synth` can make
    List,
    /// Show a model's architecture, sizes, bytes read per token, and memory by context length
    Info(info::InfoArgs),
    /// Store the verifier's answers beside the model, so that runs need not compute them
    // The alias is the name in earlier versions.
    #[command(alias = "witness")]
    ReferenceAnswers(reference_answers::ReferenceAnswersArgs),
    /// List, limit or remove the format conversions made by runs
    Cache(list::CacheArgs),
}

pub fn model(command: &ModelCommand) -> Result<u8> {
    match command {
        ModelCommand::Synth(arguments) => write::synth(arguments),
        ModelCommand::Convert(arguments) => write::convert(arguments),
        ModelCommand::Pull(arguments) => pull::pull(arguments),
        ModelCommand::List => list::list(),
        ModelCommand::Info(arguments) => info::info(arguments),
        ModelCommand::ReferenceAnswers(arguments) => reference_answers::reference_answers(arguments),
        ModelCommand::Cache(arguments) => list::cache(arguments),
    }
}
