//! `orchestrate engines`, `scenarios`, `metrics` and `schema`: lists of engines, scenarios and metrics, the protocol's schema.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;

use super::output::{self, WIDTH, unchecked_python};
use crate::analysis::metric::METRICS;
use crate::cli::exit_code::DONE;
use crate::engines::manifest::Program;
use crate::engines::registry::{Registry, State, missing_driver, obstacle};
use crate::plan::scenario::{Kind, SCENARIOS, SUITES, described_in_default_suite};
use crate::plan::texts::TextKind;
use crate::report::RESOURCE_FACTS;
use crate::shell::unknown_name_or;
use crate::text;

/// The known engines, and whether they can run.
pub fn engines() -> Result<u8> {
    let registry = Registry::open()?;
    let mut text = String::new();
    for engine in &registry.engines {
        let manifest = &engine.manifest;
        let (status, hint) = program_status(&registry, engine.own_program());
        let reference = if manifest.reference { " (the reference)" } else { "" };
        // Wrapped lines of the heading are indented further than the lines below it.
        let head = format!("{}{reference}: {status}", manifest.name);
        text::wrap(&head, WIDTH, "      ").iter().try_for_each(|line| writeln!(text, "{line}"))?;
        writeln!(text, "    {}", manifest.about)?;
        if let Some(python) = engine.own_python() {
            writeln!(text, "    in {}", unchecked_python(&python))?;
        }
        for (name, preset) in &manifest.presets {
            let suite = preset.suite.as_ref().map_or_else(String::new, |suite| format!(" (suite {suite})"));
            writeln!(text, "    :{name}  {}{suite}", preset.about)?;
        }
        let mut hints = hint;
        for family in manifest.devices.keys() {
            let (status, family_hints) = program_status(&registry, engine.program_for_family(family));
            writeln!(text, "    on {family}: {status}")?;
            // Devices that share a program have the same hint, which is printed once.
            let new_hints: Vec<Hint> =
                family_hints.into_iter().filter(|hint| !hints.contains(hint)).collect();
            hints.extend(new_hints);
        }
        for (hint, is_command) in hints {
            match is_command {
                true => writeln!(text, "    hint: {hint}")?,
                false => text.push_str(&paragraph(&format!("hint: {hint}"))),
            }
        }
    }
    writeln!(text, "\nAny program that speaks the protocol is an engine too: -e ./its-path")?;
    output::print_lines(&text).map(|()| DONE)
}

/// A hint, and whether it is a command: a command is pasted, so it is never wrapped.
type Hint = (String, bool);

/// The status of a program, with hints: the first one is a command. There are no hints for a device that the machine lacks.
fn program_status(registry: &Registry, program: Program) -> (String, Vec<Hint>) {
    let state = registry.state(program);
    if let State::Ready(_) = state {
        return ("ready".into(), Vec::new());
    }
    let obstacle = obstacle(program, &state);
    let hints = obstacle.hints().enumerate().map(|(index, hint)| (hint.to_string(), index == 0));
    let hints = hints.filter(|_| missing_driver(program).is_none()).collect();
    (obstacle.reason, hints)
}

pub fn scenarios() -> Result<u8> {
    let mut text = String::new();
    for scenario in SCENARIOS {
        write!(text, "{}\n{}", scenario.name, paragraph(scenario.about))?;
        let axes = Some(scenario.axes.describe()).filter(|axes| !axes.is_empty());
        let requests = match scenario.kind {
            Kind::Score => format!("at most {} windows, scored once", scenario.rounds),
            Kind::Launch | Kind::Warm | Kind::Speculative | Kind::Stress | Kind::Serve | Kind::Query => {
                format!("rounds a block: {}", scenario.rounds)
            }
        };
        let values: Vec<String> = axes.into_iter().chain([requests]).collect();
        text.push_str(&paragraph(&values.join("; ")));
    }
    writeln!(text, "\nsuites:")?;
    let describe_suite = |about: &str, scenarios: &str| paragraph(&format!("{about} ({scenarios})"));
    for suite in SUITES {
        write!(text, "{}\n{}", suite.name, describe_suite(suite.about, &suite.describe()))?;
    }
    for (name, engine, suite) in Registry::open()?.suites() {
        let scenarios: Vec<String> =
            suite.scenarios.iter().map(|it| described_in_default_suite(it)).collect();
        write!(text, "{name}\n{}", describe_suite(&suite.about, &scenarios.join(", ")))?;
        text.push_str(&paragraph(&format!("rows: {}", engine.rows_of(name).join(", "))));
    }
    let kinds: Vec<&str> = TextKind::ALL.iter().map(|kind| kind.word()).collect();
    write!(text, "\nkinds of text (--prompts):\n{}", paragraph(&kinds.join(", ")))?;
    output::print_text(&text).map(|()| DONE)
}

