//! An experiment from the command line to its record, for every command that measures. Each step takes the former's result:
//!
//! ```text
//! RunArgs --resolve--> Resolving --make_ready--> Ready (the command makes a Plan of it) --run--> Measured
//! ```

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;

use super::interrupts::Interrupts;
use super::known_floors;
use super::progress::{Display, Progress};
use crate::analysis::agreement;
use crate::cli::RunArgs;
use crate::cli::exit_code::{DONE, FAILED_CASES, INTERRUPTED};
use crate::engines::registry::{Found, Registry};
use crate::engines::setup::SettingUp;
use crate::engines::{Start, own_python};
use crate::machine::{self, Machine};
use crate::plan::selection::{self, Resolved, Selection};
use crate::plan::{Asked, Plan};
use crate::record::{
    self, End, Entry, Failure, FailureKind, Header, RECORD_VERSION, Recorder, RunRecord, Warning, results_dir,
};
use crate::run::event::Event;
use crate::run::process::{Deadlines, Keeper};
use crate::run::{self, Run, Settings};
use crate::shell::Usage;

/// What is being built goes on from where it stands next time; an environment that is half made is made anew. The keeper
/// ends every process that set-up had started.
pub const INTERRUPTED_SET_UP: &str = "interrupted during set-up: nothing was measured, so there is no record";

/// After an interrupt a conversion of a model may still remove what it had written.
const LAST_OF_THREADS: Duration = Duration::from_secs(3);

/// A command line whose names were found. Nothing is built or started yet.
pub struct Resolving<'a> {
    registry: &'a Registry,
    arguments: &'a RunArgs,
    resolved: Resolved<'a>,
    /// Where the record goes.
    pub results: PathBuf,
    id: String,
}

/// Engines that are built and set up, models whose weights have a name.
pub struct Ready<'a> {
    pub asked: Asked,
    /// For the record.
    pub warnings: Vec<Warning>,
    registry: &'a Registry,
    arguments: &'a RunArgs,
    results: PathBuf,
    id: String,
    keeper: Keeper,
    interrupts: Interrupts,
    progress: Progress,
}

/// A record that is written, and how its run ended: `Ok(None)` by a second Ctrl-C.
pub struct Measured {
    pub recorder: Recorder,
    pub end: Result<Option<End>>,
}

/// Finds what the command line names, and refuses what cannot be kept.
pub fn resolve<'a>(registry: &'a Registry, arguments: &'a RunArgs) -> Result<Resolving<'a>> {
    let resolved = selection::resolve(registry, &arguments.selection())?;
    let results = arguments.results.clone().map_or_else(results_dir, Ok)?;
    if !arguments.extent.dry_run {
        check_destinations(&results, arguments.json.as_deref())?;
    }
    Ok(Resolving { registry, arguments, resolved, results, id: run::new_id() })
}

impl<'a> Resolving<'a> {
    /// Without building anything: what is not ready is a candidate with its reason.
    pub fn as_it_stands(&self) -> Result<Asked> {
        self.resolved.as_it_stands()
    }

    /// Builds engines and sets them up as far as that is allowed, and names the models' weights. An engine that cannot run is a
    /// candidate with its reason.
    pub fn make_ready(self) -> Result<Ready<'a>> {
        // From here on nothing that this run starts outlives it.
        let keeper = Keeper::start(&self.id)?;
        let interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
        let mut progress = Progress::new(display(self.arguments));
        let mut listener = |event| progress.event(Event::SetUp(event));
        let mut setting_up = SettingUp::new(self.registry, keeper.mark(), &mut listener);
        let mut candidates = Vec::new();
        for found in &self.resolved.engines {
            let mut troubles = Vec::new();
            if let Found::Engine(engine, _) = found
                && !self.arguments.no_setup
            {
                for device in self.resolved.devices() {
                    let prepared = setting_up.prepare(engine.on(device));
                    troubles.extend(prepared.err().map(|trouble| (device, trouble)));
                }
            }
            let mut candidate = self.registry.candidate(found);
            for (device, trouble) in troubles {
                candidate.start_on(device, Start::never(trouble));
            }
            candidates.push(candidate);
        }
        let mut notices = setting_up.warnings;
        let (asked, unnamed) = self.resolved.made_ready(candidates, &mut listener)?;
        notices.extend(unnamed);
        let warning = |message| Warning { configuration: None, message };
        Ok(Ready {
            asked,
            warnings: notices.into_iter().map(warning).collect(),
            registry: self.registry,
            arguments: self.arguments,
            results: self.results,
            id: self.id,
            keeper,
            interrupts,
            progress,
        })
    }
}

