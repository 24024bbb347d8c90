//! A run in a file (TOML). Each key is an option of the command line, so a new option needs nothing here. The tables `scenarios`
//! and `targets` have no option.
//!
//! The record embeds the run as such a file, with the options of the command line. So a record can be run again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Parser};
use serde::Deserialize;
use toml::{Table, Value};

use super::refusal;
use super::run::{RunFile, verifier_of_environment};
use super::{BaselineArgs, RunArgs, ViewArgs};
use crate::analysis::metric::{self, Unit};
use crate::plan::axes::AxisValues;
use crate::plan::scenario::{self, SCENARIOS, Scenario};
use crate::plan::targets::{PERCENTILES, Target};
use crate::shell::{
    Usage, access_hint, did_you_mean_file, file_problem, listed, this_command_with_before, unknown_name,
    unknown_name_or,
};

/// The tables of a file that are no options.
const SCENARIOS_KEY: &str = "scenarios";
const TARGETS_KEY: &str = "targets";
const VERIFIER_KEY: &str = "verifier";

/// The keys of a scenario that are no axes.
const OWN_KEYS: [&str; 3] = ["about", "iterations", "like"];

/// The options of this call. A record embeds neither these nor the options of the view and of baselines.
const OF_THE_CALL: [&str; 7] = ["anyway", "debug", "dry-run", "json", "nonce", "results", "wait"];

const MAX_FILE_BYTES: u64 = 1 << 20;

/// The values of options, by the option's long name. A flag has no value.
type Options = BTreeMap<String, Vec<String>>;

#[derive(Debug, Args)]
pub struct FileRunArgs {
    /// A run file (TOML), whose keys are the options below; an option of the command line replaces the file's
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Repeat the run of this record, with new prompts of the same kind
    #[arg(long, value_name = "RECORD", conflicts_with = "file")]
    pub like: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunArgs,
}

impl FileRunArgs {
    /// The arguments with the options of the file or record. `like` reads the embedded file of a record.
    pub fn resolve(self, matches: &ArgMatches, like: impl Fn(&Path) -> Result<String>) -> Result<RunArgs> {
        let (name, text) = match (&self.file, &self.like) {
            (Some(path), _) => (path, read(path)?),
            (None, Some(path)) => (path, like(path).map_err(crate::shell::usage)?),
            (None, None) => return Ok(with_file(self.run, matches)),
        };
        let in_file = |error: anyhow::Error| Usage(format!("run file `{}`: {error:#}", name.display()));
        let mut run = merged(&text, &given(matches)).map_err(in_file)?;
        run.file.like = self.like;
        Ok(run)
    }
}

/// Reads a run file. A device or a large program is no run file.
fn read(path: &Path) -> Result<String> {
    let problem = |why: &str, hint: String| {
        Usage(format!("cannot read the run file `{}`: {why}\nhint: {hint}", path.display()))
    };
    // The word is probably the name of an engine, if it does not end as a run file does.
    let name = path.to_str().unwrap_or_default();
    let engine = if name.ends_with(".toml") { None } else { this_command_with_before(name, &["-e"]) };
    let usual = || engine.clone().unwrap_or_else(|| "orchestrate run --help".into());
    let unreadable = |error: std::io::Error| {
        let access = access_hint(&error, path, "u+r").trim_start_matches("\nhint: ").to_string();
        let hint = if access.is_empty() { did_you_mean_file(path).unwrap_or_else(usual) } else { access };
        problem(&file_problem(&error, path), hint)
    };
    let facts = std::fs::metadata(path).map_err(unreadable)?;
    ensure!(!facts.is_dir(), problem("it is a folder", "orchestrate run --help".into()));
    let is_text = facts.is_file() && facts.len() <= MAX_FILE_BYTES;
    ensure!(is_text, problem("a run file is a text file of at most 1 MB", usual()));
    Ok(std::fs::read_to_string(path).map_err(unreadable)?)
}

/// The arguments of a command line without a file, with the file that the record embeds.
pub fn with_file(run: RunArgs, matches: &ArgMatches) -> RunArgs {
    let file = RunFile { text: embedded(&given(matches), &Table::new()), ..RunFile::default() };
    RunArgs { file, ..run }
}

fn command() -> Command {
    RunArgs::augment_args(Command::default())
}

