//! The commands that need engines: names to candidates, candidates to a plan, the plan to a record, the record to a report.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{RequestArgs, RunArgs, SetupArgs};
use crate::engine::{Deadlines, Keeper};
use crate::exit_code::{DONE, FAILED_CASES, INTERRUPTED, Usage};
use crate::listing;
use crate::machine::{self, Machine};
use crate::output;
use crate::plan::{Asked, Candidate, Mode, Model, Plan};
use crate::progress::{Display, Progress};
use crate::record::{End, Header, RECORD_VERSION, Recorder, RunRecord, results_dir};
use crate::registry::{DEFAULT_PRESET, Found, Registry};
use crate::report::Report;
use crate::request;
use crate::run::{Run, Settings};
use crate::scenario::{self, Scenario};
use crate::setup::{self, SettingUp};

pub fn measure(arguments: &RunArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let asked_for = named(&registry, arguments)?;
    let scenarios = scenarios(&arguments.scenarios)?;
    let models = models(&arguments.models)?;
    let id = run_id();
    // From here on nothing that this run starts outlives it.
    let keeper = Keeper::start(&id)?;
    let mut progress = Progress::new(display(arguments));
    let mut listener = |event| progress.event(event);
    let candidates = prepare(&registry, &asked_for, arguments.no_setup, &keeper, &mut listener);
    let asked = asked(arguments, &registry, candidates, models, scenarios);
    let header = header(id, &asked);
    let directory = arguments.results.clone().map_or_else(results_dir, Ok)?;
    let mut recorder = Recorder::create(&directory, header)?;
    let settings = settings(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = runtime.block_on(until_interrupted(Run::new(&mut recorder, &mut listener, settings)))?;
    drop(keeper);
    show(&recorder, arguments)?;
    Ok(exit_code(&recorder.record, end, arguments))
}

/// The first Ctrl-C ends the run and keeps what is there; a second one ends the program where it stands.
async fn until_interrupted(run: Run<'_>) -> Result<Option<End>> {
    let (interrupt, interrupted) = tokio::sync::watch::channel(false);
    let mut signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let run = run.run(interrupted);
    tokio::pin!(run);
    loop {
        tokio::select! {
            end = &mut run => return end.map(Some),
            _ = signals.0.recv() => {}
            _ = signals.1.recv() => {}
        }
        if interrupt.send_replace(true) {
            return Ok(None);
        }
    }
}

/// Builds and sets up what was asked for, as far as it may; what cannot run is a candidate with its reason.
fn prepare(
    registry: &Registry,
    asked_for: &[Found],
    no_setup: bool,
    keeper: &Keeper,
    listener: &mut dyn FnMut(crate::event::Event),
) -> Vec<Candidate> {
    let mut setting_up = SettingUp { registry, mark: keeper.mark(), listener };
    let mut prepared: std::collections::BTreeMap<&str, Option<_>> = std::collections::BTreeMap::new();
    let mut candidates = Vec::new();
    for found in asked_for {
        let trouble = match found {
            // Presets of one engine share its build.
            Found::Engine(engine, _) if !no_setup => prepared
                .entry(&engine.manifest.name)
                .or_insert_with(|| setting_up.prepare(engine).err())
                .clone(),
            _ => None,
        };
        candidates.push(registry.candidate(found, trouble));
    }
    candidates
}

/// The engines that the command line names, `--all` standing for every engine in the tree.
fn named<'a>(registry: &'a Registry, arguments: &RunArgs) -> Result<Vec<Found<'a>>> {
    let mut names = arguments.engines.clone();
    if arguments.all {
        for engine in &registry.engines {
            let others = engine.manifest.presets.keys().filter(|preset| *preset != DEFAULT_PRESET);
            names.push(engine.manifest.name.clone());
            if arguments.presets {
                names.extend(others.map(|preset| format!("{}:{preset}", engine.manifest.name)));
            }
        }
    }
    if names.is_empty() {
        let hint = "`--all` for every engine, `-e NAME` or `-e ./a-program` for one; `orchestrate engines` lists them";
        return Err(Usage(format!("no engine to measure\nhint: {hint}")).into());
    }
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    names.iter().map(|name| registry.find(name).map_err(usage)).collect()
}

pub fn scenarios(names: &[String]) -> Result<Vec<&'static Scenario>> {
    let mut found: Vec<&'static Scenario> = Vec::new();
    for name in names {
        let Some(scenarios) = scenario::named(name) else {
            let known: Vec<_> = listing::scenario_names().map(|name| format!("`{name}`")).collect();
            return Err(Usage(format!("no scenario `{name}`\nhint: there are {}", known.join(", "))).into());
        };
        for scenario in scenarios {
            if !found.iter().any(|it| it.name == scenario.name) {
                found.push(scenario);
            }
        }
    }
    Ok(found)
}

