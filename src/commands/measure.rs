//! The commands that need engines: names to candidates, candidates to a plan, the plan to a record, the record to a report.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};

use crate::analysis::agreement;
use crate::analysis::compare::Judgement;
use crate::cli::exit_code::{DONE, FAILED_CASES, INTERRUPTED, Usage};
use crate::cli::{JudgeArgs, RequestArgs, RunArgs, SetupArgs, ViewArgs};
use crate::commands::baseline::{self, Against};
use crate::commands::calibrate;
use crate::commands::dry_run;
use crate::commands::interrupts::Interrupts;
use crate::commands::listing;
use crate::commands::output;
use crate::commands::progress::{Display, Progress};
use crate::commands::request;
use crate::engines::own_python;
use crate::engines::registry::{Found, Registry};
use crate::engines::setup::{self, SettingUp};
use crate::machine::{self, Machine};
use crate::plan::asked;
use crate::plan::{Asked, Candidate, Mode, Plan, Start};
use crate::record::{
    self, End, Entry, Failure, Header, RECORD_VERSION, Recorder, RunRecord, Warning, results_dir,
};
use crate::report::{self, Report};
use crate::run::event::Event;
use crate::run::process::{Deadlines, Keeper};
use crate::run::{Run, Settings};
use crate::text;

pub fn measure(arguments: &RunArgs) -> Result<u8> {
    baseline::check_arguments(arguments)?;
    let against = Against::open(&arguments.baseline)?;
    if arguments.extent.dry_run {
        // Whether the weights are the same is only known when they have been read, so that nothing is refused here.
        let judge = JudgeArgs { force: true, ..JudgeArgs::default() };
        return dry_run(arguments, |asked| planned(asked, against.as_ref(), &judge));
    }
    let measured = run(arguments, |asked| planned(asked, against.as_ref(), &arguments.judge))?;
    // What was interrupted is judged by whoever wants it.
    let finished = matches!(measured.end, Ok(Some(End::Finished)));
    let judged = against.as_ref().filter(|_| finished);
    let judged = judged.map(|against| against.judge(&measured.recorder.record, &arguments.judge));
    // What was measured is shown also when the record could not take it any more.
    show(&measured.recorder, judged.as_ref(), arguments)?;
    let code = exit_code(&measured.recorder.record, measured.end?, arguments);
    baseline::conclude(arguments, judged, &measured.recorder, code)
}

fn planned(asked: &Asked, against: Option<&Against>, judge: &JudgeArgs) -> Result<Planned> {
    let mut planned = Planned::from(Plan::new(asked));
    if let Some(against) = against {
        planned.warnings = against.prepare(&mut planned.plan, &Machine::probe(), judge)?;
    }
    Ok(planned)
}

/// A plan, with what a reader of its record should know from the start.
#[derive(Debug, Default)]
pub struct Planned {
    pub plan: Plan,
    pub warnings: Vec<Warning>,
}

impl From<Plan> for Planned {
    fn from(plan: Plan) -> Self {
        Self { plan, warnings: Vec::new() }
    }
}

/// A record that is written, and how its run ended: `Ok(None)` by a second Ctrl-C.
pub struct Measured {
    pub recorder: Recorder,
    pub end: Result<Option<End>>,
}

