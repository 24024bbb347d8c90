//! The arguments of a command line that selects given cases of a plan again, with the same configurations and requests.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::axes::{AxisValues, Point, Shape};
use super::scenario::{self, Kind, SCENARIOS, SUITES, Scenario, Suite, SuiteTable};
use super::texts::{OwnText, Text, TextKind};
use super::{Case, Configuration, Mode, Plan, Prompt, Role, Selection, Workload, engine_name, rows};
use crate::engines::manifest::{self, DEFAULT_PRESET, Preset};
use crate::machine::CPU;
use crate::shell::pasteable;

/// The name of the embedded model.
const DEFAULT_MODEL: &str = "embedded";

/// The largest width of a list of engines after `-e`, in columns.
const MAX_LIST_WIDTH: usize = 60;

impl Plan {
    /// The options that select these cases again, quoted for a shell. Settings with their default values are left out, except
    /// the threads. The options select a cross product, so they may select more cases than these.
    /// The prompts have the same recipe and another nonce.
    pub fn arguments_of(&self, cases: &[usize]) -> String {
        let cases = cases.iter().map(|&case| &self.cases[case]);
        // A run adds the null engine and the verifier by itself.
        let is_added = |case: &Case| {
            let role = &self.configurations[case.configuration].role;
            matches!(role, Some(Role::NullEngine | Role::Verifier))
        };
        let cases: Vec<&Case> = cases.filter(|case| !is_added(case)).collect();
        let rows = distinct(cases.iter().map(|case| case.configuration));
        let rows: Vec<&Configuration> = rows.into_iter().map(|row| &self.configurations[row]).collect();
        let mut words = Vec::new();
        let engines = distinct(rows.iter().map(|row| row.engine_argument()));
        let mut lists: Vec<String> = Vec::new();
        for engine in engines {
            // A path may have a comma or a quote, so it needs an option of its own. A report breaks a line only between options.
            let is_name = |text: &str| !text.contains(['/', '\'']);
            match lists.last_mut().filter(|it| is_name(it) && is_name(&engine)) {
                Some(list) if list.len() + engine.len() < MAX_LIST_WIDTH => *list += &format!(",{engine}"),
                _ => lists.push(engine),
            }
        }
        words.extend(lists.iter().map(|list| format!("-e {list}")));
        words.extend(model_arguments(&rows));
        words.extend(workload_arguments(&cases));
        let listed = |values: Vec<String>| pasteable(&[values.join(",")]);
        let devices = distinct(rows.iter().map(|row| row.device.to_string()));
        if devices.iter().any(|device| device != CPU && !device.is_empty()) {
            words.push(format!("--device {}", listed(devices)));
        }
        words.extend(dtypes(&rows).map(|dtypes| format!("--dtype {}", listed(dtypes))));
        let threads = distinct(rows.iter().map(|row| row.threads.to_string()));
        words.push(format!("--threads {}", listed(threads)));
        for (key, value) in own_options(&rows) {
            words.push(format!("--set {}", pasteable(&[format!("{key}={}", option_text(&value))])));
        }
        if self.mode == Mode::OneShot {
            words.push("--mode one-shot".into());
        }
        if self.seed != 0 {
            words.push(format!("--seed {}", self.seed));
        }
        if !self.latency_limits.is_empty() {
            words.push(format!("--slo {}", self.latency_limits.word()));
        }
        words.extend(self.reference_argument(&rows));
        words.join(" ")
    }

    /// Whether the scenarios and axes in these options select the workloads of these cases and no others. An option sets an axis for all
    /// scenarios, so two scenarios with different values of an axis have no such options.
    pub fn has_exact_arguments(&self, cases: &[usize]) -> bool {
        let workloads: Vec<&Workload> = cases.iter().map(|&case| &self.cases[case].workload).collect();
        let (_, scenarios) = scenarios_of(&workloads);
        has_workloads(&scenarios, &shared_values(&scenarios, &workloads), &workloads)
    }

