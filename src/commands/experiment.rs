//! An experiment from the command line to its record, for every command that measures engines. `resolve` gives a `ResolvedRun`.
//! Its `make_ready` gives a `ReadyRun`, from which the command makes a plan. `ReadyRun::run` gives a `MeasuredRun`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};

use super::core_lock::CoreLock;
use super::download;
use super::estimate::BeforeRun;
use super::interrupts::Interrupts;
use super::noise_floors;
use super::progress::{Display, Progress, ReportSoFar};
use super::version;
use crate::analysis::agreement;
use crate::cli::RunArgs;
use crate::cli::exit_code::{DONE, FAILED_CASES, INTERRUPTED};
use crate::engines::Start;
use crate::engines::registry::{FoundEngine, Registry};
use crate::engines::setup::SetUpContext;
use crate::machine::{Machine, cpu};
use crate::plan::selection::{self, Names, Resolved, Sources};
use crate::plan::{Case, Plan, Selection, values};
use crate::record::{
    self, CoreLockState, End, Entry, Failure, FailureKind, Header, RECORD_VERSION, Recorder, RunRecord,
    Warning, results_dir,
};
use crate::run::Event;
use crate::run::process::{Deadlines, Keeper, PassedVariables};
use crate::run::{self, Settings};
use crate::shell::{Usage, this_command_with_value};
use crate::text;

/// The message after an interrupt during set-up. The next run continues an interrupted build and recreates an incomplete
/// environment. The keeper ends every process that the set-up started.
const INTERRUPTED_SET_UP: &str = "interrupted during set-up: nothing was measured, so there is no record";

/// The longest time that an interrupted format conversion has to remove its files.
const MAX_CLEAN_UP: Duration = Duration::from_secs(3);

/// A command line with its names resolved. Nothing is built or started yet.
pub struct ResolvedRun<'a> {
    registry: &'a Registry,
    arguments: &'a RunArgs,
    resolved: Resolved<'a>,
    /// The folder of the record.
    pub results: PathBuf,
    id: String,
}

/// Engines that are built and set up, and models with the hash of their weights.
pub struct ReadyRun<'a> {
    pub selection: Selection,
    /// The warnings so far; they are written to the record.
    pub warnings: Vec<Warning>,
    registry: &'a Registry,
    arguments: &'a RunArgs,
    pub results: PathBuf,
    id: String,
    keeper: Keeper,
    core_lock: CoreLock,
    interrupts: Interrupts,
    progress: Progress<'a>,
}

/// A written record, and the end of its run: `Ok(None)` after a second Ctrl-C.
pub struct MeasuredRun {
    pub recorder: Recorder,
    pub end: Result<Option<End>>,
}

/// Resolves the names of the command line, and refuses a run that cannot be saved.
pub fn resolve<'a>(registry: &'a Registry, arguments: &'a RunArgs) -> Result<ResolvedRun<'a>> {
    values::check_threads(&arguments.threads, cpu::all_threads())?;
    values::check_limits(&arguments.axes.request_rate, arguments.slo.unwrap_or_default())?;
    let results = results_dir(arguments.results.as_deref());
    record::check_writable(&results)?;
    check_json_file(arguments.json.as_deref())?;
    let id = record::new_id();
    let settings = settings(arguments);
    let mut load_values = |path: &Path| run::ask_load_values(path, &id, &settings);
    let mut model = |name: Option<&str>| download::model(name, arguments);
    let sources = Sources { load_values: &mut load_values, model: &mut model };
    let resolved = selection::resolve(registry, &arguments.names(), arguments.settings(), sources)?;
    Ok(ResolvedRun { registry, arguments, resolved, results, id })
}

impl<'a> ResolvedRun<'a> {
    /// The engines that a run builds or sets up before it measures.
    pub fn prepared_first(&self) -> Vec<String> {
        let is_prepared = |found: &FoundEngine| match found {
            FoundEngine::Engine(engine, _) if !self.arguments.no_setup => {
                let mut programs = self.resolved.devices().iter().map(|device| engine.program_for(device));
                programs.any(|program| self.registry.is_prepared_by_run(program))
            }
            _ => false,
        };
        let candidates = self.resolved.candidates().filter(|(found, _)| is_prepared(found));
        candidates.map(|(_, candidate)| candidate.engine.clone()).collect()
    }

    /// The selection if nothing is built. The candidate of an engine that is not ready has the reason.
    pub fn without_set_up(&self) -> Result<Selection> {
        self.resolved.without_set_up()
    }

