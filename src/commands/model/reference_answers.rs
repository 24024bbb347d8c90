//! `orchestrate model reference-answers`: runs the output checks on the verifier, and stores its answers beside the
//! model.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cli::RunArgs;
use crate::cli::exit_code::INTERRUPTED;
use crate::commands::experiment::{self, MeasuredRun};
use crate::commands::output;
use crate::engines::registry::Registry;
use crate::machine::Device;
use crate::plan::{Plan, VERIFIER_DTYPE, models};
use crate::record::End;
use crate::run::dtype_costs::{self, CostsFile};
use crate::run::reference_answers;
use crate::shell::{Usage, this_command_with};

#[derive(Debug, Args)]
pub struct ReferenceAnswersArgs {
    /// A model folder, a repository that was pulled, or `embedded`
    pub model: String,
    /// Engine that computes the answers, in f32; default: the reference of `orchestrate engines`
    #[arg(long, value_name = "NAME|PATH", alias = "witness")]
    pub verifier: Option<String>,
    /// Device of the verifier; default: cpu
    #[arg(long, value_name = "DEVICE", value_parser = Device::from_str)]
    pub verifier_device: Option<Device>,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Folder for records; default: ORCHESTRATE_RESULTS, else `results` of the current folder
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

pub fn reference_answers(arguments: &ReferenceAnswersArgs) -> Result<u8> {
    let model = models::model(Some(&arguments.model))?;
    let name = &model.name;
    let path = reference_answers::path_of(&model).with_context(|| {
        Usage(format!("model `{name}`: reference answers need a model folder, and this model is one file"))
    })?;
    let may_write = arguments.force || !path.exists();
    ensure!(
        may_write,
        Usage(format!("`{}` exists\nhint: {}", path.display(), this_command_with(&["--force"])))
    );
    let registry = Registry::open()?;
    let default_verifier = || registry.reference().map(str::to_owned);
    let engine = arguments.verifier.clone().or_else(default_verifier);
    let engine = engine.context("no engine here is the default verifier\nhint: --verifier ENGINE")?;
    let mut run = RunArgs {
        engines: vec![engine.clone()],
        verifier: Some(engine),
        models: vec![arguments.model.clone()],
        // The default scenarios stay, because a plan needs scenarios. Their requests are not sent.
        dtype: vec![VERIFIER_DTYPE.into()],
        device: vec![arguments.verifier_device.clone().unwrap_or_else(Device::cpu)],
        verifier_device: arguments.verifier_device.clone(),
        no_setup: true,
        results: arguments.results.clone(),
        ..RunArgs::default()
    };
    // A set number of blocks turns off the time budget, which a large model would exceed.
    run.extent.quick = true;
    let ready = experiment::resolve(&registry, &run)?.make_ready()?;
    let plan = Plan::new(&ready.selection).output_checks_only();
    let MeasuredRun { recorder, end } = ready.run(plan)?;
    if end? != Some(End::Finished) {
        return Ok(INTERRUPTED);
    }
    let record = &recorder.record;
    let measured_model = record.header.plan.configurations.first().map_or(&model, |it| &it.model);
    let answers = reference_answers::from_record(record, measured_model)?;
    output::replace(reference_answers::text(&answers)?.as_bytes(), &path)?;
    let mut paths = format!("{}\n", path.display());
    let held_out = record.held_out.iter().find(|it| it.model == measured_model.path);
    if let Some((costs, held_out)) = record.dtype_costs.first().zip(held_out) {
        let costs_path = path.with_file_name(dtype_costs::FILE_NAME);
        let file = CostsFile::of(costs, measured_model, held_out);
        output::replace(file.text()?.as_bytes(), &costs_path)?;
        paths.push_str(&format!("{}\n", costs_path.display()));
    }
    output::succeed(paths)
}