    /// The arguments with which `orchestrate request` prints the first measured request of a case. `None` for requests that it
    /// cannot print.
    pub fn request_arguments(&self, case: usize) -> Option<String> {
        let (nonce, case) = (self.nonce?, &self.cases[case]);
        let configuration = case.configuration;
        let (row, workload) = (&self.configurations[case.configuration], &case.workload);
        let scenario = SCENARIOS.iter().find(|it| it.name == workload.scenario)?;
        let mut words = vec![row.engine_argument(), pasteable(std::slice::from_ref(&workload.scenario))];
        // The random numbers of a prompt depend on the label, which names the values of axes with several values. So the command
        // selects all workloads of the scenario.
        let workloads = self.workloads_of(configuration).into_iter();
        let of_scenario: Vec<Workload> = workloads.filter(|it| it.scenario == scenario.name).collect();
        let of_scenario: Vec<&Workload> = of_scenario.iter().collect();
        let axes = shared_values(&[*scenario], &of_scenario);
        words.extend(axes.options());
        let selection = Selection { axes, ..Selection::default() };
        let printed = rows::workloads(&selection, scenario, row.model.context_tokens);
        let is_printed = matches!(workload.prompt, Prompt::Tokens(_))
            && workload.scored_text.is_none()
            && workload.sampling.is_none()
            && printed.iter().any(|it| it.label == workload.label && it.prompt == workload.prompt);
        words.extend(model_arguments(&[row]));
        if !row.device.is_cpu() {
            words.push(format!("--device {}", pasteable(&[row.device.to_string()])));
        }
        words.extend((self.seed != 0).then(|| format!("--seed {}", self.seed)));
        words.push(format!("--nonce {nonce}"));
        is_printed.then(|| words.join(" "))
    }

    /// The tables that the run added to its report without an option. Older records lack their names, so the cases decide.
    pub fn shown_tables(&self) -> Vec<SuiteTable> {
        if let Some(names) = &self.tables {
            return SuiteTable::ALL
                .into_iter()
                .filter(|it| names.iter().any(|name| name == it.name()))
                .collect();
        }
        let workloads = || self.cases.iter().map(|case| &case.workload);
        let scenarios: Vec<Scenario> = SCENARIOS
            .iter()
            .filter(|it| workloads().any(|workload| workload.scenario == it.name))
            .copied()
            .collect();
        let names: Vec<String> = match suite_of(workloads()) {
            Some(suite) => vec![suite.name.into()],
            None => scenarios.iter().map(|it| it.name.into()).collect(),
        };
        let shapes_of =
            |name: &String| workloads().filter(|it| it.scenario == *name).map(|it| it.shape).collect();
        let shapes: Vec<Vec<Shape>> =
            distinct(workloads().map(|it| it.scenario.clone())).iter().map(shapes_of).collect();
        scenario::tables_of(&names, &scenarios, &shapes)
    }

    /// The reference, if it is one of these rows and not the default reference of these rows.
    fn reference_argument(&self, rows: &[&Configuration]) -> Option<String> {
        let name = |row: &&&Configuration| engine_name(&row.engine, row.preset.as_deref());
        let reference = rows.iter().find(|row| row.is_named(&self.reference))?;
        let by_manifest = |row: &&&Configuration| {
            row.preset.is_none()
                && manifest::embedded().is_ok_and(|all| {
                    all.iter().any(|it| it.manifest.reference && it.manifest.name == row.engine)
                })
        };
        let default = rows.iter().find(by_manifest).or(rows.first())?;
        let is_default = name(&default) == self.reference;
        // A label or a dtype says which row of the engine it is.
        let argument = match name(&reference) == self.reference {
            true => reference.engine_argument(),
            false => pasteable(std::slice::from_ref(&self.reference)),
        };
        (!is_default).then(|| format!("--reference {argument}"))
    }
}

impl Configuration {
    /// The command that checks the engine alone, with the model and the device of this configuration.
    pub fn check_command(&self) -> String {
        let device =
            (!self.device.is_cpu()).then(|| format!("--device {}", pasteable(&[self.device.to_string()])));
        let engine = format!("orchestrate check {}", self.engine_argument());
        let words = std::iter::once(engine).chain(model_arguments(&[self])).chain(device);
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The models. The embedded model is the default, and is named only beside others.
fn model_arguments(rows: &[&Configuration]) -> Vec<String> {
    let models = distinct(rows.iter().map(|row| match row.model.name == DEFAULT_MODEL {
        true => DEFAULT_MODEL.to_string(),
        false => row.model.path.clone(),
    }));
    if models == [DEFAULT_MODEL] {
        return Vec::new();
    }
    models.into_iter().map(|path| format!("-m {}", pasteable(&[path]))).collect()
}

/// The suite that has exactly these workloads. A prompt of the user replaces the prompt lengths.
pub fn suite_of<'a>(workloads: impl Iterator<Item = &'a Workload>) -> Option<&'static Suite> {
    let workloads: Vec<&Workload> = workloads.collect();
    // The name of a single scenario says more than that of a suite with only this scenario.
    let mut several = SUITES.iter().filter(|suite| suite.scenarios().len() > 1);
    several.find(|suite| has_workloads(&suite.scenarios(), &AxisValues::default(), &workloads))
}

