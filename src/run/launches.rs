//! Starts and ends engines. A launch gets its number when it is recorded, so a process that only answered `hello` uses no number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::{HelloFacts, Loaded, Progress};

use super::blocking::off_thread;
use super::conversion::Conversions;
use super::journal::{Event, Journal};
use super::launch::{EXIT_GRACE, Launched, Purpose, Settings, launching, load_request};
use super::page_cache;
use crate::machine::{gpu, memory};
use crate::plan::axes::PageCache;
use crate::plan::scenario::Kind;
use crate::plan::{Plan, Role};
use crate::record::Launch;
use crate::run::process::{Cause, Conversation, EngineFailure, Hello, LaunchError, Stage};
use crate::shell::pasteable;
use crate::text;

/// A load that differs from that of a configuration.
pub(super) struct Variant<'v> {
    pub model: &'v str,
    pub dtype: &'v str,
}

pub(super) struct Launches<'a> {
    plan: &'a Plan,
    settings: Settings,
    /// The run's id, which every process carries.
    run: String,
    conversions: Conversions<'a>,
    /// Configurations whose engine does not support `hello`.
    minimal: BTreeSet<usize>,
    /// Configurations that have answered `hello` in this run.
    answered_hello: BTreeSet<usize>,
    /// Configurations whose last launch did not answer `hello`. The first time, a slow disk may be the cause, so the engine is
    /// started once more.
    missed_hello: BTreeSet<usize>,
    /// The files of packed weights of configurations that have loaded their model, in runs that drop the page cache.
    packed: BTreeMap<usize, BTreeSet<PathBuf>>,
    /// The number of processes so far. It is part of the mark of each process, by which leftover processes are found.
    process_count: u32,
}

impl<'a> Launches<'a> {
    pub fn of(plan: &'a Plan, run: &str, settings: Settings) -> Self {
        Self {
            plan,
            settings,
            run: run.into(),
            conversions: Conversions::of(plan),
            minimal: BTreeSet::new(),
            answered_hello: BTreeSet::new(),
            missed_hello: BTreeSet::new(),
            packed: BTreeMap::new(),
            process_count: 0,
        }
    }

    /// Starts an engine. If it speaks the whole protocol, it also loads the model, and the launch is recorded.
    pub async fn launch(
        &mut self,
        journal: &mut Journal<'_>,
        index: usize,
        purpose: Purpose,
    ) -> Result<Launched, LaunchError> {
        let (mut launched, facts) = loop {
            let mut launched = self.start(journal, index, purpose).await?;
            if self.minimal.contains(&index) {
                // The launch of a minimal engine is recorded with its first answer, which has the facts of the load.
                return Ok(launched);
            }
            match self.send_hello(journal, &mut launched).await? {
                Some(facts) => break (launched, facts),
                None => drop(launched.conversation.process.end(Duration::ZERO).await),
            };
        };
        launched.launch.hello_ns = Some(launched.conversation.since_start(Instant::now()));
        launched.launch.hello = Some(*facts);
        let loaded = self.load(journal, &mut launched, None).await;
        // The launch is recorded either way: a failure refers to it.
        launched.number(journal)?;
        loaded.map_err(|cause| launched.failure(Stage::Load, cause))?;
        if self.plan.drops_page_cache() {
            self.note_packed_files(&launched).await?;
        }
        Ok(launched)
    }

