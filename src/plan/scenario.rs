//! The tables SCENARIOS and SUITES. To add a scenario, add an entry.

use anyhow::{Result, bail};
use protocol::{Padding, Speculation};

use super::arrivals::RoundLength;
use super::axes::{Axes, AxisValues, PageCache, Point, Shape};
use super::metric_id::MetricId;
use super::texts::{Text, TextKind};
use crate::engines::registry::Registry;

/// A named set of requests: the axes in which they vary, and the number of requests in each block.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub kind: Kind,
    /// Each combination of values is a workload.
    pub axes: Axes<'static>,
    /// The number of measured requests in each block, interleaved with those of the other engines. In a scenario that scores
    /// text: the most windows.
    pub rounds: u32,
    /// The metric by which engines are compared in this scenario.
    pub headline: MetricId,
    /// The table that a run adds to its report if its user names this scenario.
    pub table: Option<SuiteTable>,
}

impl Scenario {
    /// The points of the axes with the values that the user set. A launch has one first request, so of the numbers
    /// of new tokens it takes only the first. A query has no axes.
    pub fn points(&self, set: &AxisValues) -> Vec<Point> {
        self.axes_with(set).points()
    }

    pub fn shapes(&self, set: &AxisValues) -> Vec<Shape> {
        self.points(set).into_iter().map(|it| it.shape).collect()
    }

    /// The scenario that has all these requests and others, with the same headline.
    fn repeated_by(&self) -> Option<&'static Scenario> {
        let none = AxisValues::default();
        let points = self.points(&none);
        SCENARIOS.iter().find(|other| {
            let all = other.points(&none);
            self.headline == other.headline
                && all.len() > points.len()
                && points.iter().all(|it| all.contains(it))
        })
    }

    /// Whether no other scenario may be in the same run: an engine is in use for a set time in one block.
    pub fn is_alone(&self) -> bool {
        self.kind == Kind::Stress
    }

    pub fn axes_with<'a>(&self, set: &'a AxisValues) -> Axes<'a> {
        let set = match self.kind {
            // A launch has one first request.
            Kind::Launch => Axes {
                page_cache: &set.page_cache,
                ..Axes::of(&[], set.new_tokens.get(..1).unwrap_or_default())
            },
            kind => kind.axes(set.axes()),
        };
        // Requests that arrive at their own times have no number of users.
        let own = match (set.request_rate, set.trace) {
            ([], []) => self.axes,
            _ => Axes { concurrency: &[], requests: &[], ..self.axes },
        };
        own.with(set)
    }
}

/// The part of an engine's work that a scenario measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The launch itself: from the start of the process to its first token.
    Launch,
    /// Requests to an engine that is loaded and warm.
    Warm,
    /// Requests like `Warm`, in which an engine may draft tokens. Their rates are metrics of their own, so that they are never
    /// compared with those of plain decoding.
    Speculative,
    /// Requests like `Warm`, for a set time. Their latency and the engine's memory are watched over this time.
    Stress,
    /// Requests for the facts of an engine that is loaded and warm. They have no prompt and no output.
    Query,
    /// Several requests to an engine that is loaded and warm, of which some are open at once. A round is a window of them.
    Serve,
    /// The log-probabilities of a text, in windows of fixed length. Each configuration scores it once, before the blocks, because
    /// the result has no noise. Nothing is generated.
    Score,
}

impl Kind {
    /// The kinds whose requests come after the launch, in rounds.
    pub const IN_ROUNDS: &[Self] = &[Self::Warm, Self::Speculative, Self::Stress, Self::Serve, Self::Query];