/// The options that the user gave on the command line.
fn given(matches: &ArgMatches) -> Options {
    let command = command();
    let is_given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let options = command.get_arguments().filter(is_given).filter_map(|arg| {
        let raw = matches.get_raw(arg.get_id().as_str()).filter(|_| arg.get_action().takes_values());
        let values = raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
        Some((arg.get_long()?.to_string(), values.collect()))
    });
    options.collect()
}

/// The arguments of a file, with the given options in place of those that they replace or exclude.
fn merged(text: &str, given: &Options) -> Result<RunArgs> {
    let table: Table = text.parse()?;
    let command = command();
    let named = |name: &str| command.get_arguments().find(|arg| arg.get_long() == Some(name));
    let mut options = given.clone();
    for (key, value) in &table {
        if [SCENARIOS_KEY, TARGETS_KEY].contains(&key.as_str()) {
            continue;
        }
        let arg = option_of(&command, key, &[SCENARIOS_KEY, TARGETS_KEY])?;
        let Some(name) = arg.get_long() else { continue };
        let excludes = |other: &&Arg| {
            let conflicts = |a: &Arg, b: &Arg| {
                command.get_arg_conflicts_with(a).iter().any(|it| it.get_id() == b.get_id())
            };
            conflicts(arg, other) || conflicts(other, arg)
        };
        let is_excluded = given.keys().filter_map(|name| named(name)).any(|other| excludes(&other));
        if given.contains_key(name) || is_excluded {
            continue;
        }
        if let Some(values) = values_of(arg, value).with_context(|| format!("`{key}`"))? {
            options.insert(name.into(), values);
        }
    }
    let scenarios = own_scenarios(&table)?;
    let targets = targets(&table)?;
    if !scenarios.is_empty() && !options.contains_key("scenario") {
        options.insert("scenario".into(), scenarios.iter().map(|it| it.name.to_string()).collect());
    }
    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        run: RunArgs,
    }
    let Only { run } = parse(&options)?;
    let is_overridden = ["engine", "model", "scenario"].iter().any(|name| given.contains_key(*name));
    let file = RunFile { text: embedded(&options, &table), scenarios, targets, is_overridden, like: None };
    Ok(RunArgs { file, ..run })
}

/// The option with this key. `others`: the keys that are no options.
fn option_of<'a>(command: &'a Command, key: &str, others: &[&str]) -> Result<&'a Arg> {
    let name = key.replace('_', "-");
    let has_name = |arg: &&Arg| {
        let mut aliases = arg.get_all_aliases().unwrap_or_default().into_iter();
        arg.get_long() == Some(&name) || aliases.any(|alias| alias == name)
    };
    if let Some(arg) = command.get_arguments().find(has_name) {
        return Ok(arg);
    }
    let known: Vec<&str> =
        command.get_arguments().filter_map(Arg::get_long).chain(others.iter().copied()).collect();
    let hint = || "`orchestrate run --help` lists the options, and each is a key without `--`".to_string();
    bail!(unknown_name_or("option", &name, &known, hint))
}

/// The values of a key; `None` for a flag that is off.
fn values_of(arg: &Arg, value: &Value) -> Result<Option<Vec<String>>> {
    if !arg.get_action().takes_values() {
        return match value {
            Value::Boolean(is_on) => Ok(is_on.then(Vec::new)),
            _ => bail!("expected `true` or `false`"),
        };
    }
    // `set = { kernels = "portable" }` is `--set kernels=portable`.
    if let (Value::Table(table), "set") = (value, arg.get_long().unwrap_or_default()) {
        let pair = |(key, value): (&String, &Value)| {
            let value = match value {
                Value::String(text) => text.clone(),
                other => json(other).with_context(|| format!("`{key}`"))?.to_string(),
            };
            Ok(format!("{key}={value}"))
        };
        let pairs: Vec<String> = table.iter().map(pair).collect::<Result<_>>()?;
        return Ok(Some(pairs).filter(|pairs| !pairs.is_empty()));
    }
    match value {
        // An empty list is the same as no key.
        Value::Array(values) if values.is_empty() => Ok(None),
        Value::Array(values) => values.iter().map(scalar).collect::<Result<_>>().map(Some),
        value => Ok(Some(vec![scalar(value)?])),
    }
}