/// Finds, builds and sets up what was asked for, plans it and runs the plan.
pub fn run<P: Into<Planned>>(
    arguments: &RunArgs,
    plan: impl FnOnce(&Asked) -> Result<P>,
) -> Result<Measured> {
    let registry = Registry::open()?;
    // First, because a suite's name may stand for engines too.
    let scenarios = asked::scenarios(&registry, &arguments.scenarios)?;
    let asked_for = asked::engines(&registry, arguments)?;
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
    let (candidates, mut warnings) = prepare(&registry, &asked_for, arguments, &keeper, &mut listener);
    warnings.extend(asked::identify(&mut models, &mut listener));
    let asked = asked::asked(arguments, &registry, candidates, models, scenarios)?;
    let planned: Planned = plan(&asked)?.into();
    warnings.extend(planned.warnings);
    for warning in own_python::warnings(&registry, &planned.plan) {
        listener(Event::Warned(warning.clone()));
        warnings.push(warning);
    }
    let (header, unreadable) = header(id, planned.plan);
    warnings.extend(unreadable.map(|message| Warning { configuration: None, message }));
    interrupts.keep();
    let mut recorder = Recorder::create(&directory, header)?;
    for warning in warnings {
        recorder.take(Entry::Warning(warning))?;
    }
    let settings = settings(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = Run::new(&mut recorder, &mut listener, settings);
    let end = runtime.block_on(until_interrupted(run, &interrupts));
    // A thread that still blocks is left alone after that: it holds nothing that this program needs.
    runtime.shutdown_timeout(LAST_OF_THREADS);
    drop(keeper);
    Ok(Measured { recorder, end })
}

/// Says what `run` would do.
pub fn dry_run<P: Into<Planned>>(arguments: &RunArgs, plan: impl FnOnce(&Asked) -> Result<P>) -> Result<u8> {
    let registry = Registry::open()?;
    let scenarios = asked::scenarios(&registry, &arguments.scenarios)?;
    let asked_for = asked::engines(&registry, arguments)?;
    let candidates = asked_for.iter().map(|found| registry.candidate(found)).collect();
    let asked = asked::asked(arguments, &registry, candidates, asked::models(&arguments.models)?, scenarios)?;
    let directory = arguments.results.clone().map_or_else(results_dir, Ok)?;
    let planned: Planned = plan(&asked)?.into();
    let said = dry_run::describe(&planned.plan, &dry_run::history(&directory));
    output::print(said.as_bytes())?;
    Ok(DONE)
}

/// After an interrupt a conversion of a model may still remove what it had written.
const LAST_OF_THREADS: Duration = Duration::from_secs(3);

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
    arguments: &RunArgs,
    keeper: &Keeper,
    listener: &mut dyn FnMut(Event),
) -> (Vec<Candidate>, Vec<Warning>) {
    let mut setting_up = SettingUp::new(registry, keeper.mark(), listener);
    let mut candidates = Vec::new();
    for found in asked_for {
        let mut troubles = Vec::new();
        if let Found::Engine(engine, _) = found
            && !arguments.no_setup
        {
            for device in &arguments.device {
                troubles.extend(setting_up.prepare(engine.on(device)).err().map(|trouble| (device, trouble)));
            }
        }
        let mut candidate = registry.candidate(found);
        for (device, trouble) in troubles {
            candidate.start_on(device, Start::never(trouble));
        }
        candidates.push(candidate);
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

/// With what is known of this machine's noise, and what is wrong with that.
fn header(id: String, plan: Plan) -> (Header, Option<String>) {
    let machine = Machine::probe();
    let (floors, unreadable) = calibrate::known_floors(&plan, &machine);
    let header = Header {
        record_version: RECORD_VERSION,
        id,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        orchestrate_version: env!("CARGO_PKG_VERSION").into(),
        commit: machine::commit(),
        command: std::env::args().collect(),
        fingerprint: machine.fingerprint(),
        machine,
        plan,
        floors,
    };
    (header, unreadable)
}

/// Sorts by time, and is another for two runs in one second.
pub fn run_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    format!("{time}-{}", std::process::id())
}

fn settings(arguments: &RunArgs) -> Settings {
    let mut deadlines = deadlines(arguments.timeout);
    if arguments.timeout.is_none() {
        // Whoever raises the cap means to wait so long.
        deadlines.answer = deadlines.answer.max(arguments.extent.case_cap);
    }
    Settings { deadlines, debug: arguments.debug }
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

/// `judged` is part of the document for programs; people read it below the report.
fn show(recorder: &Recorder, judged: Option<&Result<Judgement>>, arguments: &RunArgs) -> Result<()> {
    let report = Report::of(&recorder.record);
    let json = || match judged {
        Some(judged) => report::json::with_judgement(&report, &baseline::document(judged)),
        None => output::render(&report, &ViewArgs { format: "json".into(), ..ViewArgs::default() }),
    };
    if arguments.json.as_deref() != Some(Path::new("-")) {
        let view = &arguments.view;
        output::print(&if view.format == "json" { json() } else { output::render(&report, view) })?;
    }
    match &arguments.json {
        Some(path) => output::write(&json(), path),
        None => Ok(()),
    }
}

pub fn exit_code(record: &RunRecord, end: Option<End>, arguments: &RunArgs) -> u8 {
    if end != Some(End::Finished) {
        return INTERRUPTED;
    }
    // What nobody named is a row where it cannot run here: of `--all` an engine, of `--presets` or a suite a preset that asks
    // for what this device does not have.
    let excused = |failure: &Failure| {
        let configuration = &record.header.plan.configurations[failure.configuration];
        let engine = &configuration.engine;
        let preset = configuration.preset.as_ref().map(|preset| format!("{engine}:{preset}"));
        let names = |name: &String| name.split(':').next() == Some(engine);
        match failure.kind.as_str() {
            "unavailable" => arguments.all && !arguments.engines.iter().any(names),
            "unsupported" => preset.is_some_and(|preset| !arguments.engines.contains(&preset)),
            _ => false,
        }
    };
    let failed = record.failures.iter().any(|it| !excused(it));
    // What computes something else was not measured either.
    let rows = agreement::wrong(record).into_iter().zip(&record.header.plan.configurations);
    let wrong = rows.filter(|(_, it)| it.beside.is_none()).any(|(wrong, _)| wrong);
    if failed || wrong || record.samples.is_empty() { FAILED_CASES } else { DONE }
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
        output::print(setup::remove(engine, &registry.engines)?.as_bytes())?;
        return Ok(DONE);
    }
    let devices = setup::checked_devices(&registry, engine, &arguments.device)?;
    let keeper = Keeper::start(&run_id())?;
    let display = if std::io::stderr().is_terminal() { Display::Live } else { Display::Plain };
    let mut progress = Progress::new(display);
    let mut listener = |event| progress.event(event);
    let _interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
    let mark = keeper.mark();
    let mut setting_up = SettingUp::new(&registry, mark, &mut listener);
    let mut said = String::new();
    for device in &devices {
        said.push_str(&setting_up.set_up(engine, device)?);
    }
    output::print(text::narrow(&said, listing::WIDTH).as_bytes())?;
    Ok(DONE)
}

pub fn request(arguments: &RequestArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let found = registry.find(&arguments.engine).map_err(|error| Usage(format!("{error:#}")))?;
    let run = RunArgs { seed: arguments.seed, device: vec![arguments.device.clone()], ..RunArgs::default() };
    let scenarios = asked::scenarios(&registry, std::slice::from_ref(&arguments.scenario))?;
    let models = vec![asked::model(arguments.model.as_deref())?];
    let asked = asked::asked(&run, &registry, vec![registry.candidate(&found)], models, scenarios)?;
    debug_assert_eq!(asked.mode, Mode::Warm);
    if asked.candidates.is_empty() {
        bail!("nothing to ask");
    }
    output::print(&request::lines(&asked, arguments.text)?)?;
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::agreement::specimen;

    #[test]
    fn a_row_whose_output_is_wrong_is_a_failed_case() {
        let mut record = specimen::proved();
        let code = |record: &RunRecord| exit_code(record, Some(End::Finished), &RunArgs::default());
        assert_eq!(code(&record), DONE);
        specimen::score(&mut record, specimen::ENGINE, |_| Some(2.3));
        assert_eq!(code(&record), FAILED_CASES);
    }

    #[test]
    fn a_preset_that_asks_for_what_is_not_here_fails_a_run_only_where_somebody_named_it() {
        let mut record = specimen::proved();
        let configuration = specimen::ENGINE;
        record.header.plan.configurations[configuration].preset = Some("graphs".into());
        record.failures.push(Failure { configuration, kind: "unsupported".into(), ..Failure::default() });
        let engine = record.header.plan.configurations[configuration].engine.clone();
        let code = |engines: Vec<String>, record: &RunRecord| {
            let arguments = RunArgs { engines, presets: true, ..RunArgs::default() };
            exit_code(record, Some(End::Finished), &arguments)
        };
        assert_eq!(code(vec![engine.clone()], &record), DONE);
        assert_eq!(code(vec![format!("{engine}:graphs")], &record), FAILED_CASES);
        record.header.plan.configurations[configuration].preset = None;
        assert_eq!(code(vec![engine], &record), FAILED_CASES);
    }
}