fn models(names: &[String]) -> Result<Vec<Model>> {
    let names: Vec<Option<&str>> = match names {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    names.into_iter().map(model).collect()
}

pub fn model(name: Option<&str>) -> Result<Model> {
    let path = model_files::resolve(name).map_err(|error| Usage(format!("{error:#}")))?;
    let path = path.canonicalize().with_context(|| format!("cannot open the model `{}`", path.display()))?;
    let name = path.file_stem().filter(|_| path.is_file()).or(path.file_name()).unwrap_or(path.as_os_str());
    Ok(Model { name: name.to_string_lossy().into_owned(), path: path.to_string_lossy().into_owned() })
}

fn asked(
    arguments: &RunArgs,
    registry: &Registry,
    candidates: Vec<Candidate>,
    models: Vec<Model>,
    scenarios: Vec<&'static Scenario>,
) -> Asked {
    let reference = arguments.reference.clone().or_else(|| registry.reference().map(String::from));
    Asked {
        reference: reference.unwrap_or_default(),
        candidates,
        models,
        scenarios,
        devices: arguments.device.clone(),
        dtypes: match arguments.dtype.as_slice() {
            [] => vec![None],
            dtypes => dtypes.iter().cloned().map(Some).collect(),
        },
        threads: match arguments.threads.as_slice() {
            [] => vec![all_threads()],
            threads => threads.to_vec(),
        },
        options: arguments.options.iter().cloned().collect(),
        mode: arguments.mode,
        launches: arguments.launches,
        seed: arguments.seed,
        prompt: arguments.prompt.clone(),
        max_new_tokens: arguments.max_new_tokens,
        samples: arguments.iterations,
        warmup: arguments.warmup,
        temperature: arguments.temperature,
    }
}

/// As many as this process may use: a container's share, not the machine's.
pub fn all_threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
}

fn header(id: String, asked: &Asked) -> Header {
    Header {
        record_version: RECORD_VERSION,
        id,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        orchestrate_version: env!("CARGO_PKG_VERSION").into(),
        commit: machine::commit(),
        command: std::env::args().collect(),
        machine: Machine::probe(),
        plan: Plan::new(asked),
    }
}

/// Sorts by time, and is another for two runs in one second.
pub fn run_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    format!("{time}-{}", std::process::id())
}

fn settings(arguments: &RunArgs) -> Settings {
    Settings { deadlines: deadlines(arguments.timeout), debug: arguments.debug }
}

pub fn deadlines(timeout: Option<u64>) -> Deadlines {
    let mut deadlines = Deadlines::default();
    if let Some(seconds) = timeout.map(Duration::from_secs) {
        deadlines.load = seconds;
        deadlines.answer = seconds;
        deadlines.hello = deadlines.hello.min(seconds);
        deadlines.shutdown = deadlines.shutdown.min(seconds);
    }
    deadlines
}

fn display(arguments: &RunArgs) -> Display {
    if std::io::stderr().is_terminal() && !arguments.debug { Display::Live } else { Display::Plain }
}

fn show(recorder: &Recorder, arguments: &RunArgs) -> Result<()> {
    let report = Report::of(&recorder.record);
    if arguments.json.as_deref() != Some(Path::new("-")) {
        output::print(&output::render(&report, &arguments.format))?;
    }
    match &arguments.json {
        Some(path) => output::write_json(&report, path),
        None => Ok(()),
    }
}

fn exit_code(record: &RunRecord, end: Option<End>, arguments: &RunArgs) -> u8 {
    if end != Some(End::Finished) {
        return INTERRUPTED;
    }
    // Under `--all` an engine that cannot run here is a row, unless it was asked for by name as well.
    let excused = |configuration: usize| {
        let engine = &record.header.plan.configurations[configuration].engine;
        let named = |name: &String| name.split(':').next() == Some(engine);
        arguments.all && !arguments.engines.iter().any(named)
    };
    let failed = record.failures.iter().any(|it| it.kind != "unavailable" || !excused(it.configuration));
    if failed || record.samples.is_empty() { FAILED_CASES } else { DONE }
}

pub fn set_up(arguments: &SetupArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let Some(name) = arguments.engine.as_deref().filter(|_| !arguments.list) else {
        return listing::set_ups(&registry);
    };
    let Some(engine) = registry.engines.iter().find(|engine| engine.manifest.name == name) else {
        return Err(Usage(format!("no engine `{name}`\nhint: orchestrate engines")).into());
    };
    if arguments.remove {
        let removed = setup::remove(engine)?;
        let lines: String = removed.iter().map(|path| format!("removed {}\n", path.display())).collect();
        output::print(
            if lines.is_empty() { format!("nothing was set up for `{name}`\n") } else { lines }.as_bytes(),
        )?;
        return Ok(DONE);
    }
    let keeper = Keeper::start(&run_id())?;
    let display = if std::io::stderr().is_terminal() { Display::Live } else { Display::Plain };
    let mut progress = Progress::new(display);
    let mut listener = |event| progress.event(event);
    SettingUp { registry: &registry, mark: keeper.mark(), listener: &mut listener }.set_up(engine)?;
    output::print(format!("`{name}` is ready\n").as_bytes())?;
    Ok(DONE)
}

pub fn request(arguments: &RequestArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let found = registry.find(&arguments.engine).map_err(|error| Usage(format!("{error:#}")))?;
    let run = RunArgs { launches: 1, seed: arguments.seed, device: vec!["cpu".into()], ..RunArgs::default() };
    let scenarios = scenarios(std::slice::from_ref(&arguments.scenario))?;
    let models = vec![model(arguments.model.as_deref())?];
    let asked = asked(&run, &registry, vec![registry.candidate(&found, None)], models, scenarios);
    debug_assert_eq!(asked.mode, Mode::Warm);
    if asked.candidates.is_empty() {
        bail!("nothing to ask");
    }
    output::print(&request::lines(&asked)?)?;
    Ok(DONE)
}
