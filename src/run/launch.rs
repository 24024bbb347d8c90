//! One launch of a configuration, as it runs, and what it is started with.

use std::time::Duration;

use anyhow::Result;
use protocol::{HelloFacts, Load, environment};

use super::blocking::off_thread;
use super::journal::Journal;
use super::stop::{Failed, Stop};
use crate::machine::busy::{ProcessorTime, Worked};
use crate::machine::gpu;
use crate::machine::memory::{self, Holding};
use crate::plan::Configuration;
use crate::record::{Entry, Held, Launch, Role, WarmUp};
use crate::run::process::{Answer, Cause, Conversation, Launching, Stage};
use crate::run::verify::Expected;

/// After a `failed`, so long an engine may take to end if it cannot go on.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(100);

/// What an engine is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The requests of a block.
    Block(u32),
    /// One request of a block, or to learn what it reads.
    Once(u32),
    /// To be asked for proof: nothing in it is measured.
    Proof,
}

/// An engine that is started and, where it speaks the whole protocol, loaded.
pub(super) struct Launched {
    pub talk: Conversation,
    /// What is known of it so far.
    pub launch: Launch,
    /// Its number, once it is in the record.
    recorded: Option<u32>,
    /// Warm-ups that ended before its first answer, of a launch that is recorded with that.
    unrecorded: Vec<WarmUp>,
    /// Requests so far. Each gets an id of its own, so that the second copy of an answer passes for no later one.
    pub asked: u64,
    /// Its processes are stopped.
    pub at_rest: bool,
    /// Its processes, as they were found after its last answer.
    pub tree: Vec<u32>,
    /// During its last request.
    pub worked: Worked,
    pub holding: Holding,
}

impl Launched {
    pub fn of(talk: Conversation, launch: Launch) -> Self {
        let (tree, worked, holding) = (Vec::new(), Worked::default(), Holding::default());
        let (recorded, unrecorded, asked, at_rest) = (None, Vec::new(), 0, false);
        Self { talk, launch, recorded, unrecorded, asked, at_rest, tree, worked, holding }
    }

    /// Its number in the record, which it gets here where it has none yet: with it the launch is recorded as it is known now.
    pub fn number(&mut self, journal: &mut Journal) -> Result<u32> {
        if let Some(number) = self.recorded {
            return Ok(number);
        }
        let number = journal.record().launches.len() as u32;
        self.launch.launch = number;
        journal.take(Entry::Launch(Box::new(self.launch.clone())))?;
        self.recorded = Some(number);
        for warm_up in self.unrecorded.drain(..) {
            journal.take(Entry::WarmUp(WarmUp { launch: number, ..warm_up }))?;
        }
        Ok(number)
    }

    /// Records how a warm-up ended, once its launch is in the record: the number of that is filled in here.
    pub fn warmed_up(&mut self, journal: &mut Journal, warm_up: WarmUp) -> Result<()> {
        match self.recorded {
            Some(launch) => journal.take(Entry::WarmUp(WarmUp { launch, ..warm_up })),
            None => {
                self.unrecorded.push(warm_up);
                Ok(())
            }
        }
    }

    /// Holds an answer to one prompt against what was asked and against what the engine says of itself.
    pub fn verify(
        &self,
        answer: &Answer,
        prompt_tokens: Option<u32>,
        max_new_tokens: u32,
        ignore_eos: bool,
    ) -> Result<(), Cause> {
        let facts = self.launch.loaded.as_ref().map(|loaded| &loaded.facts);
        let eos_ids = facts.and_then(|facts| facts.eos_ids.as_deref()).unwrap_or_default();
        let vocabulary_size = facts.and_then(|facts| facts.vocabulary_size);
        let expected = Expected {
            prompt_tokens: vec![prompt_tokens],
            max_new_tokens,
            ignore_eos,
            elapsed_ns: answer.answered_ns.saturating_sub(answer.sent_ns),
            ..Expected::default()
        };
        expected.with_engine(self.hello(), eos_ids, vocabulary_size).verify(&answer.generated)
    }

    /// What ends it, with its number where it has one.
    pub fn fault(&self, when: Stage, cause: Cause) -> Stop {
        Stop::Fault(Failed { fault: self.talk.fault(when, cause), launch: self.recorded })
    }

    pub fn hello(&self) -> Option<&HelloFacts> {
        self.launch.hello.as_ref()
    }

    /// Of its processes as they are known. Before its first answer none are: looking for them would delay its first request,
    /// and a cold start counts that.
    pub fn processor_time(&self) -> ProcessorTime {
        ProcessorTime::of(&self.tree)
    }

    /// Finds those that compute for it now (its own tree, and the trees of those that it says work for it elsewhere), and reads
    /// the peak of their memory and what they hold. That walks page tables, and waits for a process that is stuck in the kernel.
    pub async fn read_memory(&mut self, needed: bool) -> Result<(Option<u64>, Option<Held>)> {
        let elsewhere = self.launch.loaded.iter().flat_map(|loaded| loaded.pids.clone());
        let roots: Vec<u32> = std::iter::once(self.talk.process.pid).chain(elsewhere).collect();
        let mut holding = std::mem::take(&mut self.holding);
        let read = move || {
            let mut tree: Vec<u32> = roots.into_iter().flat_map(memory::tree).collect();
            tree.sort_unstable();
            tree.dedup();
            let (peak, held) = (memory::peak_resident_bytes(&tree), holding.read(&tree, needed));
            (tree, holding, peak, held)
        };
        let (tree, holding, peak, held) = off_thread(read).await?;
        (self.tree, self.holding) = (tree, holding);
        Ok((peak, held))
    }
}

pub fn load_request(configuration: &Configuration, model: &str) -> Load {
    Load {
        model: model.into(),
        device: Some(configuration.device.to_string()),
        dtype: configuration.dtype.clone(),
        threads: Some(configuration.threads),
        context_tokens: None,
        options: configuration.options.clone(),
    }
}

/// What is started, with the environment that every engine gets.
pub fn launching(
    configuration: &Configuration,
    model: &str,
    run: &str,
    launch: u32,
    debug: bool,
) -> Launching {
    let set = |name: &str, value: &str| (name.to_string(), value.into());
    let mut variables = vec![
        set(environment::MODEL, model),
        set(environment::DEVICE, configuration.device.as_str()),
        set(environment::THREADS, &configuration.threads.to_string()),
    ];
    variables.extend(configuration.dtype.iter().map(|dtype| set(environment::DTYPE, dtype)));
    variables.extend(gpu::order_for_processes().map(|(name, value)| set(name, value)));
    Launching {
        label: configuration.label.clone(),
        command: configuration.command.clone(),
        variables,
        run: run.to_string(),
        launch: format!("{run}/{launch}"),
        debug,
    }
}

/// Where in a case a request stands, for errors.
pub(super) fn stage(role: Role, index: u32) -> Stage {
    match role {
        Role::Warmup => Stage::Warmup(index),
        Role::Discarded => Stage::Before(index),
        Role::Measured => Stage::Sample(index),
    }
}