    /// These axes, without those that the kind cannot have.
    pub fn axes(self, axes: Axes<'_>) -> Axes<'_> {
        let one_by_one = Axes {
            concurrency: &[],
            request_rate: &[],
            burstiness: &[],
            duration: &[],
            trace: &[],
            requests: &[],
            lengths: &[],
            shared_prefix: &[],
            turns: &[],
            ..axes
        };
        match self {
            Self::Launch => Axes { speculation: &[], ..one_by_one },
            Self::Warm => Axes { speculation: &[], page_cache: &[], ..one_by_one },
            Self::Speculative => Axes { page_cache: &[], ..one_by_one },
            Self::Stress => Axes { duration: axes.duration, speculation: &[], page_cache: &[], ..one_by_one },
            Self::Serve => Axes {
                concurrency: axes.concurrency,
                request_rate: axes.request_rate,
                burstiness: axes.burstiness,
                // A window of users who wait ends with their last request.
                duration: if axes.request_rate.is_empty() { &[] } else { axes.duration },
                trace: axes.trace,
                requests: axes.requests,
                lengths: axes.lengths,
                shared_prefix: axes.shared_prefix,
                turns: axes.turns,
                prompts: axes.prompts,
                ..Axes::of(axes.prompt_tokens, axes.new_tokens)
            },
            Self::Query => Axes::NONE,
            Self::Score => Axes::of(axes.prompt_tokens, &[]),
        }
    }

    /// Whether each request generates tokens alone, after a warm-up.
    pub fn is_warm(self) -> bool {
        matches!(self, Self::Warm | Self::Speculative | Self::Stress)
    }

    /// Whether the requests generate tokens.
    pub fn generates(self) -> bool {
        self.is_warm() || matches!(self, Self::Launch | Self::Serve)
    }
}

/// The prompt lengths of scenarios about the first token.
const SHORT_PROMPTS: &[u32] = &[10, 50, 100, 150, 200, 250, 300, 350, 400];

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "load",
        about: "start the process, load the model, answer a first request; with the model's files in the page cache, and without",
        kind: Kind::Launch,
        axes: Axes { page_cache: &[PageCache::Kept, PageCache::Dropped], ..Axes::of(&[16], &[1]) },
        rounds: 1,
        headline: MetricId::COLD_START,
        table: None,
    },
    Scenario {
        name: "cold-start",
        about: "the first request of a fresh process, and the same kind of request when the engine is warm",
        kind: Kind::Warm,
        axes: Axes::of(&[16], &[1]),
        rounds: 5,
        headline: MetricId::FIRST_RUN,
        table: None,
    },
    Scenario {
        name: "queries",
        about: "the cost of asking a warm engine for its facts (memory, vocabulary, dimensions); an engine that computes nothing \
                is measured in turn, which shows the share of the pipe",
        kind: Kind::Query,
        axes: Axes::NONE,
        rounds: 20,
        headline: MetricId::QUERY,
        table: None,
    },
    Scenario {
        name: "perplexity",
        about: "how well an engine predicts held-out text, or the text of --text: loss, perplexity, bits per byte, drift from \
                f32; each engine scores the same windows once",
        kind: Kind::Score,
        axes: Axes::of(&[512], &[]),
        rounds: 16,
        headline: MetricId::PERPLEXITY,
        table: None,
    },
    Scenario {
        name: "ttft",
        about: "time to first token over prompt lengths, warm",
        kind: Kind::Warm,
        axes: Axes::of(SHORT_PROMPTS, &[1]),
        rounds: 5,
        headline: MetricId::FIRST_TOKEN,
        table: Some(SuiteTable::Distribution),
    },
    Scenario {
        name: "p99",
        about: "percentiles of the time to first token: in five blocks, 100 requests of each prompt length",
        kind: Kind::Warm,
        axes: Axes::of(SHORT_PROMPTS, &[1]),
        rounds: 20,
        headline: MetricId::FIRST_TOKEN,
        table: Some(SuiteTable::Distribution),
    },
    Scenario {
        name: "prefill",
        about: "prompt tokens per second over prompt lengths, warm",
        kind: Kind::Warm,
        axes: Axes::of(&[32, 128, 512, 1024, 2048], &[1]),
        rounds: 3,
        headline: MetricId::PREFILL_RATE,
        table: None,
    },
    Scenario {
        name: "decode",
        about: "tokens per second after the first token, over the tokens before the prompt (depth), one request at a time, \
                warm; output length fixed",
        kind: Kind::Warm,
        axes: Axes { depth: &[0, 512, 2048, 8192], ..Axes::of(&[32], &[64]) },
        rounds: 3,
        headline: MetricId::DECODE_RATE,
        table: None,
    },
    Scenario {
        name: "depth",
        about: "decode at the greatest depth alone: each step also reads many keys and values; a run takes minutes",
        kind: Kind::Warm,
        axes: Axes { depth: &[8192], ..Axes::of(&[32], &[64]) },
        rounds: 1,
        headline: MetricId::DECODE_RATE,
        table: None,
    },
    Scenario {
        name: "speculative",
        about: "decode with drafted tokens (prompt lookup) and without, on repeated and on natural text: tokens per second, and \
                the share of accepted drafts",
        kind: Kind::Speculative,
        axes: Axes {
            speculation: &[Speculation::Off, Speculation::PromptLookup],
            prompts: &[Text::Kind(TextKind::Natural), Text::Kind(TextKind::Repeated)],
            ..Axes::of(&[64], &[128])
        },
        rounds: 3,
        headline: MetricId::EFFECTIVE_RATE,
        table: None,
    },
    Scenario {
        name: "throughput",
        about: "tokens per second of whole requests over output lengths, prefill included, warm",
        kind: Kind::Warm,
        axes: Axes::of(&[32], &[10, 50, 100, 500]),
        rounds: 3,
        headline: MetricId::THROUGHPUT,
        table: Some(SuiteTable::Distribution),
    },
    Scenario {
        name: "batch",
        about: "several sequences in one request: tokens per second of all, latency of one, warm",
        kind: Kind::Warm,
        axes: Axes { batch: &[1, 2, 4, 8, 16], ..Axes::of(&[32], &[32]) },
        rounds: 3,
        headline: MetricId::THROUGHPUT,
        table: None,
    },
    Scenario {
        name: "serve",
        about: "several users at once, or requests at a rate: tokens per second of all, and the latency of one. Requests that the engine \
                cannot take yet wait, and their latency includes the wait",
        kind: Kind::Serve,
        axes: Axes { concurrency: &[1, 2, 4, 8], ..Axes::of(&[128], &[32]) },
        rounds: 1,
        headline: MetricId::SERVED_RATE,
        table: Some(SuiteTable::Serving),
    },
    Scenario {
        name: "offline",
        about: "many requests at once: tokens per second of all, until the last answer",
        kind: Kind::Serve,
        axes: Axes { requests: &[16], ..Axes::of(&[128], &[32]) },
        rounds: 1,
        headline: MetricId::THROUGHPUT,
        table: Some(SuiteTable::Serving),
    },
    Scenario {
        name: "stress",
        about: "each engine in use for a set time, in turn with the others: growth of latency and of memory, errors. It is measured \
                alone, in one block",
        kind: Kind::Stress,
        axes: Axes { duration: &[RoundLength::minutes(10)], ..Axes::of(&[128], &[32]) },
        rounds: 1,
        headline: MetricId::TOTAL,
        table: None,
    },
    Scenario {
        name: "cache-padding",
        about: "the cache of keys and values on and off, by the padding of a batch of uneven prompts, warm",
        kind: Kind::Warm,
        axes: Axes {
            batch: &[4],
            use_cache: &[true, false],
            padding: &[Padding::Left, Padding::Right, Padding::Packed],
            ..Axes::of(&[64], &[32])
        },
        rounds: 3,
        headline: MetricId::THROUGHPUT,
        table: None,
    },
    Scenario {
        name: "edge",
        about: "unusual prompts: one token, the whole context, repeated or odd text; engines must refuse two others: an empty \
                prompt, and one that is longer than the context",
        kind: Kind::Warm,
        axes: Axes {
            prompts: &[
                Text::Kind(TextKind::Short),
                Text::Kind(TextKind::Long),
                Text::Kind(TextKind::Lines),
                Text::Kind(TextKind::Repeated),
                Text::Kind(TextKind::Unicode),
                Text::Kind(TextKind::Whitespace),
                Text::Kind(TextKind::Special),
                Text::Kind(TextKind::Empty),
                Text::Kind(TextKind::Beyond),
            ],
            ..Axes::of(&[128], &[16])
        },
        rounds: 3,
        headline: MetricId::TOTAL,
        table: None,
    },
];