/// A value as JSON, which has no dates, no infinity and no NaN.
fn json(value: &Value) -> Result<serde_json::Value> {
    Ok(match value {
        Value::Datetime(date) => bail!("an engine takes no date\nhint: a text, \"{date}\""),
        Value::Float(number) if !number.is_finite() => {
            bail!("an engine takes no {number}\nhint: a finite number")
        }
        Value::Array(values) => values.iter().map(json).collect::<Result<_>>()?,
        Value::Table(table) => {
            let entries = table.iter().map(|(key, value)| Ok((key.clone(), json(value)?)));
            serde_json::Value::Object(entries.collect::<Result<_>>()?)
        }
        other => serde_json::to_value(other)?,
    })
}

fn scalar(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(is_true) => Ok(is_true.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            bail!(
                "expected a text, a number, or a list of these\nhint: tables are `[{SCENARIOS_KEY}.NAME]` and `[[{TARGETS_KEY}]]`"
            )
        }
    }
}

/// The arguments of a command line with these options.
fn parse<T: Parser>(options: &Options) -> Result<T> {
    let words = options.iter().flat_map(|(name, values)| match values.as_slice() {
        [] => vec![format!("--{name}")],
        values => values.iter().map(|value| format!("--{name}={value}")).collect(),
    });
    let parsed = T::try_parse_from(std::iter::once("run".to_string()).chain(words));
    parsed.map_err(|error| anyhow::anyhow!("{}", refusal::message(&error)))
}

/// The file with these options, and with the tables that are no options. It names the verifier of the environment too.
fn embedded(options: &Options, table: &Table) -> String {
    let mut all = Table::new();
    let others = [ViewArgs::augment_args(Command::default()), BaselineArgs::augment_args(Command::default())];
    let is_other =
        |name: &str| others.iter().flat_map(Command::get_arguments).any(|arg| arg.get_long() == Some(name));
    let is_embedded = |name: &str| !OF_THE_CALL.contains(&name) && !is_other(name);
    for (name, values) in options.iter().filter(|(name, _)| is_embedded(name)) {
        let value = match values.as_slice() {
            [] => Value::Boolean(true),
            [one] => Value::String(one.clone()),
            several => Value::Array(several.iter().cloned().map(Value::String).collect()),
        };
        all.insert(name.clone(), value);
    }
    if let Some(verifier) = verifier_of_environment().filter(|_| !all.contains_key(VERIFIER_KEY)) {
        all.insert(VERIFIER_KEY.into(), Value::String(verifier));
    }
    for key in [SCENARIOS_KEY, TARGETS_KEY] {
        all.extend(table.get(key).map(|value| (key.to_string(), value.clone())));
    }
    all.to_string()
}

/// A scenario that the user defines: a known scenario (`like`) with other values of its axes.
#[derive(Deserialize)]
struct OwnScenario {
    like: String,
    about: Option<String>,
    iterations: Option<u32>,
    /// The values of axes, by the keys of their options.
    #[serde(flatten)]
    axes: Table,
}

/// The file's own scenarios. Their texts and lists are never freed, like those of SCENARIOS.
fn own_scenarios(table: &Table) -> Result<Vec<Scenario>> {
    let Some(value) = table.get(SCENARIOS_KEY) else { return Ok(Vec::new()) };
    let Value::Table(entries) = value else {
        bail!(
            "`{SCENARIOS_KEY}` defines scenarios, as in `[{SCENARIOS_KEY}.chat]`\nhint: `scenario` selects them"
        );
    };
    entries.iter().map(|(name, value)| own_scenario(name, value)).collect()
}

fn own_scenario(name: &str, value: &Value) -> Result<Scenario> {
    let key = || format!("`{SCENARIOS_KEY}.{name}`");
    let is_name = !name.is_empty()
        && name.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-');
    ensure!(is_name, "{}: a name has small letters, digits and `-`", key());
    ensure!(scenario::named(name).is_none(), "{}: a scenario or suite already has this name", key());
    let own: OwnScenario = value.clone().try_into().with_context(key)?;
    let names: Vec<&str> = SCENARIOS.iter().map(|it| it.name).collect();
    let Some(base) = SCENARIOS.iter().find(|it| it.name == own.like) else {
        bail!("{}: `like`: {}", key(), unknown_name("scenario", &own.like, &names));
    };
    let set = axis_values(&own.axes).with_context(key)?.leak();
    let sets_tokens = !set.prompt_tokens.is_empty() || !set.new_tokens.is_empty();
    ensure!(
        !sets_tokens || set.length_file().is_none(),
        "{}: `lengths` names a file, so `prompt-tokens` and `new-tokens` have no effect\nhint: leave them out",
        key()
    );
    ensure!(own.iterations != Some(0), "{}: `iterations`: expected a whole number, at least 1", key());
    let about = own.about.unwrap_or_else(|| format!("like {}, from the run file", base.name));
    Ok(Scenario {
        name: name.to_string().leak(),
        about: about.leak(),
        axes: base.axes.with(set),
        rounds: own.iterations.unwrap_or(base.rounds),
        ..*base
    })
}

