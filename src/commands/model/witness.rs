//! `orchestrate model witness`: runs the output checks on the reference engine, and keeps its answers beside the model.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::cli::RunArgs;
use crate::cli::exit_code::{DONE, INTERRUPTED};
use crate::commands::experiment::{self, Measured};
use crate::commands::output;
use crate::engines::registry::Registry;
use crate::plan::models;
use crate::plan::scenario::SUITES;
use crate::plan::{Plan, WITNESS_DTYPE};
use crate::record::End;
use crate::run::witness;
use crate::shell::Usage;

#[derive(Debug, Args)]
pub struct WitnessArgs {
    /// A model folder, or `embedded`
    pub model: String,
    /// Who is asked; unless given, the reference engine of the tree
    #[arg(long, value_name = "ENGINE")]
    pub witness: Option<String>,
    /// Make it anew where there is one
    #[arg(long)]
    pub force: bool,
    /// Where the record of what it was asked goes
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

pub fn witness(arguments: &WitnessArgs) -> Result<u8> {
    let model = models::model(Some(&arguments.model))?;
    let name = &model.name;
    let path = witness::path_of(&model).with_context(|| {
        Usage(format!("model `{name}`: it is one file, and a witness is kept in a folder"))
    })?;
    if path.exists() && !arguments.force {
        let path = path.display();
        return Err(Usage(format!("`{path}` is there already\nhint: --force makes it anew")).into());
    }
    let of_the_tree = || Registry::open().ok()?.reference().map(str::to_owned);
    let engine = arguments.witness.clone().or_else(of_the_tree);
    let engine = engine.context("no engine here is a reference\nhint: --witness ENGINE")?;
    let run = RunArgs {
        engines: vec![engine.clone()],
        witness: Some(engine),
        models: vec![arguments.model.clone()],
        // A plan needs a scenario; none of its requests is sent.
        scenarios: vec![SUITES[0].name.into()],
        device: vec!["cpu".into()],
        dtype: vec![WITNESS_DTYPE.into()],
        no_setup: true,
        results: arguments.results.clone(),
        ..RunArgs::default()
    };
    let registry = Registry::open()?;
    let ready = experiment::resolve(&registry, &run)?.make_ready()?;
    let plan = Plan::new(&ready.selection).proof_alone();
    let Measured { recorder, end } = ready.run(plan)?;
    if end? != Some(End::Finished) {
        return Ok(INTERRUPTED);
    }
    let record = &recorder.record;
    let of_run = record.header.plan.configurations.first().map_or(&model, |it| &it.model);
    let kept = witness::of_record(record, of_run)?;
    output::replace(witness::text(&kept)?.as_bytes(), &path)?;
    output::print(format!("{}\n", path.display()).as_bytes())?;
    Ok(DONE)
}
