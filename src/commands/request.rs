//! `orchestrate request ENGINE SCENARIO`: the lines that a run would send, to pipe into any engine by hand. With the nonce of a
//! run, each prompt is that of the first measured request of a case of that run.

use std::str::FromStr;

use anyhow::{Result, bail};
use clap::Args;
use protocol::{Capabilities, Id, Request, Score};

use super::output;
use crate::engines::load_values::LoadValues;
use crate::engines::registry::Registry;
use crate::machine::{CPU, Device, cpu};
use crate::plan::axes::AxisValues;
use crate::plan::prompts::Prompts;
use crate::plan::scenario::Kind;
use crate::plan::selection::{Names, Sources, resolve};
use crate::plan::{Plan, Selection, models};
use crate::record::RequestKind;
use crate::run::load_request;
use crate::shell::whole_number;

#[derive(Debug, Args)]
pub struct RequestArgs {
    /// An engine by name or path; it is not started
    #[arg(value_name = "NAME|PATH")]
    pub engine: String,
    /// A scenario or a suite (see `orchestrate scenarios`)
    pub scenario: String,
    /// For an engine that knows only `generate`: prompts as text, without `hello`, `load` and `shutdown`
    #[arg(long)]
    pub text: bool,
    /// A model folder or file; default: the embedded model
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<String>,
    /// The device that `load` names
    #[arg(long, default_value = CPU, value_parser = Device::from_str)]
    pub device: Device,
    /// Seed of the prompts
    #[arg(long, default_value_t = 0, value_parser = whole_number(0, u64::MAX))]
    pub seed: u64,
    /// Nonce of a run, to repeat its prompts (see `orchestrate explain ENGINE CASE`); default: none
    #[arg(long, value_name = "N", value_parser = whole_number(0, protocol::MAX_INTEGER))]
    pub nonce: Option<u64>,
    #[command(flatten)]
    pub axes: AxisValues,
}

pub fn request(arguments: &RequestArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let names = Names {
        engines: vec![arguments.engine.clone()],
        scenarios: vec![arguments.scenario.clone()],
        models: arguments.model.iter().cloned().collect(),
        ..Names::default()
    };
    let devices = vec![arguments.device.clone()];
    let threads = vec![cpu::all_threads()];
    let RequestArgs { seed, nonce, .. } = *arguments;
    let axes = arguments.axes.clone();
    let settings = Selection { devices, threads, seed, nonce, axes, ..Selection::default() };
    // The engine is not started, so the values that a program without a manifest accepts are unknown.
    let sources = Sources { load_values: &mut |_| Ok(LoadValues::default()), model: &mut models::model };
    let selection = resolve(&registry, &names, settings, sources)?.without_set_up()?;
    output::succeed(lines(&selection, arguments.text)?)
}

/// The lines: hello, load, one measured request of each case, shutdown. With `text`, only the requests, for an engine
/// without `hello`.
fn lines(selection: &Selection, text: bool) -> Result<Vec<u8>> {
    let plan = Plan::new(selection);
    let Some(configuration) = plan.configurations.first() else {
        bail!("no requests: the selection has no engine")
    };
    let prompts = Prompts::open(&configuration.model.path)?;
    // The engine is not started, so its capabilities are unknown. The lines assume that it reads prompts as ids.
    let assumed_capabilities = Capabilities { prompt_ids: true, ..Capabilities::default() };
    let hello = protocol::Hello { protocol: protocol::version::CURRENT };
    let mut requests =
        vec![Request::Hello(hello), Request::Load(load_request(configuration, &configuration.model.path))];
    for (number, case) in plan.cases_of(0).into_iter().enumerate() {
        let workload = &plan.cases[case].workload;
        if workload.kind == Kind::Query {
            requests.push(Request::Facts {});
            continue;
        }
        // A run sends no such request.
        if prompts.excess(workload).is_some() {
            continue;
        }
        if workload.kind == Kind::Score {
            let score = |(window, ids): (u64, Vec<u32>)| {
                let id = Some(Id::Number(((number as u64) << 32) + window));
                Request::Score(Score { id, sequences: vec![ids], most_likely: false })
            };
            requests.extend((0..).zip(prompts.windows(workload)?.ids).map(score));
            continue;
        }
        let ids = prompts.batch(workload, plan.prompt_key(0, RequestKind::Measured, 0))?;
        let capabilities = (!text).then_some(&assumed_capabilities);
        requests.push(Request::Generate(prompts.request(workload, &ids, capabilities, number as u64)));
    }
    requests.push(Request::Shutdown {});
    requests.retain(|request| !text || matches!(request, Request::Generate(_)));
    Ok(requests.iter().flat_map(protocol::encode).collect())
}
