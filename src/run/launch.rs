//! One launch of a configuration: start, hello, load; and its end.

use std::time::{Duration, Instant};

use protocol::{HelloFacts, Load, environment};

use super::blocking::off_thread;
use super::{Run, Stop};
use crate::machine::busy::{ProcessorTime, Worked};
use crate::machine::gpu;
use crate::machine::memory::{self, Holding};
use crate::plan::Configuration;
use crate::record::{Entry, Launch, Role};
use crate::run::event::Event;
use crate::run::process::{Cause, Conversation, Hello, Launching, Stage};

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
    pub launch: Launch,
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
    /// Its configuration and its number, for failures.
    pub fn of(&self) -> (usize, Option<u32>) {
        (self.launch.configuration, Some(self.launch.launch))
    }

    pub fn hello(&self) -> Option<&HelloFacts> {
        self.launch.hello.as_ref()
    }

    /// Of its processes as they are known. Before its first answer none are: looking for them would delay its first request,
    /// and a cold start counts that.
    pub fn processor_time(&self) -> ProcessorTime {
        ProcessorTime::of(&self.tree)
    }

    /// Those that compute for it now: its own tree, and the trees of those that it says work for it elsewhere.
    pub fn processes(&self) -> Vec<u32> {
        let elsewhere = self.launch.loaded.iter().flat_map(|loaded| &loaded.pids);
        let roots = std::iter::once(&self.talk.process.pid).chain(elsewhere);
        let mut processes: Vec<u32> = roots.flat_map(|&root| memory::tree(root)).collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }
}