#[derive(Debug)]
pub struct Suite {
    pub name: &'static str,
    pub about: &'static str,
    pub parts: Parts,
    /// The table that a run of the suite adds to its report.
    pub table: Option<SuiteTable>,
    pub rows: SuiteRows,
}

/// The rows of an engine that is named without a preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuiteRows {
    /// The default preset.
    Default,
    /// Every precision that the engine's manifest offers.
    Precisions,
}

#[derive(Debug)]
pub enum Parts {
    /// Every scenario, except those that only repeat a part of another one, and those that are measured alone.
    Every,
    These(&'static [SuitePart]),
}

/// A table of a report that answers the question of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuiteTable {
    Distribution,
    Serving,
    Settings,
    Quality,
    Precision,
}

impl SuiteTable {
    pub const ALL: [Self; 5] =
        [Self::Distribution, Self::Serving, Self::Settings, Self::Quality, Self::Precision];

    /// The name in records, which is that of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Distribution => "distribution",
            Self::Serving => "serving",
            Self::Settings => "settings",
            Self::Quality => "quality",
            Self::Precision => "precision",
        }
    }
}

/// A scenario of a suite.
#[derive(Debug)]
pub struct SuitePart {
    pub scenario: &'static str,
    /// The values of the axes that the suite sets; the others are those of the scenario.
    pub axes: Axes<'static>,
}

