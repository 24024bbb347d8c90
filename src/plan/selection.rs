//! Resolves the names on the command line: engines, scenarios, models and the reference. An unknown name is a usage error with
//! a hint. So is a value that no engine accepts, or that no model's context allows. The registry and
//! `models` read the disk.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::engines::Candidate;
use crate::engines::load_values::{LoadValue, LoadValues};
use crate::engines::manifest::{DEFAULT_PRESET, Engine};
use crate::engines::registry::{self, FoundEngine, Registry, missing_driver};
use crate::engines::setup::SetUpEvent;
use crate::machine::Device;
use crate::plan::axes::Axes;
use crate::plan::prompts::Prompts;
use crate::plan::scenario::{self, Kind, SCENARIOS, SUITES, Scenario};
use crate::plan::{
    MetricId, Mode, Model, Selection, Verification, context, dtype, engine_name, models, rows, values,
};
use crate::shell::{
    Unavailable, Usage, corrected_command, listed, this_command_with, this_command_with_value,
    this_command_without, unknown_name,
};

/// The names on the command line, before any of them is resolved.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Selects every engine in the tree.
    pub all: bool,
    /// Adds the presets of `Engine::other_presets` for each engine that is named without a preset.
    pub presets: bool,
    /// The word of `--quantize`. It selects a preset or a dtype of each engine.
    pub quantize: Option<String>,
    pub engines: Vec<String>,
    pub scenarios: Vec<String>,
    /// The scenarios that a run file defines.
    pub own_scenarios: Vec<Scenario>,
    /// An empty list selects the embedded model.
    pub models: Vec<String>,
    /// The architecture that every model must have.
    pub model_type: Option<String>,
    pub reference: Option<String>,
    pub verifier: Option<String>,
}

/// A selection in which every name is resolved. Nothing is built yet, and no weights are read.
#[derive(Debug)]
pub struct Resolved<'a> {
    registry: &'a Registry,
    verifier: Verifier<'a>,
    pub engines: Vec<FoundEngine<'a>>,
    /// The selection with its candidates as before set-up. `verifier` is not set yet.
    selection: Selection,
}

#[derive(Debug)]
enum Verifier<'a> {
    /// The engine whose manifest says `reference`, where it can run.
    Usual,
    Named(String, Box<FoundEngine<'a>>),
    Off,
}

/// The value of `--verifier` that turns output checks off.
const NO_VERIFIER: &str = "none";

/// The parts of a resolution that start a program or use the network.
pub struct Sources<'a> {
    /// The values that the `load` of a program without a manifest accepts, from its `hello`.
    pub load_values: &'a mut dyn FnMut(&Path) -> Result<LoadValues>,
    /// A model by its name; `None` is the embedded one.
    pub model: &'a mut dyn FnMut(Option<&str>) -> Result<Model>,
}

/// Resolves every name before anything is built. `settings` has the settings of the command line that are not names.
pub fn resolve<'a>(
    registry: &'a Registry,
    names: &Names,
    settings: Selection,
    sources: Sources,
) -> Result<Resolved<'a>> {
    scenario::check_suites(registry)?;
    // Scenarios come before engines, so that an unknown suite is not reported as `no engine to measure`.
    let scenarios = scenarios(registry, &names.scenarios, &names.own_scenarios)?;
    let (mut engines, mut candidates) = candidates(registry, names, &settings)?;
    let verifier = Verifier::named(registry, names.verifier.as_deref())?;
    if names_load_values(&settings) {
        for (found, candidate) in engines.iter().zip(&mut candidates) {
            if let FoundEngine::Program(path) = found {
                candidate.load = (sources.load_values)(path)?;
            }
        }
    }
    let settings_dtypes = settings.dtypes.clone();
    let mut selection = Selection {
        verifier: None,
        verification: verifier.verification(),
        null_engine: registry::null_engine(),
        candidates,
        models: Vec::new(),
        scenarios,
        devices: distinct(&settings.devices),
        dtypes: match settings.dtypes.as_slice() {
            [] => vec![None],
            dtypes => distinct(dtypes),
        },
        threads: distinct(&settings.threads),
        axes: settings.axes.distinct(),
        ..settings
    };
    values::check(&selection)?;
    check_texts(&selection)?;
    check_length_files(&selection)?;
    check_kinds(&selection)?;
    check_unused(&selection)?;
    values::check_alone(&selection)?;
    if selection.scenarios.iter().any(Scenario::is_alone) {
        selection.extent.blocks = Some(1);
    }
    selection.models = models::models(&names.models, sources.model)?;
    if adds_precisions(names, &settings_dtypes) {
        leave_out_known_defaults(&mut engines, &mut selection);
    }
    selection.reference = default_reference(registry, &selection);
    if scenario::measures_precisions(&names.scenarios) {
        selection.reference = widest_precision(&selection);
    }
    for model in &mut selection.models {
        model.context_tokens = models::context_limit(model, &[]).tokens;
    }
    if let Some(expected) = &names.model_type {
        models::expect_architecture(&selection.models, expected)?;
    }
    if let Some(name) = &names.reference {
        selection.reference = reference(registry, &selection, name)?;
    }
    context::check(&selection, &names.scenarios, models::context_limit)?;
    check_one_shot(&selection)?;
    check_scored_text(&selection)?;
    Ok(Resolved { registry, verifier, engines, selection })
}