impl Ready<'_> {
    pub fn run(self, plan: Plan) -> Result<Measured> {
        let Self { mut warnings, mut progress, interrupts, keeper, arguments, .. } = self;
        let started = plan.configurations.iter().filter(|it| !it.command.is_empty());
        let in_own_python = own_python::notices(self.registry, started.map(|it| it.engine.as_str()));
        for message in in_own_python {
            let warning = Warning { configuration: None, message };
            progress.event(Event::Warned(warning.clone()));
            warnings.push(warning);
        }
        let (header, unreadable) = header(self.id, plan);
        warnings.extend(unreadable.map(|message| Warning { configuration: None, message }));
        interrupts.keep();
        let mut recorder = Recorder::create(&self.results, header)?;
        for warning in warnings {
            recorder.take(Entry::Warning(warning))?;
        }
        let mut listener = |event: Event, record: &RunRecord| progress.event_of_run(event, record);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = Run::new(&mut recorder, &mut listener, settings(arguments));
        let end = runtime.block_on(until_interrupted(run, &interrupts));
        // A thread that still blocks is left alone after that: it holds nothing that this program needs.
        runtime.shutdown_timeout(LAST_OF_THREADS);
        drop(keeper);
        Ok(Measured { recorder, end })
    }
}

/// The first Ctrl-C ends the run and keeps what is there; a second one ends the program where it stands.
async fn until_interrupted(run: Run<'_>, interrupts: &Interrupts) -> Result<Option<End>> {
    let mut again = interrupts.heard.clone();
    tokio::select! {
        end = run.run(interrupts.heard.clone()) => end.map(Some),
        _ = again.wait_for(|&heard| heard > 1) => Ok(None),
    }
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
    let (floors, unreadable) = known_floors::of_plan(&plan, &machine);
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

fn settings(arguments: &RunArgs) -> Settings {
    let mut deadlines = Deadlines::with_timeout(arguments.timeout);
    if arguments.timeout.is_none() {
        // A higher cap is a longer wait.
        deadlines.answer = deadlines.answer.max(arguments.extent.case_cap);
    }
    Settings { deadlines, debug: arguments.debug }
}

fn display(arguments: &RunArgs) -> Display {
    if std::io::stderr().is_terminal() && !arguments.debug { Display::Live } else { Display::Plain }
}

pub fn exit_code(record: &RunRecord, end: Option<End>, selection: &Selection) -> u8 {
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
        match failure.kind {
            FailureKind::Unavailable => selection.all && !selection.engines.iter().any(names),
            FailureKind::Unsupported => preset.is_some_and(|preset| !selection.engines.contains(&preset)),
            _ => false,
        }
    };
    let failed = record.failures.iter().any(|it| !excused(it));
    // An engine whose output is wrong was not measured either.
    let rows = agreement::wrong(record).into_iter().zip(&record.header.plan.configurations);
    let wrong = rows.filter(|(_, it)| it.beside.is_none()).any(|(wrong, _)| wrong);
    if failed || wrong || record.samples.is_empty() { FAILED_CASES } else { DONE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::agreement::specimen;

    #[test]
    fn a_row_whose_output_is_wrong_is_a_failed_case() {
        let mut record = specimen::proved();
        let code = |record: &RunRecord| exit_code(record, Some(End::Finished), &Selection::default());
        assert_eq!(code(&record), DONE);
        specimen::score(&mut record, specimen::ENGINE, |_| Some(2.3));
        assert_eq!(code(&record), FAILED_CASES);
    }

    #[test]
    fn a_preset_that_asks_for_what_is_not_here_fails_a_run_only_where_somebody_named_it() {
        let mut record = specimen::proved();
        let configuration = specimen::ENGINE;
        record.header.plan.configurations[configuration].preset = Some("graphs".into());
        record.failures.push(Failure {
            configuration,
            kind: crate::record::FailureKind::Unsupported,
            ..Failure::default()
        });
        let engine = record.header.plan.configurations[configuration].engine.clone();
        let code = |engines: Vec<String>, record: &RunRecord| {
            let selection = Selection { engines, presets: true, ..Selection::default() };
            exit_code(record, Some(End::Finished), &selection)
        };
        assert_eq!(code(vec![engine.clone()], &record), DONE);
        assert_eq!(code(vec![format!("{engine}:graphs")], &record), FAILED_CASES);
        record.header.plan.configurations[configuration].preset = None;
        assert_eq!(code(vec![engine], &record), FAILED_CASES);
    }
}