/// Whether these scenarios, with these values of the axes, have exactly these workloads.
fn has_workloads(scenarios: &[Scenario], set: &AxisValues, workloads: &[&Workload]) -> bool {
    compare_workloads(scenarios, set, workloads) == (true, true)
}

/// Whether these scenarios, with these values of the axes, have all of these workloads, and whether they have no others.
fn compare_workloads(scenarios: &[Scenario], set: &AxisValues, workloads: &[&Workload]) -> (bool, bool) {
    let has_own_text = workloads.iter().any(|it| matches!(it.prompt, Prompt::Text(OwnText::One(_))));
    // Two points are one workload if they differ only in a length or a depth that the prompt does not have.
    let key = |scenario: &str, point: &Point| {
        let has_length = point.text.has_length_of_axis() && !has_own_text;
        let depth = if has_length { point.shape.depth } else { 0 };
        let text = if has_own_text { TextKind::default() } else { point.shape.text };
        let shape = Shape { depth, text, ..point.shape };
        let file = point.text.file().map(|file| file.path.clone());
        (scenario.to_string(), has_length.then_some(point.prompt_tokens), point.new_tokens, shape, file)
    };
    // Of several lengths that become the same one, the plan has the first.
    let planned_length = |scenario: &Scenario, point: Point| {
        let is_of = |it: &&&Workload| {
            let is_longer = matches!(it.prompt, Prompt::Tokens(tokens) if tokens < point.prompt_tokens);
            is_longer && it.scenario == scenario.name && it.max_new_tokens == point.new_tokens
        };
        let shortened = workloads.iter().filter(is_of).filter(|it| it.shape == point.shape);
        let first = shortened.filter_map(|it| it.shortened_from).next();
        Point { prompt_tokens: first.unwrap_or(point.prompt_tokens), ..point }
    };
    let is_of_sweep = |workload: &Workload| {
        let scenario = scenarios.iter().find(|it| it.name == workload.scenario);
        scenario.is_some_and(|it| it.axes_with(set).prompt_tokens.len() > 1)
    };
    let of_plan: Vec<_> =
        workloads.iter().map(|it| key(&it.scenario, &point_of(it, is_of_sweep(it)))).collect();
    let of_scenario = |it: &Scenario| -> Vec<_> {
        let points = it.points(set).into_iter();
        points.map(|point| key(it.name, &planned_length(it, point))).collect()
    };
    let selected: Vec<_> = scenarios.iter().flat_map(of_scenario).collect();
    let is_within = |part: &[_], all: &[_]| part.iter().all(|it| all.contains(it));
    (is_within(&of_plan, &selected), is_within(&selected, &of_plan))
}

/// The values of the axes in a workload. Among several lengths, a shortened prompt counts with the scenario's length. Otherwise
/// the length of the request counts.
fn point_of(workload: &Workload, is_of_sweep: bool) -> Point {
    let text = match &workload.prompt {
        // Never freed, as the files of the command line: a plan has only a few.
        Prompt::Text(OwnText::File(file)) => Text::File(Box::leak(Box::new(file.clone()))),
        _ => Text::Kind(workload.shape.text),
    };
    let prompt_tokens = match workload.prompt {
        Prompt::Tokens(tokens) => {
            let of_axis = workload.shortened_from.filter(|_| is_of_sweep).unwrap_or(tokens);
            of_axis.saturating_sub(workload.shape.tokens_before_prompt())
        }
        Prompt::Text(_) => 0,
    };
    Point { prompt_tokens, new_tokens: workload.max_new_tokens, text, shape: workload.shape }
}