/// Whether the command line has a value that a program without a manifest might refuse. The CPU is no such value: every program
/// is expected to run on it.
fn names_load_values(settings: &Selection) -> bool {
    let has_device = settings.devices.iter().any(|device| !device.is_cpu());
    has_device || settings.dtypes.iter().any(Option::is_some) || !settings.options.is_empty()
}

impl Resolved<'_> {
    pub fn devices(&self) -> &[Device] {
        &self.selection.devices
    }

    /// The engines, each with its candidate before set-up.
    pub fn candidates(&self) -> impl Iterator<Item = (&FoundEngine<'_>, &Candidate)> {
        self.engines.iter().zip(&self.selection.candidates)
    }

    /// Whether the candidate's engine accepts the values of at least one of its rows on this device.
    pub fn is_supported(&self, candidate: &Candidate, device: &Device) -> bool {
        self.selection.supports(candidate, device)
    }

    /// The resolved selection without any build. If an engine is not ready, its candidate has the reason.
    pub fn without_set_up(&self) -> Result<Selection> {
        let verifier = self.verifier.candidate(self.registry, &self.selection.verifier_device())?;
        Ok(Selection { verifier, ..self.selection.clone() })
    }

    /// The resolved selection after set-up, with the identities of the weights. Returns a warning for each model whose
    /// identification failed.
    pub fn after_set_up(
        self,
        candidates: Vec<Candidate>,
        listener: &mut dyn FnMut(SetUpEvent),
    ) -> Result<(Selection, Vec<String>)> {
        let mut selection = Selection { candidates, ..self.selection };
        let warnings = models::identify(&mut selection.models, listener);
        selection.verifier = self.verifier.candidate(self.registry, &selection.verifier_device())?;
        Ok((selection, warnings))
    }
}

impl<'a> Verifier<'a> {
    fn named(registry: &'a Registry, name: Option<&str>) -> Result<Self> {
        match name.filter(|name| !name.is_empty()) {
            None => Ok(Self::Usual),
            Some(NO_VERIFIER) => Ok(Self::Off),
            Some(name) => {
                // No hint proposes `none`: a misspelt name must not turn the check off.
                let found = registry.find(name).map_err(|error| Usage(format!("--verifier: {error:#}")))?;
                Ok(Self::Named(name.into(), Box::new(found)))
            }
        }
    }

    fn verification(&self) -> Verification {
        match self {
            Self::Usual => Verification::Usual,
            Self::Named(..) => Verification::Named,
            Self::Off => Verification::Off,
        }
    }

    /// The verifier as it can be started now, because set-up may have changed it.
    fn candidate(&self, registry: &Registry, device: &Device) -> Result<Option<Candidate>> {
        let (name, found) = match self {
            Self::Usual => return Ok(registry.verifier(device)),
            Self::Off => return Ok(None),
            Self::Named(name, found) => (name, found),
        };
        let candidate = registry.candidate(found);
        match &candidate.start_for(device).unavailable {
            Some(missing) => {
                Err(Usage(format!("--verifier: `{name}` cannot run here: {}", missing.message())).into())
            }
            None => Ok(Some(candidate)),
        }
    }
}

