//! One launch of a configuration, and how it is started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use protocol::{Facts, HelloFacts, Load, environment};
use serde_json::{Map, Value};

use super::blocking::off_thread;
use super::journal::Journal;
use crate::machine::cpu_time::{CpuTime, CpuUse};
use crate::machine::gpu;
use crate::machine::memory::{self, MemoryReadings};
use crate::plan::Configuration;
use crate::plan::axes::PageCache;
use crate::record::{Entry, HeldMemory, Launch, RequestKind, WarmUp};
use crate::run::process::{
    Answer, Cause, Conversation, Deadlines, EngineFailure, KeeperHandle, LaunchError, Launching,
    PassedVariables, Stage,
};
use crate::run::verify::Expected;

/// The time that an engine has to end by itself after `failed`.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(100);

/// The settings of a run that are not in its plan.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub debug: bool,
    /// The user's environment variables that engines get beside the usual ones.
    pub passed: PassedVariables,
    /// The time of the check of the measured tokens, as earlier runs show it.
    pub token_check: Option<Duration>,
    /// The keeper, which starts the engines. Without a keeper, this program starts them, and the end of a run does not end its
    /// descendants.
    pub keeper: Option<KeeperHandle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The requests of the block with this number.
    Block(u32, PageCache),
    /// One request of a block, or a `hello` to learn the formats that the engine reads.
    OneShot(u32, PageCache),
    /// An output check, or the costs of dtypes. No sample comes from such a launch.
    OutputCheck,
}

/// Checks an answer against the request and against the facts of the engine that gave it.
pub(super) fn verify_answer(launch: &Launch, answer: &Answer, expected: Expected) -> Result<(), Cause> {
    let expected = Expected { elapsed_ns: answer.elapsed_ns(), ..expected };
    let facts = launch.loaded.as_ref().map(|loaded| &loaded.facts);
    expected.with_engine(launch.hello.as_ref(), facts).verify(&answer.generated)
}

/// A started engine. `Launches::launch` also loads the model, if the engine speaks the whole protocol.
pub(super) struct Launched {
    pub conversation: Conversation,
    /// The launch as known so far.
    pub launch: Launch,
    /// The number of the launch, once the launch is in the record.
    recorded: Option<u32>,
    /// Warm-ups that ended before the launch was recorded. A launch without `hello` is recorded with its first answer.
    unrecorded_warm_ups: Vec<WarmUp>,
    /// The number of requests so far. Each request has its own id, so that a repeated answer is not mistaken for a new one.
    pub requests: u64,
    /// The engine's processes are paused.
    pub is_paused: bool,
    /// The last request has no answer, for example because the check ended, so the engine may still compute.
    pub is_unanswered: bool,
    /// The engine's processes, as found after its last answer.
    tree: Vec<u32>,
    /// The CPU time of the last request.
    pub cpu_use_of_request: CpuUse,
    memory_readings: MemoryReadings,
}

impl Launched {
    pub fn of(conversation: Conversation, launch: Launch) -> Self {
        let (tree, memory_readings) = (Vec::new(), MemoryReadings::default());
        let (recorded, unrecorded_warm_ups, requests) = (None, Vec::new(), 0);
        Self {
            conversation,
            launch,
            recorded,
            unrecorded_warm_ups,
            requests,
            is_paused: false,
            is_unanswered: false,
            tree,
            cpu_use_of_request: CpuUse::default(),
            memory_readings,
        }
    }

    /// The number of the launch in the record. The first call records the launch as it is known now.
    pub fn number(&mut self, journal: &mut Journal) -> Result<u32> {
        if let Some(number) = self.recorded {
            return Ok(number);
        }
        let number = journal.record().launches.len() as u32;
        self.launch.launch = number;
        journal.take(Entry::Launch(Box::new(self.launch.clone())))?;
        self.recorded = Some(number);
        for warm_up in self.unrecorded_warm_ups.drain(..) {
            journal.take(Entry::WarmUp(WarmUp { launch: number, ..warm_up }))?;
        }
        Ok(number)
    }

    /// Records the end of a warm-up with the launch's number, as soon as the launch is in the record.
    pub fn warmed_up(&mut self, journal: &mut Journal, warm_up: WarmUp) -> Result<()> {
        match self.recorded {
            Some(launch) => journal.take(Entry::WarmUp(WarmUp { launch, ..warm_up })),
            None => {
                self.unrecorded_warm_ups.push(warm_up);
                Ok(())
            }
        }
    }

    /// Checks an answer against the request and against the engine's own facts.
    pub fn verify(&self, answer: &Answer, expected: Expected) -> Result<(), Cause> {
        verify_answer(&self.launch, answer, expected)
    }

    /// A failure of this engine, with the number of the launch if the launch is recorded.
    pub fn failure(&self, when: Stage, cause: Cause) -> LaunchError {
        let stderr = self.conversation.process.stderr();
        LaunchError::EngineFailure(EngineFailure { when, cause, stderr, launch: self.recorded })
    }

    pub fn next_id(&mut self) -> u64 {
        self.requests += 1;
        self.requests - 1
    }