/// A paragraph below a name: a hint or a description.
fn paragraph(text: &str) -> String {
    text::wrap(text, WIDTH - 4, "  ").iter().map(|line| format!("    {line}\n")).collect()
}

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Metrics to explain, by name or column title; default: all
    #[arg(value_name = "METRIC", value_delimiter = ',')]
    pub names: Vec<String>,
}

/// A value of reports, with its explanation.
struct Explained {
    name: String,
    /// The title of the value's column, if the value has a column.
    title: Option<&'static str>,
    unit: &'static str,
    /// The unit in tables, which scale the value.
    unit_in_tables: &'static str,
    about: String,
}

impl Explained {
    fn is_named(&self, name: &str) -> bool {
        let title = without_percentiles(name);
        self.name == name || self.title.is_some_and(|it| it.eq_ignore_ascii_case(title))
    }

    fn paragraph(&self) -> String {
        let Self { name, unit, unit_in_tables, about, .. } = self;
        let units = match unit == unit_in_tables {
            true => unit.to_string(),
            false => format!("{unit_in_tables} in tables, {unit} in JSON and CSV"),
        };
        let title = self.title.filter(|title| title != name);
        let name = title.map_or_else(|| name.clone(), |title| format!("{title} ({name})"));
        format!("{name}: {units}\n    {about}\n")
    }
}

/// `ITL` for `ITL p99` or `ITL p50 p95 p99`: a column of a metric may show its percentiles.
fn without_percentiles(column: &str) -> &str {
    let is_percentile = |word: &str| {
        let number = word.strip_prefix('p').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit())
    };
    let mut title = column.trim();
    while let Some((rest, _)) = title.rsplit_once(' ').filter(|(_, last)| is_percentile(last)) {
        title = rest;
    }
    title
}

/// Groups of values, each with its heading.
fn explained_values() -> [(&'static str, Vec<Explained>); 3] {
    let metrics = METRICS.iter().map(|metric| Explained {
        name: metric.name().into(),
        title: Some(metric.title),
        unit: metric.unit.symbol(),
        unit_in_tables: metric.scale().symbol,
        about: metric.about.into(),
    });
    let difference = Explained {
        name: "derived.difference_ns".into(),
        title: None,
        unit: "ns",
        unit_in_tables: "ns",
        about: "the preset's time minus the other preset's (for a rate, the time of a token): the other preset's time \
                multiplied by (1 / ratio - 1)"
            .into(),
    };
    let facts = RESOURCE_FACTS.iter().filter_map(|fact| {
        let explained = fact.explained.as_ref()?;
        Some(Explained {
            name: format!("resources.{}", explained.name),
            title: None,
            unit: fact.quantity.unit(),
            unit_in_tables: fact.quantity.unit(),
            about: explained.about.into(),
        })
    });
    [
        ("", metrics.collect()),
        ("for a preset against another one, below the table and in formats for programs:", vec![difference]),
        ("further values, in --resources and in formats for programs:", facts.collect()),
    ]
}

pub fn metrics(arguments: &MetricsArgs) -> Result<u8> {
    let groups = explained_values();
    if arguments.names.is_empty() {
        let paragraphs = groups.iter().map(|(heading, values)| {
            let heading = if heading.is_empty() { String::new() } else { format!("\n{heading}\n") };
            heading + &values.iter().map(Explained::paragraph).collect::<String>()
        });
        return output::print_lines(&paragraphs.collect::<String>()).map(|()| DONE);
    }
    let values: Vec<&Explained> = groups.iter().flat_map(|(_, values)| values).collect();
    let mut text = String::new();
    for name in &arguments.names {
        let named: Vec<_> = values.iter().filter(|it| it.is_named(name)).collect();
        if named.is_empty() {
            let titles = values.iter().filter_map(|it| it.title).filter(|it| !it.contains(' '));
            let known: BTreeSet<String> =
                values.iter().map(|it| it.name.clone()).chain(titles.map(str::to_lowercase)).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            return Err(unknown_name_or("metric", name, &known, || "orchestrate metrics".into()).into());
        }
        text.extend(named.into_iter().map(|it| it.paragraph()));
    }
    output::print_lines(&text).map(|()| DONE)
}

pub fn schema() -> Result<u8> {
    output::succeed(protocol::SCHEMA)
}