    /// Builds and sets up engines, except with `--no-setup`, and hashes the models' weights. The candidate of an engine that
    /// cannot run has the reason.
    pub fn make_ready(self) -> Result<ReadyRun<'a>> {
        let display = if self.arguments.debug { Display::Steps } else { Display::of_stderr() };
        let mut progress = Progress::new(display);
        // Builds disturb another run too, so the lock comes first. While this waits, an interrupt ends the program.
        let core_lock = CoreLock::acquire(&self.id, self.arguments.other_runs(), |problem| {
            progress.event(Event::WaitsForRun(problem.into()));
        })?;
        // The keeper ends every process that this run leaves behind.
        let keeper = Keeper::start(&self.id)?;
        let interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
        let mut listener = |event| progress.event(Event::SetUp(event));
        let mut setting_up = SetUpContext::new(self.registry, keeper.mark(), &mut listener);
        let mut candidates = Vec::new();
        for (engine_or_program, before) in self.resolved.candidates() {
            let mut failed = Vec::new();
            if let FoundEngine::Engine(engine, _) = engine_or_program
                && !self.arguments.no_setup
            {
                let devices = self.resolved.devices().iter();
                for device in devices.filter(|device| self.resolved.is_supported(before, device)) {
                    let prepared = setting_up.prepare(engine.program_for(device));
                    failed.extend(prepared.err().map(|unavailable| (device, unavailable)));
                }
            }
            let mut candidate = before.clone().with_starts_of(self.registry.candidate(engine_or_program));
            for (device, unavailable) in failed {
                candidate.replace_start(device, Start::unavailable(unavailable));
            }
            candidates.push(candidate);
        }
        let mut warnings = setting_up.warnings;
        let (selection, identity_warnings) = self.resolved.after_set_up(candidates, &mut listener)?;
        warnings.extend(identity_warnings);
        warnings.extend(core_lock.warning.clone());
        Ok(ReadyRun {
            selection,
            warnings: warnings.into_iter().map(warning).collect(),
            registry: self.registry,
            arguments: self.arguments,
            results: self.results,
            id: self.id,
            keeper,
            core_lock,
            interrupts,
            progress,
        })
    }
}

impl<'a> ReadyRun<'a> {
    /// Shows a warning, and writes it to the record.
    pub fn warn(&mut self, message: String) {
        let warning = warning(message);
        self.progress.event(Event::Warned(warning.clone()));
        self.warnings.push(warning);
    }

    /// Says that a report for people follows the run, which has its warnings and failures.
    pub fn expect_report(&mut self) {
        self.progress.expect_report();
    }

    /// Shows this report on a terminal after each block.
    pub fn show_after_blocks(&mut self, report: ReportSoFar<'a>) {
        self.progress.show_after_blocks(report);
    }

    pub fn run(mut self, mut plan: Plan) -> Result<MeasuredRun> {
        match plan.nonce {
            Some(nonce) => self.warn(repeated_prompts(nonce)),
            None => plan.nonce = Some(random_nonce()),
        }
        let BeforeRun { warning: too_short, token_check } = BeforeRun::of(&plan, &self.results);
        // The report names the budget that the run itself found, so the record does not have this warning.
        if let Some(message) = too_short {
            self.progress.event(Event::BudgetTooShort(message));
        }
        let can_start = plan.configurations.iter().filter(|it| !it.command.is_empty());
        let notices = self.registry.own_python_notices(can_start.map(|it| it.engine.as_str()));
        notices.into_iter().for_each(|notice| self.warn(notice));
        let Self { mut warnings, mut progress, interrupts, keeper, core_lock, arguments, .. } = self;
        let (mut header, floors_error) = header(self.id, plan, core_lock.state);
        header.run_file = Some(arguments.file.text.clone()).filter(|text| !text.is_empty());
        for detail in details(&header, &arguments.pass_env.variables()) {
            progress.event(Event::Detail(detail));
        }
        warnings.extend(floors_error.map(warning));
        interrupts.count_instead_of_exiting();
        let mut recorder = Recorder::create(&self.results, header)?;
        for warning in warnings {
            recorder.take(Entry::Warning(warning))?;
        }
        let mut listener = |event: Event, record: &RunRecord| progress.event_of_run(event, record);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let interrupted = interrupts.count.clone();
        let keeper_handle = Some(keeper.handle());
        let settings = Settings { keeper: keeper_handle, token_check, ..settings(arguments) };
        let run = run::run(&mut recorder, &mut listener, settings, interrupted);
        let end = runtime.block_on(run_until_interrupted(run, &interrupts));
        // After this time a thread that still blocks is abandoned; its result is not needed.
        runtime.shutdown_timeout(MAX_CLEAN_UP);
        drop((keeper, core_lock));
        Ok(MeasuredRun { recorder, end })
    }
}