/// The selected engines, and a candidate for each. `--quantize` selects a preset or a dtype of each engine.
fn candidates<'a>(
    registry: &'a Registry,
    names: &Names,
    settings: &Selection,
) -> Result<(Vec<FoundEngine<'a>>, Vec<Candidate>)> {
    let (mut found, devices) = (engines(registry, names)?, &settings.devices);
    if adds_precisions(names, &settings.dtypes) {
        found = found.into_iter().flat_map(|it| in_each_precision(it, devices)).collect();
        leave_out_repeated_rows(&mut found);
    }
    let Some(word) = &names.quantize else {
        let candidates = found.iter().map(|found| registry.candidate(found)).collect();
        return Ok((found, candidates));
    };
    let all = registry.precisions();
    if !all.contains(&word.as_str()) {
        let Usage(unknown) = unknown_name("precision", word, &all);
        return Err(Usage(format!("--quantize: {unknown}")).into());
    }
    let (mut engines, mut candidates) = (Vec::new(), Vec::new());
    for found in found {
        let (quantized, found) = match found {
            FoundEngine::Engine(engine, preset) => match engine.quantized(word)? {
                Some(quantized) => (true, FoundEngine::Engine(engine, quantized)),
                None => (false, FoundEngine::Engine(engine, preset)),
            },
            program => (false, program),
        };
        let reason = || Unavailable { reason: format!("no {word} preset"), hint: None };
        let unsupported = (!quantized).then(reason);
        candidates.push(Candidate { unsupported, ..registry.candidate(&found) });
        engines.push(found);
    }
    if candidates.iter().all(|it| it.unsupported.is_some()) {
        let message = format!("--quantize {word}: none of the selected engines has a preset for it");
        let hint = known_engine_of_program(registry, names, word)
            .or_else(|| command_with_engines_for(registry, word, devices))
            .unwrap_or_else(|| other_precisions(&engines));
        return Err(Usage(format!("{message}\nhint: {hint}")).into());
    }
    Ok((engines, candidates))
}

/// Whether each engine is measured in all its precisions. A user who names precisions wants only those.
fn adds_precisions(names: &Names, dtypes: &[Option<String>]) -> bool {
    scenario::measures_precisions(&names.scenarios) && names.quantize.is_none() && dtypes.is_empty()
}

/// An engine that is named without a preset, followed by the rows of its precisions on these devices. A program without a manifest
/// has only one row.
fn in_each_precision<'a>(found: FoundEngine<'a>, devices: &[Device]) -> Vec<FoundEngine<'a>> {
    let engine: &Engine = match &found {
        FoundEngine::Engine(engine, (preset, _)) if preset == DEFAULT_PRESET => engine,
        _ => return vec![found],
    };
    let rows = engine.precisions(devices).into_iter().map(|row| FoundEngine::Engine(engine, row));
    let rows: Vec<FoundEngine> = rows.collect();
    std::iter::once(found).chain(rows).collect()
}

/// Leaves out the rows that the user named and that the precisions have too.
fn leave_out_repeated_rows(found: &mut Vec<FoundEngine>) {
    let mut known: Vec<(String, String, Option<String>)> = Vec::new();
    found.retain(|it| {
        let FoundEngine::Engine(engine, (preset, settings)) = it else { return true };
        let row = (engine.manifest.name.clone(), preset.clone(), settings.dtype.clone());
        let is_new = !known.contains(&row);
        known.push(row);
        is_new
    });
}

/// Leaves out the default row of an engine whose other rows have all dtypes that it might choose: it would repeat one of them.
fn leave_out_known_defaults(engines: &mut Vec<FoundEngine>, selection: &mut Selection) {
    let own_dtypes: Vec<Option<String>> = selection.models.iter().map(models::own_dtype).collect();
    let is_listed = |it: &Candidate| {
        let is_known = |own: &Option<String>| {
            own.as_ref().is_some_and(|own| it.load.dtypes.iter().any(|dtype| dtype::is_same(dtype, own)))
        };
        it.preset.is_none() && it.dtype.is_none() && own_dtypes.iter().all(is_known)
    };
    let keeps: Vec<bool> = selection.candidates.iter().map(|it| !is_listed(it)).collect();
    let mut kept = keeps.iter();
    engines.retain(|_| kept.next().is_some_and(|keep| *keep));
    let mut kept = keeps.iter();
    selection.candidates.retain(|_| kept.next().is_some_and(|keep| *keep));
}

