//! Plan to run record: blocks, each of which launches every configuration and asks every case in rounds. A failed case is
//! recorded and never fatal; only a record that cannot be written ends a run.

mod ask;
mod block;
mod blocking;
mod case;
mod court;
mod doubt;
mod enough;
pub mod event;
mod failing;
mod form;
mod launch;
mod limits;
pub mod overhead;
mod pace;
mod pass;
mod patience;
pub mod process;
mod prove;
mod question;
mod seats;
mod sittings;
pub mod verify;
mod warm_up;
pub mod witness;

pub use launch::{launching, load_request};

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use anyhow::Result;
use tokio::sync::watch;

use crate::machine::{self, Quiet};
use crate::plan::prompts::Prompts;
use crate::plan::{Configuration, Order, Plan};
use crate::record::{Converted, End, Entry, Recorder, Warning};
use crate::run::event::{Event, Listener};
use crate::run::process::{Deadlines, Fault};

use pace::Pace;

/// How to run, beside what to run.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub debug: bool,
}

/// A run under way.
pub struct Run<'a> {
    plan: Plan,
    recorder: &'a mut Recorder,
    listener: Listener<'a>,
    settings: Settings,
    began: Instant,
    pace: Pace,
    /// By model path. A model that no prompt can be made for fails its configurations.
    prompts: BTreeMap<String, Prompts>,
    /// Cases that failed: they are not asked again.
    failed: BTreeSet<usize>,
    /// Workloads that have blocks enough, by label.
    closed: BTreeSet<String>,
    /// Requests after which a case was warm in an earlier launch.
    warm_after: BTreeMap<usize, u32>,
    /// Configurations that answer no `hello`.
    minimal: BTreeSet<usize>,
    /// Configurations that were silent at `hello` once, which a cold disk may explain.
    silent_once: BTreeSet<usize>,
    /// Configurations whose engine is given another form of the model.
    converted: BTreeMap<usize, Converted>,
    told_of_sittings: bool,
    launches: u32,
    /// Also those that no record refers to: each process has a mark of its own, by which what it leaves is ended.
    started: u32,
}

/// What ends a launch early.
enum Stop {
    /// The engine's doing: a row.
    Fault(Fault),
    /// This program's: the run ends.
    Broken(anyhow::Error),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

impl<'a> Run<'a> {
    pub fn new(recorder: &'a mut Recorder, listener: Listener<'a>, settings: Settings) -> Self {
        let plan = recorder.record.header.plan.clone();
        Self {
            pace: Pace::of(&plan),
            plan,
            recorder,
            listener,
            settings,
            began: Instant::now(),
            prompts: BTreeMap::new(),
            failed: BTreeSet::new(),
            closed: BTreeSet::new(),
            warm_after: BTreeMap::new(),
            minimal: BTreeSet::new(),
            silent_once: BTreeSet::new(),
            converted: BTreeMap::new(),
            told_of_sittings: false,
            launches: 0,
            started: 0,
        }
    }

    /// Runs to the end, or until an interrupt is heard. Either way the record says which.
    pub async fn run(mut self, mut interrupted: watch::Receiver<u32>) -> Result<End> {
        let record = self.recorder.path.display().to_string();
        (self.listener)(Event::RunStarted {
            configurations: self.plan.measured().len(),
            blocks: self.plan.extent.blocks,
            record: record.clone(),
        });
        let engines = planned(&self.plan);
        let quiet = Quiet::probe(&engines);
        self.warn_of_the_machine(quiet.before(&engines))?;
        self.warn_of_one_prompt()?;
        // Leaving a launch in the middle drops its engine, which ends the engine's processes.
        let end = tokio::select! {
            biased;
            _ = interrupted.wait_for(|&heard| heard > 0) => End::Interrupted,
            ran = self.blocks() => ran.map(|()| End::Finished)?,
        };
        if end == End::Interrupted {
            (self.listener)(Event::Interrupted);
        }
        self.warn_of_the_machine(quiet.after(end == End::Interrupted))?;
        self.recorder.take(Entry::End(end))?;
        (self.listener)(Event::RunFinished { record });
        Ok(end)
    }

    async fn blocks(&mut self) -> Result<()> {
        self.refuse_what_cannot_run().await?;
        self.measure_itself().await?;
        self.look_at_idle().await?;
        self.prove().await?;
        let all = self.plan.measured();
        match self.plan.order {
            Order::Interleaved => self.blocks_of(&all).await?,
            Order::Sequential => {
                for configuration in all {
                    self.closed.clear();
                    self.pace = self.pace.anew(&self.plan);
                    self.blocks_of(&[configuration]).await?;
                }
            }
        }
        self.name_what_had_no_time()?;
        self.hold_court().await
    }

    /// What asking costs here and now is told with what is asked. Without it the rest is as good.
    async fn measure_itself(&mut self) -> Result<()> {
        if !(0..self.plan.configurations.len()).any(|configuration| self.has_open_cases(configuration)) {
            return Ok(());
        }
        let entry = match overhead::glance(&self.recorder.record.header.id).await {
            Ok(overhead) => Entry::Overhead(overhead),
            Err(error) => {
                let message = format!(
                    "what `orchestrate` itself costs was not measured: {error:#}; try `orchestrate overhead`"
                );
                Entry::Warning(Warning { configuration: None, message })
            }
        };
        self.recorder.take(entry)
    }

    /// Blocks of these configurations, until every workload has enough of them.
    async fn blocks_of(&mut self, configurations: &[usize]) -> Result<()> {
        for block in 0.. {
            if !configurations.iter().any(|&it| self.has_open_cases(it)) {
                return if block > 0 { self.probe_limits(block).await } else { Ok(()) };
            }
            self.announce(block, configurations);
            self.pace.block_begins();
            self.probe_limits(block).await?;
            self.block(block, configurations).await?;
            self.pace.block_ends();
            self.close_what_has_enough(block as usize + 1)?;
        }
        Ok(())
    }
}

/// The name of a run. It sorts by time, and two runs of one second differ.
pub fn new_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    format!("{time}-{}", std::process::id())
}

/// The engines of a plan, as far as the machine's quiet depends on them.
fn planned(plan: &Plan) -> Vec<machine::Planned> {
    let engine = |it: &Configuration| machine::Planned {
        label: it.beside.is_none().then(|| it.label.clone()),
        program: it.command.first().map(PathBuf::from),
        device: it.device.clone(),
        threads: it.threads,
        unavailable: it.unavailable.is_some(),
    };
    plan.configurations.iter().map(engine).collect()
}

/// A workload for the tests of rooms around this one.
#[cfg(test)]
pub fn example_workload(prompt: crate::plan::Prompt) -> crate::plan::Workload {
    crate::plan::Workload {
        scenario: "decode".into(),
        label: "decode".into(),
        kind: crate::plan::scenario::Kind::Warm,
        headline: "decode_rate".into(),
        prompt,
        max_new_tokens: 8,
        ignore_eos: true,
        sampling: None,
        warmup: Some(1),
        rounds: 2,
    }
}