/// For each axis, the values that all these scenarios have in the plan, if one of the scenarios has other default values.
/// The options of the command line apply to all scenarios, so an axis with different values in two scenarios is left out.
fn shared_values(scenarios: &[Scenario], workloads: &[&Workload]) -> AxisValues {
    let of = |scenario: &Scenario| {
        let used = workloads.iter().filter(|it| it.scenario == scenario.name).copied();
        (
            AxisValues::of_points(&scenario.points(&AxisValues::default())),
            values_of(&used.collect::<Vec<_>>()),
        )
    };
    // A query has no axes.
    let scenarios: Vec<&Scenario> = scenarios.iter().filter(|it| it.kind != Kind::Query).collect();
    let all: Vec<(AxisValues, AxisValues)> = scenarios.iter().map(|it| of(it)).collect();
    let shared_by = |is_one: fn(Kind) -> bool| {
        let some = scenarios.iter().zip(all.clone()).filter(|(scenario, _)| is_one(scenario.kind));
        AxisValues::shared(&some.map(|(_, pair)| pair).collect::<Vec<_>>())
    };
    AxisValues {
        // A launch has this axis too.
        new_tokens: AxisValues::shared(&all).new_tokens,
        speculation: shared_by(|kind| kind == Kind::Speculative).speculation,
        page_cache: shared_by(|kind| kind == Kind::Launch).page_cache,
        ..shared_by(Kind::is_warm)
    }
}

/// The values of the axes in workloads. Lengths and depths are those of the prompts that have them from the axes.
fn values_of(workloads: &[&Workload]) -> AxisValues {
    let has_own_text = workloads.iter().any(|it| matches!(it.prompt, Prompt::Text(OwnText::One(_))));
    let points_of =
        |is_of_sweep| -> Vec<Point> { workloads.iter().map(|it| point_of(it, is_of_sweep)).collect() };
    let with_length = |points: &[Point]| {
        let has_length = |it: &&Point| it.text.has_length_of_axis() && !has_own_text;
        AxisValues::of_points(&points.iter().filter(has_length).copied().collect::<Vec<_>>())
    };
    let points = points_of(true);
    let AxisValues { mut prompt_tokens, depth, .. } = with_length(&points);
    if prompt_tokens.len() == 1 {
        prompt_tokens = with_length(&points_of(false)).prompt_tokens;
    }
    let mut values = AxisValues { prompt_tokens, depth, ..AxisValues::of_points(&points) };
    if has_own_text {
        values.prompts = Vec::new();
    }
    values
}

/// The names after `-s` that select these workloads, and their scenarios: the default suite if it has exactly these workloads, or
/// else those of the workloads. If those cannot give the values: the default suite with the missing scenarios.
fn scenarios_of<'a>(workloads: &[&'a Workload]) -> (Vec<&'a str>, Vec<Scenario>) {
    let in_table = |names: &[&str]| SCENARIOS.iter().filter(|it| names.contains(&it.name)).copied().collect();
    let compared = |scenarios: &[Scenario], workloads: &[&Workload]| {
        compare_workloads(scenarios, &shared_values(scenarios, workloads), workloads)
    };
    let mut of_default = SUITES[0].scenarios();
    if compared(&of_default, workloads) == (true, true) {
        return (vec![SUITES[0].name], of_default);
    }
    let names = distinct(workloads.iter().map(|it| it.scenario.as_str()));
    let named: Vec<Scenario> = in_table(&names);
    if compared(&named, workloads).0 {
        return (names, named);
    }
    let is_missing = |name: &&str| {
        let of_name: Vec<&Workload> = workloads.iter().filter(|it| it.scenario == *name).copied().collect();
        !compared(&of_default, &of_name).0
    };
    let missing: Vec<&str> = names.iter().copied().filter(is_missing).collect();
    let missing_scenarios: Vec<Scenario> = in_table(&missing);
    missing_scenarios.into_iter().for_each(|it| scenario::add(&mut of_default, it));
    match compared(&of_default, workloads).0 {
        true => ([&[SUITES[0].name][..], &missing].concat(), of_default),
        false => (names, named),
    }
}