impl SuitePart {
    const fn all(scenario: &'static str) -> Self {
        Self { scenario, axes: Axes::of(&[], &[]) }
    }

    /// The scenario `load` with the model's files in the page cache.
    const fn load_from_memory() -> Self {
        Self { scenario: "load", axes: Axes { page_cache: &[PageCache::Kept], ..Axes::NONE } }
    }

    const fn with_lengths(scenario: &'static str, prompt_tokens: &'static [u32]) -> Self {
        Self { scenario, axes: Axes::of(prompt_tokens, &[]) }
    }

    const fn with_depths(scenario: &'static str, depth: &'static [u32]) -> Self {
        Self { scenario, axes: Axes { depth, ..Axes::of(&[], &[]) } }
    }

    fn describe(&self) -> String {
        let lengths: Vec<_> = self.axes.prompt_tokens.iter().map(u32::to_string).collect();
        let depths = self.axes.depth.iter().map(|depth| format!("depth {depth}"));
        let values: Vec<_> = lengths.into_iter().chain(depths).collect();
        format!("{} {}", self.scenario, values.join(" and ")).trim_end().to_string()
    }
}

pub const SUITES: &[Suite] = &[
    Suite {
        name: "default",
        about: "load, first token, prefill and decode, sized for the embedded model",
        parts: Parts::These(&[
            SuitePart::load_from_memory(),
            SuitePart::with_lengths("ttft", &[128, 512]),
            SuitePart::with_lengths("prefill", &[1024]),
            SuitePart::with_depths("decode", &[0]),
        ]),
        table: None,
        rows: SuiteRows::Default,
    },
    Suite {
        name: "latency",
        about: "the first token over prompt lengths, with the table of --distribution",
        parts: Parts::These(&[SuitePart::load_from_memory(), SuitePart::all("p99")]),
        table: Some(SuiteTable::Distribution),
        rows: SuiteRows::Default,
    },
    Suite {
        name: "cold",
        about: "the start of a process and its first request, against a warm engine",
        parts: Parts::These(&[SuitePart::all("load"), SuitePart::all("cold-start")]),
        table: None,
        rows: SuiteRows::Default,
    },
    Suite {
        name: "rates",
        about: "tokens per second over prompt lengths, output lengths and batch sizes",
        parts: Parts::These(&[
            SuitePart::all("prefill"),
            SuitePart::all("throughput"),
            SuitePart::all("batch"),
        ]),
        table: None,
        rows: SuiteRows::Default,
    },
    Suite {
        name: "quality",
        about: "decode, beside the perplexity of each precision in the table of --quality",
        parts: Parts::These(&[SuitePart::with_depths("decode", &[0])]),
        table: Some(SuiteTable::Quality),
        rows: SuiteRows::Default,
    },
    Suite {
        name: "quantization",
        about: "every precision of each engine against its widest one: speed, memory, perplexity and drift in one table",
        parts: Parts::These(&[SuitePart::with_depths("decode", &[0]), SuitePart::all("perplexity")]),
        table: Some(SuiteTable::Precision),
        rows: SuiteRows::Precisions,
    },
    Suite {
        name: "full",
        about: "everything; a run takes many minutes",
        parts: Parts::Every,
        table: Some(SuiteTable::Distribution),
        rows: SuiteRows::Default,
    },
];

impl Suite {
    pub fn scenarios(&self) -> Vec<Scenario> {
        let of_part = |part: &SuitePart| {
            let scenario = SCENARIOS.iter().find(|scenario| scenario.name == part.scenario)?;
            Some(Scenario { axes: scenario.axes.with(part.axes), ..*scenario })
        };
        match self.parts {
            Parts::Every => {
                let is_part = |it: &&Scenario| it.repeated_by().is_none() && !it.is_alone();
                SCENARIOS.iter().filter(is_part).copied().collect()
            }
            Parts::These(parts) => parts.iter().filter_map(of_part).collect(),
        }
    }