/// The values of axes by the keys of their options.
fn axis_values(table: &Table) -> Result<AxisValues> {
    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        axes: AxisValues,
    }
    let command = AxisValues::augment_args(Command::default());
    let mut options = Options::new();
    for (key, value) in table {
        let arg = option_of(&command, key, &OWN_KEYS)?;
        let values = values_of(arg, value).with_context(|| format!("`{key}`"))?;
        options.extend(arg.get_long().map(String::from).zip(values));
    }
    parse::<Only>(&options).map(|it| it.axes)
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct TargetEntry {
    engine: Option<String>,
    model: Option<String>,
    case: Option<String>,
    metric: Option<String>,
    percentile: Option<u8>,
    at_least: Option<Bound>,
    at_most: Option<Bound>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number with a unit, as in `200 tok/s`")]
enum Bound {
    Number(f64),
    Text(String),
}

fn targets(table: &Table) -> Result<Vec<Target>> {
    let Some(value) = table.get(TARGETS_KEY) else { return Ok(Vec::new()) };
    let Value::Array(entries) = value else {
        bail!("`{TARGETS_KEY}`: expected tables, as in `[[{TARGETS_KEY}]]`");
    };
    let numbered = entries.iter().enumerate();
    numbered.map(|(index, entry)| target(entry).with_context(|| format!("target {}", index + 1))).collect()
}

fn target(value: &Value) -> Result<Target> {
    let entry: TargetEntry = value.clone().try_into()?;
    let metric = entry.metric.as_deref().map(metric_named).transpose()?;
    if let Some(unknown) = entry.percentile.filter(|it| !PERCENTILES.contains(it)) {
        let known = PERCENTILES.map(|it| it.to_string());
        let hint = listed(&known.each_ref().map(String::as_str));
        bail!("`percentile`: no percentile {unknown}\nhint: {hint}");
    }
    let least = entry.at_least.map(|bound| bound.in_base_unit(metric)).transpose().context("`at-least`")?;
    let most = entry.at_most.map(|bound| bound.in_base_unit(metric)).transpose().context("`at-most`")?;
    let unit = match (least, most) {
        (Some((_, a)), Some((_, b))) if a != b => bail!("`at-least` and `at-most` have different units"),
        (Some((_, unit)), _) | (None, Some((_, unit))) => unit,
        (None, None) => bail!("a target needs `at-least` or `at-most`"),
    };
    Ok(Target {
        engine: entry.engine,
        model: entry.model,
        case: entry.case,
        metric: metric.map(|it| it.id),
        percentile: entry.percentile,
        at_least: least.map(|it| it.0),
        at_most: most.map(|it| it.0),
        unit: unit.symbol().into(),
    })
}

fn metric_named(name: &str) -> Result<&'static metric::Metric> {
    let known: Vec<&str> = metric::METRICS.iter().map(|it| it.name()).collect();
    let found = metric::METRICS.iter().find(|it| it.name() == name);
    Ok(found.ok_or_else(|| unknown_name_or("metric", name, &known, || "orchestrate metrics".into()))?)
}

impl Bound {
    /// The number in the unit of metrics. A number without a unit is in tokens per second.
    fn in_base_unit(self, metric: Option<&metric::Metric>) -> Result<(f64, Unit)> {
        let (number, unit) = match self {
            Self::Number(number) => (number, Unit::TokensPerSecond),
            Self::Text(text) => Unit::parse(&text).with_context(|| {
                format!(
                    "`{text}` is not a number with a unit, as in `200 tok/s`, `50 ms`, `1.5 GB` or `80 %`"
                )
            })?,
        };
        if let Some(metric) = metric {
            ensure!(metric.unit == unit, "the unit of `{}` is {}", metric.name(), metric.unit.symbol());
        }
        ensure!(number.is_finite() && number >= 0.0, "expected 0 or more");
        Ok((number, unit))
    }
}