/// The scenarios, and the settings of their requests that differ from the scenarios' own.
fn workload_arguments(cases: &[&Case]) -> Vec<String> {
    let workloads: Vec<&Workload> = cases.iter().map(|case| &case.workload).collect();
    let (names, scenarios) = scenarios_of(&workloads);
    let mut words = Vec::new();
    if names != [SUITES[0].name] {
        words.push(format!("-s {}", pasteable(&[names.join(",")])));
    }
    words.extend(shared_values(&scenarios, &workloads).options());
    let mut settings: BTreeMap<&str, String> = BTreeMap::new();
    for workload in cases.iter().map(|case| &case.workload) {
        let own = SCENARIOS.iter().find(|it| it.name == workload.scenario);
        match &workload.prompt {
            Prompt::Text(OwnText::One(text)) => {
                settings.insert("--prompt", pasteable(std::slice::from_ref(text)));
            }
            Prompt::Text(OwnText::File(_)) | Prompt::Tokens(_) => {}
        }
        if let Some(file) = &workload.scored_text {
            settings.insert("--text", pasteable(std::slice::from_ref(&file.path)));
        }
        if let Some(sampling) = &workload.sampling {
            settings.insert("--temperature", sampling.temperature.to_string());
        }
        if workload.kind == Kind::Launch {
            // A launch has one request and no warm-up, whatever the command line says.
            continue;
        }
        if own.is_some_and(|own| own.rounds != workload.rounds) {
            settings.insert("--iterations", workload.rounds.to_string());
        }
        if let Some(warmup) = workload.warmup.filter(|_| Kind::IN_ROUNDS.contains(&workload.kind)) {
            settings.insert("--warmup", warmup.to_string());
        }
    }
    words.extend(settings.into_iter().map(|(flag, value)| format!("{flag} {value}")));
    words
}

/// The dtypes that the command line must name. `None` if each row has the dtype that its preset or its engine chooses, or if
/// one of the rows has no requested dtype.
fn dtypes(rows: &[&Configuration]) -> Option<Vec<String>> {
    let is_own = |row: &&Configuration| match own_preset(row) {
        Some(preset) => row.dtype == preset.dtype,
        None => row.dtype.is_none(),
    };
    if rows.iter().all(is_own) {
        return None;
    }
    let dtypes: Option<Vec<String>> = rows.iter().map(|row| row.dtype.clone()).collect();
    dtypes.map(|dtypes| distinct(dtypes.into_iter()))
}

/// The options that the rows do not have from their presets: those of the command line.
fn own_options(rows: &[&Configuration]) -> Map<String, Value> {
    let mut options = Map::new();
    for row in rows {
        let preset = own_preset(row).map_or_else(Map::new, |preset| preset.options);
        let others = row.options.iter().filter(|(key, value)| preset.get(*key) != Some(value));
        options.extend(others.map(|(key, value)| (key.clone(), value.clone())));
    }
    options
}

/// The preset of a row as its manifest defines it. Without a manifest, a named preset is assumed to have set the row's dtype and
/// all its options.
fn own_preset(row: &Configuration) -> Option<Preset> {
    let name = row.preset.as_deref().unwrap_or(DEFAULT_PRESET);
    let engines = manifest::embedded().unwrap_or_default();
    let engine = engines.into_iter().find(|it| it.manifest.name == row.engine);
    let of_row = || Preset { options: row.options.clone(), dtype: row.dtype.clone(), ..Preset::default() };
    let unknown = || row.preset.is_some().then(of_row);
    engine.and_then(|engine| engine.preset(Some(name)).ok().map(|(_, preset)| preset)).or_else(unknown)
}

/// The value of an option as `--set` takes it: text that is no JSON stays as it is.
fn option_text(value: &Value) -> String {
    match value.as_str() {
        Some(text) if serde_json::from_str::<Value>(text).is_err() => text.into(),
        _ => value.to_string(),
    }
}