    /// The scenarios, with the values that the suite sets: `load, ttft 128 and 512`.
    pub fn describe(&self) -> String {
        match self.parts {
            Parts::Every => {
                let named = SCENARIOS.iter().filter_map(|it| match it.repeated_by() {
                    Some(other) => Some(format!("{}, which {} contains", it.name, other.name)),
                    None => it.is_alone().then(|| format!("{}, which is measured alone", it.name)),
                });
                format!("all scenarios except {}", named.collect::<Vec<_>>().join(", and "))
            }
            Parts::These(parts) => parts.iter().map(SuitePart::describe).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The tables of the suites and scenarios with these names. Requests that differ in a setting need the table of settings. A
/// scored text needs a table of loss and drift, unless the table of precisions has them. `shapes`: those of each scenario's
/// requests.
pub fn tables_of(names: &[String], scenarios: &[Scenario], shapes: &[Vec<Shape>]) -> Vec<SuiteTable> {
    let of_scenarios = scenarios.iter().filter(|it| names.iter().any(|name| name == it.name));
    let of_scenarios = of_scenarios.filter_map(|it| it.table);
    let mut tables: Vec<SuiteTable> = suites_named(names).filter_map(|it| it.table).collect();
    tables.extend(of_scenarios.filter(|it| !tables.contains(it)).collect::<Vec<_>>());
    let varies_in_setting =
        |shapes: &Vec<Shape>| shapes.iter().any(|a| shapes.iter().any(|b| a.only_difference(b).is_some()));
    if shapes.iter().any(varies_in_setting) {
        tables.push(SuiteTable::Settings);
    }
    let scores_text = scenarios.iter().any(|it| it.kind == Kind::Score);
    if scores_text && !tables.contains(&SuiteTable::Precision) {
        tables.push(SuiteTable::Quality);
    }
    tables
}

/// Whether one of these names is a suite that measures every precision of an engine.
pub fn measures_precisions(names: &[String]) -> bool {
    suites_named(names).any(|it| it.rows == SuiteRows::Precisions)
}

fn suites_named(names: &[String]) -> impl Iterator<Item = &'static Suite> {
    SUITES.iter().filter(|suite| names.iter().any(|name| name == suite.name))
}

/// The scenario with this name, or the scenarios of the suite with this name.
pub fn named(name: &str) -> Option<Vec<Scenario>> {
    if let Some(suite) = SUITES.iter().find(|suite| suite.name == name) {
        return Some(suite.scenarios());
    }
    SCENARIOS.iter().find(|scenario| scenario.name == name).map(|scenario| vec![*scenario])
}

/// Adds a scenario to a list. A scenario that the list has gets the values of both, because a suite may have other values.
pub fn add(scenarios: &mut Vec<Scenario>, scenario: Scenario) {
    match scenarios.iter_mut().find(|it| it.name == scenario.name) {
        Some(known) => known.axes = known.axes.joined(scenario.axes),
        None => scenarios.push(scenario),
    }
}

/// Like `named`, with few cases of each scenario, for invented records.
#[cfg(test)]
pub fn named_with_few_cases(name: &str) -> Option<Vec<Scenario>> {
    let short = |it: Scenario| {
        let axes = match (it.name, it.axes.prompt_tokens.len()) {
            ("ttft", 3..) => Axes { prompt_tokens: &[16, 128, 512], ..it.axes },
            ("prefill", 2..) => Axes { prompt_tokens: &[1024], ..it.axes },
            ("decode", _) => Axes { depth: &[0], ..it.axes },
            ("load", _) => Axes { page_cache: &[PageCache::Kept], ..it.axes },
            _ => it.axes,
        };
        Scenario { axes, ..it }
    };
    named(name).map(|scenarios| scenarios.into_iter().map(short).collect())
}

/// The scenario with this name, with its values in the default suite, if it is there. Engines' suites compare many presets, so
/// they measure few cases.
pub fn in_default_suite(name: &str) -> Option<Vec<Scenario>> {
    let of_default = SUITES[0].scenarios().into_iter().find(|it| it.name == name);
    of_default.map(|it| vec![it]).or_else(|| named(name))
}

/// A scenario with the values that `in_default_suite` gives it: `prefill 1024`.
pub fn described_in_default_suite(name: &str) -> String {
    let parts = if let Parts::These(parts) = SUITES[0].parts { parts } else { &[] };
    let part = parts.iter().find(|part| part.scenario == name);
    part.map_or_else(|| name.into(), SuitePart::describe)
}

/// Whether SCENARIOS has this name. A run file may define others, which no option can select without the file.
pub fn is_in_table(name: &str) -> bool {
    SCENARIOS.iter().any(|scenario| scenario.name == name)
}

/// Checks the suites that engines define: each scenario must exist, and each name must be new.
pub fn check_suites(registry: &Registry) -> Result<()> {
    for (name, engine, suite) in registry.suites() {
        let engine = &engine.manifest.name;
        if named(name).is_some() {
            bail!("engine `{engine}`: `suites.{name}`: a scenario or suite already has this name");
        }
        if let Some(unknown) = suite.scenarios.iter().find(|it| named(it).is_none()) {
            bail!("engine `{engine}`: `suites.{name}.scenarios`: no scenario `{unknown}`");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::manifest::OwnSuite;

    #[test]
    fn every_scenario_of_a_suite_exists() {
        for suite in SUITES {
            let count = named(suite.name).map(|scenarios| scenarios.len());
            let parts = if let Parts::These(parts) = suite.parts { parts.len() } else { SCENARIOS.len() - 2 };
            assert_eq!(count, Some(parts), "{}", suite.name);
        }
    }

    #[test]
    fn the_full_suite_leaves_out_depth_which_decode_measures_too_and_stress_which_is_alone() {
        let full: Vec<_> = named("full").unwrap().iter().map(|it| it.name).collect();
        let left_out: Vec<_> = SCENARIOS.iter().map(|it| it.name).filter(|it| !full.contains(it)).collect();
        assert_eq!(left_out, ["depth", "stress"]);
    }

    #[test]
    fn every_selection_that_scores_a_text_has_a_table_of_loss_and_drift() {
        let none = AxisValues::default();
        let tables = |name: &str| {
            let scenarios = named(name).unwrap();
            let shapes: Vec<Vec<Shape>> = scenarios.iter().map(|it| it.shapes(&none)).collect();
            tables_of(&[name.into()], &scenarios, &shapes)
        };
        assert_eq!(tables("full"), [SuiteTable::Distribution, SuiteTable::Settings, SuiteTable::Quality]);
        assert_eq!(tables("quantization"), [SuiteTable::Precision]);
        assert_eq!((tables("decode"), tables("default")), (vec![SuiteTable::Settings], vec![]));
        assert_eq!(tables("ttft"), [SuiteTable::Distribution]);
        // The scenario of a run file has a name of its own.
        let own = Scenario { name: "mine", ..named("perplexity").unwrap()[0] };
        assert_eq!(tables_of(&["mine".into()], &[own], &[]), [SuiteTable::Quality]);
    }

    #[test]
    fn a_suite_may_have_fewer_prompt_lengths_than_its_scenario() {
        let lengths = |name: &str| {
            let scenarios = named(name).unwrap();
            scenarios.iter().find(|it| it.name == "ttft").unwrap().axes.prompt_tokens
        };
        assert_eq!((lengths("default"), lengths("ttft")), (&[128, 512][..], SHORT_PROMPTS));
        assert_eq!(SUITES[0].describe(), "load, ttft 128 and 512, prefill 1024, decode depth 0");
        // The suite of an engine has the same ones.
        let of_engine = ["load", "prefill", "throughput"].map(described_in_default_suite);
        assert_eq!(of_engine, ["load", "prefill 1024", "throughput"]);
    }

    #[test]
    fn an_engines_suite_with_a_taken_name_or_unknown_scenario_is_refused() {
        let registry = |suite: &str, scenario: &str| {
            let mut engine = crate::engines::manifest::embedded().unwrap().remove(0);
            let about = String::from("x");
            let own = OwnSuite { about, scenarios: vec![scenario.into()] };
            engine.manifest.name = "toy".into();
            engine.manifest.suites = [(suite.to_string(), own)].into_iter().collect();
            Registry { engines: vec![engine], root: None }
        };
        let refused = |suite, scenario| check_suites(&registry(suite, scenario)).unwrap_err().to_string();
        assert!(check_suites(&registry("parts", "load")).is_ok());
        let taken = "engine `toy`: `suites.decode`: a scenario or suite already has this name";
        assert_eq!(refused("decode", "load"), taken);
        assert_eq!(refused("parts", "nap"), "engine `toy`: `suites.parts.scenarios`: no scenario `nap`");
    }
}