    /// Sends `hello` and returns the engine's facts. `None` if the engine must be started again.
    async fn send_hello(
        &mut self,
        journal: &mut Journal<'_>,
        launched: &mut Launched,
    ) -> Result<Option<Box<HelloFacts>>, LaunchError> {
        let index = launched.launch.configuration;
        let hello =
            launched.conversation.hello().await.map_err(|cause| launched.failure(Stage::Hello, cause))?;
        let no_answer = match hello {
            Hello::Known(facts) => {
                self.missed_hello.remove(&index);
                self.answered_hello.insert(index);
                // After a conversion the engine is started again, so that no clock counts the conversion.
                let converted = self.conversions.convert_for(journal, index, &facts).await?;
                return Ok((!converted).then_some(facts));
            }
            Hello::Minimal => false,
            Hello::NoAnswer => true,
        };
        if no_answer && self.warn_of_first_missed_hello(journal, index)? {
            return Ok(None);
        }
        let seconds = self.settings.deadlines.hello.as_secs_f64();
        // If an earlier launch answered `hello`, a launch without `hello` cannot be compared with it.
        let knows_hello = self.answered_hello.contains(&index);
        if knows_hello || !self.plan.configurations[index].options.is_empty() {
            let cause = match no_answer {
                true => Cause::Timeout(self.settings.deadlines.hello),
                false if knows_hello => {
                    Cause::Unsupported("answered `hello` in an earlier launch, and refuses it now".into())
                }
                false => Cause::Unsupported("does not support `load`, so no option can be set".into()),
            };
            return Err(launched.failure(Stage::Hello, cause));
        }
        if no_answer {
            let message =
                format!("no answer to `hello` within {seconds} s in two launches: only `generate` is used");
            journal.warn(Some(index), message)?;
        }
        self.minimal.insert(index);
        Ok(None)
    }

    /// Launches an engine for an output check. `None` if the launch takes longer than `limit`.
    pub async fn launch_for_check(
        &mut self,
        journal: &mut Journal<'_>,
        index: usize,
        limit: Option<Duration>,
    ) -> Result<Option<Launched>, LaunchError> {
        let launch = self.launch(journal, index, Purpose::OutputCheck);
        match limit {
            None => launch.await.map(Some),
            Some(limit) => match tokio::time::timeout(limit, launch).await {
                Ok(launched) => launched.map(Some),
                Err(_) => Ok(None),
            },
        }
    }

    /// Launches an engine on another model or in another dtype. The launch is not recorded, because it says nothing about the
    /// configuration.
    pub async fn launch_variant(
        &mut self,
        journal: &mut Journal<'_>,
        index: usize,
        variant: &Variant<'_>,
    ) -> Result<Launched, LaunchError> {
        let mut launched = self.start(journal, index, Purpose::OutputCheck).await?;
        let unsupported =
            || Cause::Unsupported(format!("`hello` does not list the dtype `{}`", variant.dtype));
        let loaded = match launched.conversation.hello().await {
            Ok(Hello::Known(facts)) if facts.capabilities.dtypes.iter().any(|it| it == variant.dtype) => {
                launched.launch.hello = Some(*facts);
                self.load(journal, &mut launched, Some(variant)).await
            }
            Ok(_) => Err(unsupported()),
            Err(cause) => Err(cause),
        };
        loaded.map_err(|cause| launched.failure(Stage::Load, cause))?;
        Ok(launched)
    }

    async fn load(
        &mut self,
        journal: &mut Journal<'_>,
        launched: &mut Launched,
        variant: Option<&Variant<'_>>,
    ) -> Result<(), Cause> {
        let configuration = &self.plan.configurations[launched.launch.configuration];
        let label = &configuration.label;
        let mut request = load_request(configuration, self.model_path(launched.launch.configuration));
        if let Some(Variant { model, dtype }) = variant {
            (request.model, request.dtype) = (model.to_string(), Some(dtype.to_string()));
        }
        let loaded = launched.conversation.load(request, |Progress { phase, fraction, .. }| {
            journal.send(Event::Loading { label: label.clone(), phase, fraction });
        });
        let (loaded, loaded_ns) = loaded.await?;
        journal.send(Event::Loaded { label: label.clone(), load_ns: loaded_ns });
        let pid = launched.conversation.process.pid;
        journal.send(Event::Detail(loaded_detail(label, pid, launched.hello(), &loaded)));
        launched.launch.loaded = Some(loaded);
        launched.launch.loaded_ns = Some(loaded_ns);
        Ok(())
    }