/// The command line of this process with the name of a known engine in place of the path of its program. Only a known engine has
/// presets.
fn known_engine_of_program(registry: &Registry, names: &Names, word: &str) -> Option<String> {
    let has_preset = |it: &&Engine| matches!(it.quantized(word), Ok(Some(_)));
    names.engines.iter().find_map(|selector| {
        let program = Path::new(selector).file_name()?.to_str().filter(|name| name != selector)?;
        let engine = registry.named(program).filter(has_preset)?;
        corrected_command(selector, &engine.manifest.name)
    })
}

/// The command line of this process with the engines that have a preset for a word of `--quantize` on one of these devices, or
/// else with the first engine that has one on another device of this machine.
fn command_with_engines_for(registry: &Registry, word: &str, devices: &[Device]) -> Option<String> {
    let quantized = registry.engines.iter().filter_map(|engine| {
        let preset = engine.quantized(word).ok()??;
        Some((engine, registry.candidate(&FoundEngine::Engine(engine, preset))))
    });
    let quantized: Vec<(&Engine, Candidate)> = quantized.collect();
    let runs_here = |it: &&(&Engine, Candidate)| {
        devices.iter().any(|device| it.1.load.accepts(LoadValue::Device(device)))
    };
    let able = quantized.iter().filter(runs_here).map(|(_, it)| ["-e", it.engine.as_str()]);
    let able: Vec<&str> = able.flatten().collect();
    if !able.is_empty() {
        return Some(this_command_with(&able));
    }
    quantized.iter().find_map(|(engine, candidate)| {
        let exists = |device: &&String| {
            let family = Device::from(device.as_str()).family();
            missing_driver(engine.program_for_family(&family)).is_none()
        };
        let device = candidate.load.devices.iter().find(exists)?;
        let options = ["-e", &candidate.engine, "--device", device];
        Some(this_command_without(&[("--device", true)], &options))
    })
}

/// The precisions of the selected engines.
fn other_precisions(engines: &[FoundEngine]) -> String {
    let words = engines.iter().flat_map(|it| match it {
        FoundEngine::Engine(engine, _) => engine.manifest.quantize.keys().map(String::as_str).collect(),
        FoundEngine::Program(_) => Vec::new(),
    });
    let words: BTreeSet<&str> = words.collect();
    match words.is_empty() {
        true => "orchestrate engines".into(),
        false => listed(&words.into_iter().collect::<Vec<_>>()),
    }
}

/// The selected engines. `--all` adds every engine in the tree. `--presets` adds other presets of engines that are named without
/// a preset. A suite of an engine adds the rows that the suite names.
fn engines<'a>(registry: &'a Registry, selected: &Names) -> Result<Vec<FoundEngine<'a>>> {
    let mut names = selected.engines.clone();
    for engine in &registry.engines {
        let name = &engine.manifest.name;
        // An engine that needs an option is measured only if it is named.
        if selected.all && engine.manifest.load.needs_one_of.is_empty() {
            add_missing(&mut names, [name.clone()]);
        }
        if selected.presets && names.contains(name) {
            add_missing(&mut names, engine.other_presets().map(|preset| format!("{name}:{preset}")));
        }
    }
    for (suite, engine, _) in registry.suites() {
        if selected.scenarios.iter().any(|name| name == suite) {
            add_missing(&mut names, engine.rows_of(suite));
        }
    }
    if let (Some(word), Some(name)) =
        (&selected.quantize, names.iter().find(|name| registry.names_preset(name)))
    {
        let message = format!("--quantize {word} selects a preset of each engine, and `{name}` names one");
        let engine = name.split(':').next().unwrap_or(name);
        let hint = corrected_command(name, engine)
            .unwrap_or_else(|| format!("name the engine without a preset: `-e {engine}`"));
        return Err(Usage(format!("{message}\nhint: {hint}")).into());
    }
    let is_in_tree = |name: &String| registry.engines.iter().any(|engine| engine.manifest.name == *name);
    if selected.presets && !names.is_empty() && !names.iter().any(is_in_tree) {
        let hint =
            "name an engine without `:PRESET`, or use `--all`; `orchestrate engines` lists the presets";
        return Err(Usage(format!(
            "--presets needs an engine with presets, named without `:PRESET`\nhint: {hint}"
        ))
        .into());
    }
    if names.is_empty() {
        let hint = "`--all` for every engine, `-e NAME` or `-e ./a-program` for one; `orchestrate engines` lists them";
        return Err(Usage(format!("no engine to measure\nhint: {hint}")).into());
    }
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    names.iter().map(|name| registry.find(name).map_err(usage)).collect()
}