/// A number that no engine can predict. It is short enough to be typed.
fn random_nonce() -> u64 {
    // The keys of a new `RandomState` come from the random numbers of the operating system.
    RandomState::new().build_hasher().finish() >> 32
}

fn repeated_prompts(nonce: u64) -> String {
    format!(
        "the prompts are those of every run with the nonce {nonce}, so an engine can answer with stored answers; without `--nonce` \
         no prompt repeats"
    )
}

/// A warning about the whole run.
fn warning(message: String) -> Warning {
    Warning { configuration: None, message }
}

/// Runs until the end. The first Ctrl-C ends the run and keeps its results; a second one stops at once.
async fn run_until_interrupted(
    run: impl Future<Output = Result<End>>,
    interrupts: &Interrupts,
) -> Result<Option<End>> {
    let mut count = interrupts.count.clone();
    tokio::select! {
        end = run => end.map(Some),
        _ = count.wait_for(|&count| count > 1) => Ok(None),
    }
}

/// Refuses a run that could not be saved, before anything is built.
fn check_json_file(json: Option<&Path>) -> Result<()> {
    let Some(json) = json.filter(|json| *json != Path::new("-")) else { return Ok(()) };
    let folder = json.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let problem = format!(
        "cannot write the report to `{}`: its folder does not exist, or the path is a folder\nhint: {}",
        json.display(),
        this_command_with_value("--json", None, "report.json")
    );
    ensure!(folder.is_dir() && !json.is_dir(), Usage(problem));
    Ok(())
}

/// The header of the record with the stored noise floors, and a warning about floors that cannot be read.
fn header(id: String, plan: Plan, core_lock: CoreLockState) -> (Header, Option<String>) {
    let machine = Machine::probe();
    let (floors, floors_error) = noise_floors::of_plan(&plan, &machine);
    let header = Header {
        record_version: RECORD_VERSION,
        id,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        orchestrate_version: version::VERSION.into(),
        commit: version::COMMIT.map(String::from),
        command: std::env::args().collect(),
        run_file: None,
        fingerprint: machine.fingerprint(),
        machine,
        plan,
        core_lock: Some(core_lock),
        noise_floors: floors,
    };
    (header, floors_error)
}

/// Environment variables that change how engines compute. Only these and `ORCHESTRATE_*` are shown, because others may hold
/// secrets.
const SHOWN_VARIABLES: [&str; 8] = [
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TORCHINDUCTOR_CACHE_DIR",
];

/// The facts of a run that hold for all launches: versions, machine, environment, configurations.
fn details(header: &Header, passed: &PassedVariables) -> Vec<String> {
    let (machine, plan) = (&header.machine, &header.plan);
    let is_shown = |name: &str| SHOWN_VARIABLES.contains(&name) || name.starts_with("ORCHESTRATE_");
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| is_shown(name))?;
        Some(format!("environment: {name}={}", value.to_string_lossy()))
    });
    let mut variables: Vec<String> = variables.collect();
    variables.sort();
    let cpu = machine.cpu.model.as_deref().unwrap_or("unknown CPU");
    let kernel = machine.kernel.as_deref().unwrap_or("unknown kernel");
    let mut details = vec![
        format!("orchestrate {}", version::short()),
        format!("machine: {cpu}, {}, {kernel}", machine.os),
    ];
    details.extend(variables);
    let withheld = passed.withheld();
    if !withheld.is_empty() {
        details.push(format!("environment: engines do not get {} (--pass-env)", withheld.join(", ")));
    }
    details.push(format!("reference: {}", plan.reference));
    details.extend(plan.nonce.map(|nonce| format!("prompts: seed {}, nonce {nonce}", plan.seed)));
    details.extend(plan.configurations.iter().map(|it| {
        let dtype = it.dtype.as_deref().unwrap_or("default dtype");
        let options = serde_json::Value::Object(it.options.clone());
        let options = if it.options.is_empty() { String::new() } else { format!(", options {options}") };
        let role = if it.verifies { ", verifies outputs" } else { "" };
        let (threads, model) = (text::plural(it.threads, "thread"), &it.model.path);
        format!("configuration {}: {}, {dtype}, {threads}, {model}{options}{role}", it.label, it.device)
    }));
    details
}