    /// Starts a process without sending a request.
    pub async fn start(
        &mut self,
        journal: &mut Journal<'_>,
        index: usize,
        purpose: Purpose,
    ) -> Result<Launched, LaunchError> {
        let configuration = &self.plan.configurations[index];
        if let Purpose::Block(..) = purpose {
            journal.send(Event::LaunchStarted { label: configuration.label.clone() });
        }
        let why = match purpose {
            Purpose::Block(block, _) | Purpose::OneShot(block, _) => format!("for block {}", block + 1),
            Purpose::OutputCheck => "for an output check".into(),
        };
        let command = pasteable(&configuration.command);
        journal.send(Event::Detail(format!("{}: starts {why}: {command}", configuration.label)));
        let model = self.model_path(index);
        let launching = launching(configuration, model, &self.run, self.process_count, &self.settings);
        self.process_count += 1;
        // Read before the start, so that no clock of the launch counts it.
        let gpus_before =
            if configuration.device.is_cpu() { Vec::new() } else { off_thread(gpu::used_memory).await? };
        let files_bytes = match purpose {
            Purpose::Block(_, page_cache) | Purpose::OneShot(_, page_cache) => {
                self.prepare_page_cache(journal, index, page_cache).await?
            }
            Purpose::OutputCheck => None,
        };
        let mut deadlines = self.settings.deadlines;
        if configuration.role == Some(Role::Verifier) || purpose == Purpose::OutputCheck {
            // A verifier may compute each whole sequence again for every token, and some engines score a text token by token. The time of
            // the check limits both.
            deadlines.answer = deadlines.answer.max(deadlines.load);
        }
        let conversation = Conversation::start(&launching, deadlines)?;
        let launch = Launch {
            configuration: index,
            block: match purpose {
                Purpose::Block(block, _) | Purpose::OneShot(block, _) => block,
                Purpose::OutputCheck => 0,
            },
            for_output_checks: purpose == Purpose::OutputCheck,
            pid: conversation.process.pid,
            converted: self.conversions.conversion_for(index).cloned(),
            gpus_before,
            files_bytes,
            ..Launch::default()
        };
        Ok(Launched::of(conversation, launch))
    }

    /// Before a measured launch: drops the files of the model and of the engine from the page cache, or reads them into it. Returns the
    /// bytes of the model's files; `None` if no case of the configuration measures a launch.
    async fn prepare_page_cache(
        &self,
        journal: &mut Journal<'_>,
        index: usize,
        page_cache: PageCache,
    ) -> Result<Option<u64>, LaunchError> {
        let cases = self.plan.cases_of(index);
        if !cases.iter().any(|&case| self.plan.cases[case].workload.kind == Kind::Launch) {
            return Ok(None);
        }
        let model = PathBuf::from(self.model_path(index));
        let packed: Vec<PathBuf> = self.packed.get(&index).into_iter().flatten().cloned().collect();
        let prepared = off_thread(move || {
            let of_model = page_cache::files_of(&model);
            let bytes = page_cache::bytes_of(&of_model);
            let files = [of_model, packed].concat();
            match page_cache {
                PageCache::Dropped => page_cache::drop_pages(&files).map(|()| (bytes, true)),
                PageCache::Kept => Ok((bytes, page_cache::fill(&files))),
            }
        });
        let unsupported = |error: anyhow::Error| {
            EngineFailure::without_process(Stage::Load, Cause::Unsupported(format!("{error:#}")))
        };
        let (bytes, is_prepared) = prepared.await?.map_err(unsupported)?;
        if !is_prepared {
            let message = "the model's files do not stay in memory, so `load` reads parts of them from the disk; use a smaller model, \
                           or end other programs";
            journal.warn(Some(index), message.into())?;
        }
        Ok(Some(bytes))
    }