    pub fn facts(&self) -> Option<&Facts> {
        self.launch.loaded.as_ref().map(|loaded| &loaded.facts)
    }

    pub fn hello(&self) -> Option<&HelloFacts> {
        self.launch.hello.as_ref()
    }

    /// The CPU time of the known processes. No process is known before the first answer: a search would delay the first
    /// request, and a cold start includes that request.
    pub fn cpu_time(&self) -> CpuTime {
        CpuTime::of(&self.tree)
    }

    /// The roots of the process trees that compute for the engine: its own process, and the processes that it reports.
    pub fn roots(&self) -> Vec<u32> {
        let reported = self.launch.loaded.iter().flat_map(|loaded| loaded.pids.clone());
        std::iter::once(self.conversation.process.pid).chain(reported).collect()
    }

    /// Finds the engine's processes, and reads their peak memory and their current memory. Soon after a slow reading,
    /// current memory is read only if that reading is older than `max_age`. Reading waits for a process that is stuck in the kernel, so another thread
    /// does it.
    pub async fn read_memory(&mut self, max_age: Duration) -> Result<(Option<u64>, Option<HeldMemory>)> {
        let roots = self.roots();
        let mut memory_readings = std::mem::take(&mut self.memory_readings);
        let read = move || {
            let mut tree: Vec<u32> = roots.into_iter().flat_map(memory::tree).collect();
            tree.sort_unstable();
            tree.dedup();
            let (peak, held) = (memory::peak_resident_bytes(&tree), memory_readings.read(&tree, max_age));
            (tree, memory_readings, peak, held)
        };
        let (tree, memory_readings, peak, held) = off_thread(read).await?;
        (self.tree, self.memory_readings) = (tree, memory_readings);
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
        options: with_absolute_paths(&configuration.options, &|path| std::path::absolute(path).ok()),
    }
}

/// Load options in which the user's relative paths are absolute, because an engine runs in a folder of its own. A text counts
/// as a path if it begins with `./` or `../`, or if it names an existing file or folder and has a `/` or an extension.
fn with_absolute_paths(
    options: &Map<String, Value>,
    absolute: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Map<String, Value> {
    let resolved = |value: &Value| {
        let text = value.as_str()?;
        let path = absolute(Path::new(text)).filter(|path| path.to_str() != Some(text))?;
        let is_explicit = text.starts_with("./") || text.starts_with("../");
        let looks_like_path = text.contains('/') || Path::new(text).extension().is_some();
        let is_path = is_explicit || looks_like_path && path.exists();
        is_path.then(|| Value::from(path.to_string_lossy()))
    };
    options
        .iter()
        .map(|(name, value)| (name.clone(), resolved(value).unwrap_or_else(|| value.clone())))
        .collect()
}

/// The environment variables with relative paths, made absolute, because the paths begin at the user's folder and not at the
/// engine's. Some variables have one path, some have a list of paths.
fn variables_with_absolute_paths() -> Vec<(String, OsString)> {
    const LISTS: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];
    let is_path = |name: &str| name == paths::HOME_VARIABLE || name.starts_with(paths::PYTHON_VARIABLE);
    let absolute = |path: &Path| std::path::absolute(path).ok().map(PathBuf::into_os_string);
    let changed = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let resolved = if LISTS.contains(&name.as_str()) {
            // An empty entry means the current folder to loaders, so it is the user's folder too.
            let entries = std::env::split_paths(&value);
            let entries = entries
                .map(|it| std::path::absolute(if it.as_os_str().is_empty() { ".".into() } else { it }));
            std::env::join_paths(entries.collect::<Result<Vec<_>, _>>().ok()?).ok()?
        } else if is_path(&name) && value.as_encoded_bytes().contains(&b'/') {
            absolute(Path::new(&value))?
        } else {
            return None;
        };
        (resolved != value).then_some((name, resolved))
    });
    changed.collect()
}

/// The command and environment of an engine's start.
pub fn launching(
    configuration: &Configuration,
    model: &str,
    run: &str,
    process_number: u32,
    settings: &Settings,
) -> Launching {
    let set = |name: &str, value: &str| (name.to_string(), value.into());
    let mut variables = vec![
        set(environment::MODEL, model),
        set(environment::DEVICE, configuration.device.as_str()),
        set(environment::THREADS, &configuration.threads.to_string()),
    ];
    variables.extend(configuration.dtype.iter().map(|dtype| set(environment::DTYPE, dtype)));
    variables.extend(variables_with_absolute_paths());
    variables.extend(gpu::order_for_processes().map(|(name, value)| set(name, value)));
    Launching {
        label: configuration.label.clone(),
        command: configuration.command.clone(),
        variables,
        run: run.to_string(),
        launch: format!("{run}/{process_number}"),
        debug: settings.debug,
        passed: settings.passed.clone(),
        keeper: settings.keeper.clone(),
    }
}

pub(super) fn stage(kind: RequestKind, index: u32) -> Stage {
    match kind {
        RequestKind::Warmup => Stage::Warmup(index),
        RequestKind::Discarded => Stage::BeforeSample(index),
        RequestKind::Measured => Stage::Sample(index),
    }
}