/// The values without repetitions, in their order.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Device;
    use crate::plan::Workload;

    /// A plan with one case for each configuration.
    fn plan(configurations: Vec<Configuration>, workload: &Workload) -> Plan {
        let mut plan = Plan::default();
        for configuration in configurations {
            plan.add(configuration, std::slice::from_ref(workload));
        }
        plan
    }

    fn row(engine: &str) -> Configuration {
        let (label, command) = (engine.to_string(), vec![format!("/x/{engine}")]);
        let mut row =
            Configuration { label, engine: engine.into(), command, threads: 2, ..Default::default() };
        row.model.name = DEFAULT_MODEL.into();
        row.device = Device::cpu();
        row
    }

    fn arguments(rows: Vec<Configuration>, workload: &Workload) -> String {
        let plan = plan(rows, workload);
        plan.arguments_of(&(0..plan.cases.len()).collect::<Vec<_>>())
    }

    /// A workload with the settings of its scenario.
    fn decode() -> Workload {
        let scenario = SCENARIOS.iter().find(|it| it.name == "decode").unwrap();
        let (max_new_tokens, rounds) = (scenario.axes.new_tokens[0], scenario.rounds);
        Workload { max_new_tokens, rounds, warmup: None, ..Workload::specimen(Prompt::Tokens(32)) }
    }

    #[test]
    fn settings_with_default_values_are_left_out() {
        assert_eq!(arguments(vec![row("a")], &decode()), "-e /x/a -s decode --depth 0 --threads 2");
    }

    #[test]
    fn options_and_dtypes_of_the_command_line_are_named() {
        let mut typed = row("a");
        typed.dtype = Some("bf16".into());
        let options = serde_json::json!({ "n": 3, "text": "x y", "number_as_text": "3" });
        typed.options = options.as_object().unwrap().clone();
        assert_eq!(
            arguments(vec![typed], &decode()),
            "-e /x/a -s decode --depth 0 --dtype bf16 --threads 2 --set n=3 --set 'number_as_text=\"3\"' --set 'text=x y'"
        );
    }

    #[test]
    fn settings_of_a_preset_are_not_repeated() {
        let engines = manifest::embedded().unwrap();
        let with_options = engines.iter().find_map(|engine| {
            let preset = engine.other_presets().find(|it| {
                engine.preset(Some(it)).is_ok_and(|(_, it)| !it.options.is_empty() || it.dtype.is_some())
            })?;
            Some((engine.manifest.name.clone(), preset.to_string(), engine.preset(Some(preset)).unwrap().1))
        });
        let (name, preset, settings) = with_options.unwrap();
        let mut of_preset = row(&name);
        of_preset.preset = Some(preset.clone());
        (of_preset.options, of_preset.dtype) = (settings.options, settings.dtype);
        let plain = arguments(vec![of_preset.clone()], &decode());
        assert_eq!(plain, format!("-e {name}:{preset} -s decode --depth 0 --threads 2"));
        of_preset.options.insert("of_command_line".into(), true.into());
        assert_eq!(arguments(vec![of_preset], &decode()), plain + " --set of_command_line=true");
    }

    #[test]
    fn a_request_is_named_with_its_nonce_if_a_command_can_print_it() {
        let mut plan = plan(vec![row("a")], &decode());
        assert_eq!(plan.request_arguments(0), None);
        plan.nonce = Some(7);
        assert_eq!(plan.request_arguments(0).unwrap(), "/x/a decode --depth 0 --nonce 7");
        plan.seed = 3;
        plan.configurations[0].device = Device::from("cuda:0");
        (plan.configurations[0].model.name, plan.configurations[0].model.path) = ("m".into(), "/m".into());
        assert_eq!(
            plan.request_arguments(0).unwrap(),
            "/x/a decode --depth 0 -m /m --device cuda:0 --seed 3 --nonce 7"
        );
        plan.cases[0].workload.max_new_tokens += 1;
        let more = "/x/a decode --new-tokens 65 --depth 0 -m /m --device cuda:0 --seed 3 --nonce 7";
        assert_eq!(plan.request_arguments(0).unwrap(), more);
        plan.cases[0].workload = Workload { prompt: Prompt::Text("Hello".into()), ..decode() };
        assert_eq!(plan.request_arguments(0), None);
    }

    #[test]
    fn requests_devices_models_and_a_reference_are_named() {
        let mut other = row("b");
        other.threads = 1;
        other.model.name = "m".into();
        other.model.path = "/models/m".into();
        let mut workload = Workload { warmup: Some(0), rounds: 9, max_new_tokens: 5, ..decode() };
        workload.prompt = Prompt::Text("Hello you".into());
        let mut plan = plan(vec![row("a"), other], &workload);
        (plan.reference, plan.seed, plan.mode) = ("b".into(), 7, Mode::OneShot);
        plan.configurations[0].device = Device::from("cuda:0");
        assert_eq!(
            plan.arguments_of(&[0, 1]),
            "-e /x/a -e /x/b -m embedded -m /models/m -s decode --new-tokens 5 --iterations 9 --prompt 'Hello you' \
             --warmup 0 --device cuda:0,cpu --threads 2,1 --mode one-shot --seed 7 --reference /x/b"
        );
        // A reference that is not selected cannot be named.
        assert!(!plan.arguments_of(&[0]).contains("--reference"));
    }
}