    /// Whether an engine has loaded the model of this configuration in this run.
    pub fn has_loaded(&self, index: usize) -> bool {
        self.packed.contains_key(&index)
    }

    /// Remembers the files of packed weights that an engine has mapped, so that they can be dropped before a later launch.
    pub async fn note_packed_files(&mut self, launched: &Launched) -> Result<()> {
        let pid = launched.conversation.process.pid;
        let found = off_thread(move || page_cache::packed_files_of(&memory::tree(pid))).await?;
        self.packed.entry(launched.launch.configuration).or_default().extend(found);
        Ok(())
    }

    /// Whether an engine did not answer `hello` for the first time, or for the first time since its last answer. If so, warns
    /// that the engine is started once more.
    fn warn_of_first_missed_hello(&mut self, journal: &mut Journal<'_>, index: usize) -> Result<bool> {
        let is_first = self.missed_hello.insert(index);
        if is_first {
            let seconds = self.settings.deadlines.hello.as_secs_f64();
            let message = format!("no answer to `hello` within {seconds} s: the engine is started once more");
            journal.warn(Some(index), message)?;
        }
        Ok(is_first)
    }

    /// Converts the model for one-shot processes. A separate process reports the formats, because a one-shot process gets no
    /// `hello`.
    pub async fn convert_for_one_shots(
        &mut self,
        journal: &mut Journal<'_>,
        index: usize,
        block: u32,
    ) -> Result<(), LaunchError> {
        if block > 0 || self.plan.configurations[index].model.format.is_none() {
            return Ok(());
        }
        loop {
            let mut launched = self.start(journal, index, Purpose::OneShot(block, PageCache::Kept)).await?;
            let hello = launched.conversation.hello().await;
            launched.conversation.process.end(Duration::ZERO).await;
            return match hello {
                Ok(Hello::Known(facts)) => {
                    self.conversions.convert_for(journal, index, &facts).await.map(|_| ())
                }
                Ok(Hello::NoAnswer) if self.warn_of_first_missed_hello(journal, index)? => continue,
                // The requests will show the failure.
                _ => Ok(()),
            };
        }
    }

    pub fn model_path(&self, configuration: usize) -> &str {
        self.conversions.model_path(configuration)
    }
}

/// The facts that an engine reports about itself after a load.
fn loaded_detail(label: &str, pid: u32, hello: Option<&HelloFacts>, loaded: &Loaded) -> String {
    let facts = &loaded.facts;
    let version = hello.map(|hello| format!("{} {}", hello.engine, hello.version));
    let threads = facts.threads.map(|threads| text::plural(threads, "thread"));
    let weights = facts.weights_dtype.as_ref().map(|dtype| format!("weights in {dtype}"));
    let compute = facts.compute_dtype.as_ref().map(|dtype| format!("computes in {dtype}"));
    let parts = [version, facts.device.clone(), threads, weights, compute, Some(format!("process {pid}"))];
    format!("{label}: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// Ends a launch. An engine that has answered `hello` and can still answer gets `shutdown` first. A wrong reaction is a warning.
pub(super) async fn end(journal: &mut Journal<'_>, mut launched: Launched, can_answer: bool) -> Result<()> {
    let index = launched.launch.configuration;
    launched.conversation.process.resume();
    if can_answer
        && launched.hello().is_some()
        && let Err(cause) = launched.conversation.shutdown().await
    {
        let message =
            format!("did not shut down as the protocol requires: {cause}; its processes were ended");
        journal.warn(Some(index), message)?;
    }
    let grace = if can_answer { launched.conversation.deadlines.shutdown } else { EXIT_GRACE };
    let leftover = launched.conversation.process.end(grace).await;
    if !leftover.is_empty() && can_answer {
        journal
            .warn(Some(index), format!("left processes behind: {}; they were ended", leftover.join(", ")))?;
    }
    Ok(())
}