/// Adds the items that the list lacks, so `--all` does not repeat an engine that is named.
fn add_missing<T: PartialEq>(list: &mut Vec<T>, items: impl IntoIterator<Item = T>) {
    for item in items {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// `own`: the scenarios of a run file.
pub fn scenarios(registry: &Registry, names: &[String], own: &[Scenario]) -> Result<Vec<Scenario>> {
    let mut selected: Vec<Scenario> = Vec::new();
    if let Some(taken) = own.iter().find(|own| registry.suites().any(|(suite, ..)| suite == own.name)) {
        let name = taken.name;
        return Err(Usage(format!("`scenarios.{name}`: a suite of an engine already has this name")).into());
    }
    let scenarios_of_engine_suite = |name: &String| {
        let (.., suite) = registry.suites().find(|(suite, ..)| suite == name)?;
        Some(suite.scenarios.iter().filter_map(|name| scenario::in_default_suite(name)).flatten().collect())
    };
    let of_file = |name: &String| own.iter().find(|it| it.name == name).map(|it| vec![*it]);
    for name in names {
        let found =
            scenario::named(name).or_else(|| of_file(name)).or_else(|| scenarios_of_engine_suite(name));
        let Some(scenarios) = found else {
            let of_file = own.iter().map(|it| it.name);
            let known: Vec<_> = scenario_names(registry).chain(of_file).collect();
            return Err(unknown_name("scenario or suite", name, &known).into());
        };
        scenarios.into_iter().for_each(|it| scenario::add(&mut selected, it));
    }
    // A scenario about the first request of a launch comes before those that would take it.
    selected.sort_by_key(|it| it.headline != MetricId::FIRST_RUN);
    Ok(selected)
}

/// Refuses a setting that a scenario of a run file cannot have, because it measures another kind of work.
fn check_kinds(selection: &Selection) -> Result<()> {
    for scenario in &selection.scenarios {
        if let Some(option) = scenario.axes.unused(&[scenario.kind.axes(scenario.axes)]).first() {
            let (name, key) = (scenario.name, option.trim_start_matches("--"));
            let message = format!("`scenarios.{name}`: `{key}`: no scenario like this one has this setting");
            return Err(
                Usage(format!("{message}\nhint: `orchestrate scenarios` lists the axes of each")).into()
            );
        }
    }
    Ok(())
}

/// Refuses an option that no selected scenario uses.
fn check_unused(selection: &Selection) -> Result<()> {
    let axes: Vec<Axes> = selection.scenarios.iter().map(|it| it.axes_with(&selection.axes)).collect();
    if let Some(option) = selection.axes.axes().unused(&axes).first() {
        // Only requests that arrive at a rate have a duration in this scenario.
        if option == "--duration" && selection.scenarios.iter().any(|it| it.kind == Kind::Serve) {
            let message = "--duration: in `serve` it needs `--request-rate`; without a rate, `--requests` sets the size of a round";
            let hint = this_command_with(&["--request-rate", "2"]);
            return Err(Usage(format!("{message}\nhint: {hint}")).into());
        }
        let message = format!("{option}: none of the selected scenarios uses it");
        return Err(Usage(format!("{message}\nhint: `orchestrate scenarios` lists the axes of each")).into());
    }
    let overlaps = selection.scenarios.iter().any(|it| it.kind == Kind::Serve);
    if !selection.latency_limits.is_empty() && !overlaps {
        let message = "--slo: none of the selected scenarios has several users";
        let hint = this_command_without(&[("--slo", true)], &[]);
        return Err(Usage(format!("{message}\nhint: {hint}")).into());
    }
    let has_batches = axes.iter().flat_map(|it| it.batch).any(|&batch| batch > 1);
    if !selection.axes.padding.is_empty() && !has_batches {
        let message = "--padding: each request has one sequence, and needs no padding";
        let hint = this_command_with_value("--batch", None, "4");
        return Err(Usage(format!("{message}\nhint: {hint}")).into());
    }
    if selection.prompt.as_ref().is_some_and(String::is_empty) {
        let message = "--prompt: the text is empty, and an engine must refuse it";
        let hint = this_command_without(&[("--prompt", true)], &["-s", "edge", "--prompts", "empty"]);
        return Err(Usage(format!("{message}\nhint: {hint}")).into());
    }
    Ok(())
}

/// Refuses one-shot mode if it would measure no workload, because all of them need features that only `hello` reports.
fn check_one_shot(selection: &Selection) -> Result<()> {
    let context = selection.models.first().and_then(|model| model.context_tokens);
    let scenarios = selection.scenarios.iter().filter(|_| selection.mode == Mode::OneShot);
    let workloads = scenarios.flat_map(|it| rows::workloads(selection, it, context));
    // A text is scored in launches of its own, which get `hello`.
    let needs = workloads.map(|it| it.needs_in_hello().filter(|_| it.kind != Kind::Score));
    let needs: Option<Vec<&str>> = needs.collect();
    let Some(feature) = needs.and_then(|needs| needs.first().copied()) else { return Ok(()) };
    let hint = this_command_without(&[("--mode", true)], &[]);
    Err(Usage(format!(
        "--mode one-shot sends no `hello`, so no engine can say that it supports `{feature}`\nhint: {hint}"
    ))
    .into())
}

/// Refuses two texts with one name, because values are found by labels. Refuses a length or a depth that no prompt of
/// `--prompts` has.
fn check_texts(selection: &Selection) -> Result<()> {
    let axes = &selection.axes;
    let of_scenarios =
        selection.scenarios.iter().map(|it| (format!("`scenarios.{}`", it.name), it.axes.prompts));
    for (place, texts) in std::iter::once(("--prompts".into(), &axes.prompts[..])).chain(of_scenarios) {
        let mut names: Vec<String> = Vec::new();
        for name in texts.iter().map(|text| text.name()) {
            if names.contains(&name) {
                let message = format!("{place}: two texts have the name `{name}` in labels");
                return Err(Usage(format!("{message}\nhint: rename one of the files")).into());
            }
            names.push(name);
        }
    }
    if axes.prompts.is_empty() || axes.prompts.iter().any(|text| text.has_length_of_axis()) {
        return Ok(());
    }
    let has_depth = axes.depth.iter().any(|&depth| depth > 0);
    for (option, is_set) in [("--prompt-tokens", !axes.prompt_tokens.is_empty()), ("--depth", has_depth)] {
        if is_set {
            let message =
                format!("{option}: the prompts of `--prompts` have lengths of their own, and no depth");
            let hint = this_command_without(&[(option, true)], &[]);
            return Err(Usage(format!("{message}\nhint: {hint}")).into());
        }
    }
    Ok(())
}

/// Refuses two files of lengths with one name, because values are found by labels. Refuses other lengths beside those of a file.
fn check_length_files(selection: &Selection) -> Result<()> {
    let set = &selection.axes;
    for scenario in &selection.scenarios {
        let axes = scenario.axes_with(set);
        let Some(file) = axes.length_file() else { continue };
        let mut names: Vec<String> = axes.lengths.iter().filter_map(|it| Some(it.file()?.name())).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("--lengths: two files have the name `{}` in labels", pair[0]);
            return Err(Usage(format!("{message}\nhint: rename one of the files")).into());
        }
        let has_own_text = axes.prompts.iter().any(|text| !text.has_length_of_axis());
        let others = [
            ("--prompt-tokens", !set.prompt_tokens.is_empty()),
            ("--new-tokens", !set.new_tokens.is_empty()),
            ("--prompt", selection.prompt.is_some()),
            ("--prompts", has_own_text),
        ];
        if let Some((option, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
            let message = format!("{option}: the lengths of requests come from `--lengths {}`", file.path());
            let hint = this_command_without(&[(option, true)], &[]);
            return Err(Usage(format!("{message}\nhint: {hint}")).into());
        }
    }
    Ok(())
}

/// Refuses a text to score that no scenario scores, or that is too short.
fn check_scored_text(selection: &Selection) -> Result<()> {
    let is_scored = selection.scenarios.iter().any(|it| it.kind == Kind::Score);
    if selection.scored_text.is_some() && !is_scored {
        let names = SCENARIOS.iter().filter(|it| it.kind == Kind::Score).map(|it| ["-s", it.name]);
        let hint = this_command_with(&names.flatten().collect::<Vec<_>>());
        return Err(
            Usage(format!("--text: none of the selected scenarios scores a text\nhint: {hint}")).into()
        );
    }
    for model in &selection.models {
        // A tokenizer that cannot be read is a failed row of the run.
        let Ok(prompts) = Prompts::open(&model.path) else { continue };
        let scenarios = selection.scenarios.iter().filter(|it| it.kind == Kind::Score);
        for workload in scenarios.flat_map(|it| rows::workloads(selection, it, model.context_tokens)) {
            let refused = |error: anyhow::Error| match &selection.scored_text {
                Some(file) => Usage(format!("--text `{}`: {error:#}", file.path)),
                None => Usage(format!("`{}`: {error:#}", workload.label)),
            };
            prompts.windows(&workload).map_err(refused)?;
        }
    }
    Ok(())
}

/// The names that `-s` takes.
pub fn scenario_names(registry: &Registry) -> impl Iterator<Item = &str> {
    let suites = SUITES.iter().map(|suite| suite.name).chain(registry.suites().map(|(name, ..)| name));
    SCENARIOS.iter().map(|scenario| scenario.name).chain(suites)
}

/// The default reference: the engine that the manifests name, if it is measured, or else the first engine. An engine that
/// does not support the command line is not measured.
fn default_reference(registry: &Registry, selection: &Selection) -> String {
    let by_manifest = registry.reference().unwrap_or_default();
    let is_supported =
        |it: &&Candidate| selection.devices.iter().any(|device| selection.supports(it, device));
    let mut supported = selection.candidates.iter().filter(is_supported);
    let is_measured = supported.clone().any(|it| it.engine == by_manifest && it.preset.is_none());
    match supported.next() {
        Some(first) if !is_measured => engine_name(&first.engine, first.preset.as_deref()),
        _ => by_manifest.into(),
    }
}

/// The default reference of a run that measures precisions: the widest one of the engine of the usual reference. The table of
/// precisions compares with it too.
fn widest_precision(selection: &Selection) -> String {
    let usual = &selection.reference;
    let is_usual = |it: &&Candidate| engine_name(&it.engine, it.preset.as_deref()) == *usual;
    let engine = selection.candidates.iter().find(is_usual).map(|it| &it.engine);
    engine.and_then(|engine| selection.widest_precision(engine)).unwrap_or_else(|| usual.clone())
}

/// The reference that `--reference` names: an engine as `-e` takes it, the label of a row, or an engine with a dtype.
fn reference(registry: &Registry, selection: &Selection, name: &str) -> Result<String> {
    if selection.names_row(name) {
        return Ok(name.into());
    }
    let found = registry.find(name).map_err(|error| Usage(format!("--reference: {error:#}")))?;
    let wanted = registry.candidate(&found);
    let name_of = |it: &Candidate| engine_name(&it.engine, it.preset.as_deref());
    let measured = &selection.candidates;
    if measured.iter().any(|it| name_of(it) == name_of(&wanted)) {
        return Ok(name_of(&wanted));
    }
    // The only row of an engine may have a preset that the user did not name.
    let mut rows = measured.iter().filter(|it| it.engine == wanted.engine && wanted.preset.is_none());
    if let (Some(only), None) = (rows.next(), rows.next()) {
        return Ok(name_of(only));
    }
    let rows: Vec<_> = measured.iter().map(|it| format!("`{}`", name_of(it))).collect();
    let message = format!("--reference: `{name}` is not measured in this run, only {}", rows.join(", "));
    Err(Usage(format!("{message}\nhint: {}", this_command_with(&["-e", name]))).into())
}

/// The list without repetitions: a value that is named twice is one row.
pub fn distinct<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut distinct = Vec::new();
    add_missing(&mut distinct, list.iter().cloned());
    distinct
}