fn settings(arguments: &RunArgs) -> Settings {
    let mut deadlines = Deadlines::with_timeout(arguments.timeout);
    if arguments.timeout.is_none() {
        // The deadline of an answer is at least the time limit of a request.
        deadlines.answer = deadlines.answer.max(arguments.extent.max_request_time);
    }
    let passed = arguments.pass_env.variables();
    Settings { deadlines, debug: arguments.debug, passed, ..Settings::default() }
}

pub fn exit_code(record: &RunRecord, end: Option<End>, names: &Names) -> u8 {
    if end != Some(End::Finished) {
        return INTERRUPTED;
    }
    // These failures do not count:
    // - an engine of `--all` that cannot run and that the user did not name;
    // - a preset of `--presets` or of a suite that the engine does not support on this device;
    // - a depth of a sweep that the model's context does not hold;
    // - a request that an engine must refuse.
    let is_excused = |failure: &Failure| {
        let configuration = &record.header.plan.configurations[failure.configuration];
        let engine = &configuration.engine;
        let preset = configuration.preset.as_ref().map(|preset| format!("{engine}:{preset}"));
        let is_named = |name: &String| name.split(':').next() == Some(engine);
        let is_of_all = names.all && !names.engines.iter().any(is_named);
        match failure.kind {
            FailureKind::Unavailable => is_of_all,
            FailureKind::Refused => true,
            FailureKind::Unsupported => {
                is_of_all
                    || is_end_of_sweep(record, failure)
                    || names.quantize.is_none()
                        && preset.is_some_and(|preset| !names.engines.contains(&preset))
            }
            _ => false,
        }
    };
    let failed = record.failures.iter().any(|it| !is_excused(it));
    // An engine with wrong output counts as failed too.
    let rows = agreement::wrong_outputs(record).into_iter().zip(&record.header.plan.configurations);
    let wrong = rows.filter(|(_, it)| it.role.is_none()).any(|(wrong, _)| wrong);
    if failed || wrong || record.samples.is_empty() { FAILED_CASES } else { DONE }
}

/// Whether the case was not measured because of its depth, or because its files stay in memory, and other cases of its scenario were.
fn is_end_of_sweep(record: &RunRecord, failure: &Failure) -> bool {
    let cases = &record.header.plan.cases;
    let Some(case) = failure.case.map(|case| &cases[case]) else { return false };
    let shape = case.workload.shape;
    let is_measured = |other: &Case| {
        let of_other = other.workload.shape;
        other.configuration == case.configuration
            && other.workload.scenario == case.workload.scenario
            && (of_other.depth < shape.depth || of_other.page_cache.is_kept() && !shape.page_cache.is_kept())
    };
    failure.launch.is_none() && record.measured().any(|sample| is_measured(&cases[sample.case]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::agreement::specimen;

    #[test]
    fn a_configuration_with_wrong_output_counts_as_a_failed_case() {
        let mut record = specimen::checked();
        let code = |record: &RunRecord| exit_code(record, Some(End::Finished), &Names::default());
        assert_eq!(code(&record), DONE);
        let difference_nats = 2.3;
        specimen::set_scores(&mut record, specimen::ENGINE, |_| Some(difference_nats));
        assert_eq!(code(&record), FAILED_CASES);
    }

    #[test]
    fn an_unsupported_preset_fails_a_run_only_if_the_user_named_it() {
        let mut record = specimen::checked();
        let configuration = specimen::ENGINE;
        record.header.plan.configurations[configuration].preset = Some("graphs".into());
        let kind = FailureKind::Unsupported;
        record.failures.push(Failure { configuration, kind, ..Failure::default() });
        let engine = record.header.plan.configurations[configuration].engine.clone();
        let code = |engines: Vec<String>, record: &RunRecord| {
            let names = Names { engines, presets: true, ..Names::default() };
            exit_code(record, Some(End::Finished), &names)
        };
        assert_eq!(code(vec![engine.clone()], &record), DONE);
        assert_eq!(code(vec![format!("{engine}:graphs")], &record), FAILED_CASES);
        record.header.plan.configurations[configuration].preset = None;
        assert_eq!(code(vec![engine], &record), FAILED_CASES);
    }
}
