//! The commands that need engines: names to candidates, candidates to a plan, the plan to a record, the record to a report.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};

use crate::asked;
use crate::cli::{RequestArgs, RunArgs, SetupArgs};
use crate::engine::{Deadlines, Keeper};
use crate::exit_code::{DONE, FAILED_CASES, INTERRUPTED, Usage};
use crate::interrupts::Interrupts;
use crate::listing;
use crate::machine::{self, Machine};
use crate::output;
use crate::plan::{Asked, Candidate, Mode, Plan};
use crate::progress::{Display, Progress};
use crate::record::{self, End, Entry, Header, RECORD_VERSION, Recorder, RunRecord, Warning, results_dir};
use crate::registry::{Found, Registry};
use crate::report::Report;
use crate::request;
use crate::run::{Run, Settings};
use crate::setup::{self, SettingUp};

pub fn measure(arguments: &RunArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let asked_for = asked::engines(&registry, arguments)?;
    let scenarios = asked::scenarios(&arguments.scenarios)?;
    let mut models = asked::models(&arguments.models)?;
    if let Some(expected) = &arguments.model_type {
        asked::expect_architecture(&models, expected)?;
    }
    let directory = arguments.results.clone().map_or_else(results_dir, Ok)?;
    check_destinations(&directory, arguments.json.as_deref())?;
    let id = run_id();
    // From here on nothing that this run starts outlives it.
    let keeper = Keeper::start(&id)?;
    let interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
    let mut progress = Progress::new(display(arguments));
    let mut listener = |event| progress.event(event);
    let (candidates, mut warnings) =
        prepare(&registry, &asked_for, arguments.no_setup, &keeper, &mut listener);
    warnings.extend(asked::identify(&mut models, &mut listener));
    let asked = asked::asked(arguments, &registry, candidates, models, scenarios)?;
    interrupts.keep();
    let mut recorder = Recorder::create(&directory, header(id, &asked))?;
    for warning in warnings {
        recorder.take(Entry::Warning(warning))?;
    }
    let settings = settings(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = Run::new(&mut recorder, &mut listener, settings);
    let end = runtime.block_on(until_interrupted(run, &interrupts));
    drop(keeper);
    // What was measured is shown also when the record could not take it any more.
    show(&recorder, arguments)?;
    Ok(exit_code(&recorder.record, end?, arguments))
}

/// What is being built goes on from where it stands next time; an environment that is half made is made anew. The keeper
/// ends whatever set-up had started.
const INTERRUPTED_SET_UP: &str = "interrupted during set-up: nothing was measured, so there is no record";

/// The first Ctrl-C ends the run and keeps what is there; a second one ends the program where it stands.
async fn until_interrupted(run: Run<'_>, interrupts: &Interrupts) -> Result<Option<End>> {
    let mut again = interrupts.heard.clone();
    tokio::select! {
        end = run.run(interrupts.heard.clone()) => end.map(Some),
        _ = again.wait_for(|&heard| heard > 1) => Ok(None),
    }
}

/// Builds and sets up what was asked for, as far as it may; what cannot run is a candidate with its reason.
fn prepare(
    registry: &Registry,
    asked_for: &[Found],
    no_setup: bool,
    keeper: &Keeper,
    listener: &mut dyn FnMut(crate::event::Event),
) -> (Vec<Candidate>, Vec<Warning>) {
    let mut setting_up = SettingUp { registry, mark: keeper.mark(), listener, warnings: Vec::new() };
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
    (candidates, setting_up.warnings)
}

/// A run that cannot be kept is refused before anything is built for it.
fn check_destinations(results: &Path, json: Option<&Path>) -> Result<()> {
    record::check_writable(results)?;
    let Some(json) = json.filter(|json| *json != Path::new("-")) else { return Ok(()) };
    let folder = json.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    if json.is_dir() || !folder.is_dir() {
        let json = json.display();
        return Err(
            Usage(format!("cannot write the report to `{json}`: no such folder, or it is one")).into()
        );
    }
    Ok(())
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
    let _interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
    let mark = keeper.mark();
    SettingUp { registry: &registry, mark, listener: &mut listener, warnings: Vec::new() }.set_up(engine)?;
    output::print(format!("`{name}` is ready\n").as_bytes())?;
    Ok(DONE)
}

pub fn request(arguments: &RequestArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let found = registry.find(&arguments.engine).map_err(|error| Usage(format!("{error:#}")))?;
    let run = RunArgs { launches: 1, seed: arguments.seed, device: vec!["cpu".into()], ..RunArgs::default() };
    let scenarios = asked::scenarios(std::slice::from_ref(&arguments.scenario))?;
    let models = vec![asked::model(arguments.model.as_deref())?];
    let asked = asked::asked(&run, &registry, vec![registry.candidate(&found, None)], models, scenarios)?;
    debug_assert_eq!(asked.mode, Mode::Warm);
    if asked.candidates.is_empty() {
        bail!("nothing to ask");
    }
    output::print(&request::lines(&asked, arguments.text)?)?;
    Ok(DONE)
}