impl Run<'_> {
    /// One-shots are asked nothing but their request, so one process more says what the engine reads.
    pub(super) async fn convert_for_one_shots(&mut self, index: usize, block: u32) -> Result<(), Stop> {
        if block > 0 || self.plan.configurations[index].model.format.is_none() {
            return Ok(());
        }
        let mut launched = self.start(index, Purpose::Once(block)).await?;
        let hello = launched.talk.hello().await;
        launched.talk.process.end(Duration::ZERO).await;
        self.launches -= 1;
        match hello {
            Ok(Hello::Known(facts)) => self.convert_for(index, &facts).await.map(|_| ()),
            // What is wrong with it shows in its requests.
            _ => Ok(()),
        }
    }

    pub(super) async fn launch(&mut self, index: usize, purpose: Purpose) -> Result<Launched, Stop> {
        let mut launched = self.start(index, purpose).await?;
        if self.minimal.contains(&index) {
            // Its launch is recorded with its first answer, which says what was loaded.
            return Ok(launched);
        }
        match launched.talk.hello().await {
            Ok(Hello::Known(facts)) => {
                if self.convert_for(index, &facts).await? {
                    // Started anew, so that no clock counts the conversion.
                    launched.talk.process.end(Duration::ZERO).await;
                    // No record refers to the one that only said what it reads.
                    self.launches -= 1;
                    return Box::pin(self.launch(index, purpose)).await;
                }
                launched.launch.hello_ns = Some(launched.talk.since_start(Instant::now()));
                launched.launch.hello = Some(*facts);
            }
            Ok(hello @ (Hello::Minimal | Hello::Silent)) => {
                let silent = matches!(hello, Hello::Silent);
                let seconds = self.settings.deadlines.hello.as_secs_f64();
                if silent && self.silent_once.insert(index) {
                    self.warn(
                        index,
                        format!(
                            "no answer to `hello` within {seconds} s: it is started once more and asked again"
                        ),
                    )?;
                    launched.talk.process.end(Duration::ZERO).await;
                    // No record refers to the one that was silent.
                    self.launches -= 1;
                    return Box::pin(self.launch(index, purpose)).await;
                }
                let configuration = &self.plan.configurations[index];
                if !configuration.options.is_empty() {
                    let cause = match silent {
                        true => Cause::Timeout(self.settings.deadlines.hello),
                        false => Cause::Unsupported("knows no `load`, so that no option can be set".into()),
                    };
                    return Err(launched.talk.fault(Stage::Hello, cause).into());
                }
                if silent {
                    self.warn(
                        index,
                        format!(
                            "no answer to `hello` within {seconds} s in two launches: it is driven with `generate` alone"
                        ),
                    )?;
                }
                self.minimal.insert(index);
                launched.talk.process.end(Duration::ZERO).await;
                return Box::pin(self.launch(index, purpose)).await;
            }
            Err(cause) => return Err(launched.talk.fault(Stage::Hello, cause).into()),
        }
        let loaded = self.load(&mut launched, index).await;
        // The launch is recorded either way: a failure refers to it.
        self.recorder.take(Entry::Launch(Box::new(launched.launch.clone())))?;
        loaded.map_err(|cause| launched.talk.fault(Stage::Load, cause))?;
        Ok(launched)
    }

    /// A launch for an output check, which no budget waits for: `None` where it had used up what was left of it.
    pub(super) async fn launch_within(
        &mut self,
        index: usize,
        left: Option<Duration>,
    ) -> Result<Option<Launched>, Stop> {
        let Some(left) = left else { return self.launch(index, Purpose::Proof).await.map(Some) };
        let before = self.launches;
        match tokio::time::timeout(left, self.launch(index, Purpose::Proof)).await {
            Ok(launched) => launched.map(Some),
            Err(_) => {
                // It is recorded when it is loaded, so that no record refers to it.
                self.launches = before;
                Ok(None)
            }
        }
    }

    async fn load(&mut self, launched: &mut Launched, index: usize) -> Result<(), Cause> {
        let model = self.model_path(index).to_string();
        let configuration = &self.plan.configurations[index];
        let (label, listener) = (&configuration.label, &mut self.listener);
        let loaded = launched.talk.load(load_request(configuration, &model), |said| {
            listener(Event::Loading { label: label.clone(), phase: said.phase, fraction: said.fraction });
        });
        let (loaded, loaded_ns) = loaded.await?;
        (self.listener)(Event::Loaded { label: label.clone(), load_ns: loaded_ns });
        launched.launch.loaded = Some(loaded);
        launched.launch.loaded_ns = Some(loaded_ns);
        Ok(())
    }

    /// The end of the run's budget, where it has one.
    pub(super) fn budget_ends(&self) -> Option<Instant> {
        self.plan.extent.budget_ns.map(|ns| self.began + Duration::from_nanos(ns))
    }

    pub(super) async fn start(&mut self, index: usize, purpose: Purpose) -> Result<Launched, Stop> {
        let configuration = &self.plan.configurations[index];
        if let Purpose::Block(_) = purpose {
            (self.listener)(Event::LaunchStarted { label: configuration.label.clone() });
        }
        let (run, debug) = (&self.recorder.record.header.id, self.settings.debug);
        let launching = launching(configuration, self.model_path(index), run, self.started, debug);
        // Counted also when it fails to start, so that no failure names another launch.
        self.launches += 1;
        self.started += 1;
        // Before it is started, so that no clock of its counts it.
        let gpus_before =
            if configuration.device.is_cpu() { Vec::new() } else { off_thread(gpu::held).await? };
        let talk = Conversation::start(&launching, self.settings.deadlines)?;
        let pid = talk.process.pid;
        let launch = Launch {
            launch: self.launches - 1,
            configuration: index,
            block: match purpose {
                Purpose::Block(block) | Purpose::Once(block) => block,
                Purpose::Proof => 0,
            },
            proves: purpose == Purpose::Proof,
            pid,
            converted: self.converted.get(&index).cloned(),
            gpus_before,
            ..Launch::default()
        };
        let (tree, worked, holding) = (Vec::new(), Worked::default(), Holding::default());
        Ok(Launched { talk, launch, asked: 0, at_rest: false, tree, worked, holding })
    }

    /// Ends a launch. One that is alive is asked to end first, and how it does is noted.
    pub(super) async fn end(&mut self, mut launched: Launched, alive: bool) -> Result<(), Stop> {
        let index = launched.launch.configuration;
        launched.talk.process.wake();
        if alive
            && launched.hello().is_some()
            && let Err(cause) = launched.talk.shutdown().await
        {
            self.warn(index, format!("did not shut down as the protocol asks: {cause}; it was ended"))?;
        }
        let grace = if alive { launched.talk.deadlines.shutdown } else { Duration::from_millis(100) };
        let left = launched.talk.process.end(grace).await;
        if left > 0 && alive {
            self.warn(index, format!("left processes behind ({left}); they were ended"))?;
        }
        Ok(())
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
