//! A run record becomes a report: raw samples become figures, failures become rows, facts in effect stand in place of what
//! was asked for.

use std::collections::BTreeMap;

use super::factors::same_device;
use super::safe::{line, shorten};
use super::{Asked, Case, Engine, Failed, Fault, Figure, Report, Row, notes};
use crate::metric::{self, METRICS, Metric, Observation, Per};
use crate::plan::{Configuration, Mode, Plan, Workload};
use crate::record::{End, Failure, Launch, Role, RunRecord, Sample, Warning};
use crate::scenario::Kind;
use crate::stats::Summary;

/// Words that an engine states, and what it says in sentences: no more of them is kept in any format.
const LONGEST_WORD: usize = 200;
const LONGEST_SENTENCE: usize = 2000;
/// Of a word inside a sentence.
const SHOWN_WORD: usize = 24;

impl Report {
    pub fn of(record: &RunRecord) -> Self {
        let plan = &record.header.plan;
        let seen = Seen::of(record);
        let mut rows: Vec<(usize, Row)> = cases_in_order(plan)
            .filter(|&case| !seen.samples[case].is_empty() || seen.fault(case).is_some())
            .map(|case| (plan.cases[case].configuration, seen.row(case)))
            .collect();
        set_ratios(plan, &mut rows);
        let notes = notes::of(record, &rows);
        let mut machine = record.header.machine.clone();
        machine.cpu.model = machine.cpu.model.as_deref().map(line);
        Self {
            record: line(&record.header.id),
            started: line(&record.header.started),
            orchestrate_version: line(&record.header.orchestrate_version),
            commit: record.header.commit.as_deref().map(line),
            command: record.header.command.iter().map(|word| line(word)).collect(),
            machine,
            mode: plan.mode,
            launches: plan.launches,
            seed: plan.seed,
            reference: line(&plan.reference),
            notices: seen.notices(),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            failed: seen.failed(),
            warnings: seen.warnings(),
            notes,
        }
    }
}

/// Workloads in the order in which the plan first names them, configurations within.
fn cases_in_order(plan: &Plan) -> impl Iterator<Item = usize> {
    let mut places = BTreeMap::new();
    for case in &plan.cases {
        let next = places.len();
        places.entry(case.workload.label.as_str()).or_insert(next);
    }
    let mut cases: Vec<usize> = (0..plan.cases.len()).collect();
    cases.sort_by_key(|&case| {
        (places[plan.cases[case].workload.label.as_str()], plan.cases[case].configuration)
    });
    cases.into_iter()
}

/// A record, sorted by what it is about.
struct Seen<'a> {
    record: &'a RunRecord,
    plan: &'a Plan,
    /// The measured samples of each case, by launch.
    samples: Vec<BTreeMap<u32, Vec<&'a Sample>>>,
    launches: BTreeMap<u32, &'a Launch>,
    engines: Vec<Engine>,
}

impl<'a> Seen<'a> {
    fn of(record: &'a RunRecord) -> Self {
        let plan = &record.header.plan;
        let mut samples = vec![BTreeMap::<u32, Vec<&Sample>>::new(); plan.cases.len()];
        for sample in record.samples.iter().filter(|sample| sample.role == Role::Measured) {
            if let Some(case) = samples.get_mut(sample.case) {
                case.entry(sample.launch).or_default().push(sample);
            }
        }
        let launches = record.launches.iter().map(|launch| (launch.launch, launch)).collect();
        let names = names(plan);
        let engines =
            plan.configurations.iter().zip(names).enumerate().map(|(index, (configuration, name))| {
                let launches = record.launches.iter().filter(|launch| launch.configuration == index);
                Engine { name, ..in_effect(configuration, launches) }
            });
        Self { record, plan, samples, launches, engines: engines.collect() }
    }

    fn row(&self, case: usize) -> Row {
        let planned = &self.plan.cases[case];
        let samples = &self.samples[case];
        let figures = METRICS.iter().filter_map(|metric| self.figure(case, metric));
        Row {
            case: case_of(&planned.workload, self.plan.mode),
            engine: self.engine(planned.configuration),
            launches: samples.len(),
            samples: samples.values().map(Vec::len).sum(),
            figures: figures.collect(),
            ratio: None,
            ratio_is_unsure: false,
            fault: self.fault(case),
        }
    }

    fn figure(&self, case: usize, metric: &'static Metric) -> Option<Figure> {
        let planned = &self.plan.cases[case];
        let launch_cases = self.plan.cases.iter().filter(|other| {
            other.configuration == planned.configuration && other.workload.kind == Kind::Launch
        });
        // The time to load is the launch's: where a case is about launches, the others need not repeat it.
        if metric.name == "load" && planned.workload.kind == Kind::Warm && launch_cases.count() > 0 {
            return None;
        }
        let of_launch = |(launch, samples): (&u32, &Vec<&Sample>)| -> Option<Vec<f64>> {
            let launch = self.launches.get(launch)?;
            let observed = samples.iter().filter_map(|sample| Observation::of(self.plan, launch, sample));
            let values: Vec<f64> = observed.flat_map(|observation| (metric.of)(&observation)).collect();
            Some(match metric.per {
                Per::Sample => values,
                Per::Launch => values.into_iter().reduce(f64::max).into_iter().collect(),
            })
        };
        let launches: Vec<Vec<f64>> = self.samples[case].iter().filter_map(of_launch).collect();
        Some(Figure { metric, summary: Summary::of(&launches)? })
    }

    fn engine(&self, configuration: usize) -> Engine {
        let name = || format!("configuration {configuration}");
        let unknown = || Engine { label: name(), name: name(), ..Engine::default() };
        self.engines.get(configuration).cloned().unwrap_or_else(unknown)
    }

    /// What went wrong with a case: the first failure, and how many there were.
    fn fault(&self, case: usize) -> Option<Fault> {
        let failures = self.record.failures.iter().filter(|failure| failure.case == Some(case));
        fault_of(failures)
    }

    /// Each configuration that failed as a whole, once.
    fn failed(&self) -> Vec<Failed> {
        let configurations = self.plan.configurations.iter().enumerate();
        let failed = configurations.filter_map(|(index, configuration)| {
            let failures = self.record.failures.iter();
            let whole = failures.filter(|failure| failure.configuration == index && failure.case.is_none());
            let said = fault_of(whole);
            // A plan knows what cannot be started here, also where the run was cut off before it came to it.
            let known = configuration.unavailable.as_ref().map(|unavailable| Fault {
                kind: "unavailable".into(),
                message: line(&unavailable.reason),
                hint: unavailable.hint.as_deref().map(line),
                times: 1,
                ..Fault::default()
            });
            said.or(known).map(|fault| Failed { engine: self.engine(index), fault })
        });
        failed.collect()
    }

    fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        match self.record.end {
            Some(End::Finished) => {}
            Some(End::Interrupted) => {
                notices.push("the run was interrupted: what it had measured stands here".into())
            }
            None => {
                notices.push("the run was cut off before its end: what it had recorded stands here".into())
            }
        }
        let missing: Vec<&crate::plan::Case> = self.missing().collect();
        let all = self.plan.cases.len();
        match missing.len() {
            0 => {}
            count if count == all => notices.push(format!("none of {all} cases has samples")),
            count => {
                let names =
                    self.plan.configurations.iter().enumerate().filter_map(|(index, configuration)| {
                        let of_it = missing.iter().filter(|case| case.configuration == index);
                        let cases: Vec<&str> = of_it.map(|case| case.workload.label.as_str()).collect();
                        let none = cases.is_empty();
                        let every = cases.len() == self.plan.cases_of(index).len();
                        let cases = if every { "every case".into() } else { cases.join(", ") };
                        (!none).then(|| line(&format!("{} ({cases})", configuration.label)))
                    });
                let names = names.collect::<Vec<_>>().join(", ");
                notices.push(format!("{count} of {all} cases have no samples: {names}"));
            }
        }
        notices
    }

    /// Cases without samples of which no failure says why.
    fn missing(&self) -> impl Iterator<Item = &'a crate::plan::Case> {
        let failed: Vec<usize> = (0..self.plan.configurations.len())
            .filter(|&index| {
                let mut failures = self.record.failures.iter();
                let unavailable = self.plan.configurations[index].unavailable.is_some();
                unavailable || failures.any(|it| it.configuration == index && it.case.is_none())
            })
            .collect();
        let cases = self.plan.cases.iter().enumerate();
        cases
            .filter(move |(index, case)| {
                self.samples[*index].is_empty()
                    && self.fault(*index).is_none()
                    && !failed.contains(&case.configuration)
            })
            .map(|(_, case)| case)
    }

    fn warnings(&self) -> Vec<String> {
        let recorded = self.record.warnings.iter().map(|warning: &Warning| {
            let message = sentence(&warning.message);
            match warning.configuration {
                Some(configuration) => format!("{}: {message}", self.engine(configuration).label),
                None => message,
            }
        });
        let mut counted: Vec<(String, usize)> = Vec::new();
        for warning in self.mismatches().into_iter().chain(recorded) {
            match counted.iter_mut().find(|(text, _)| *text == warning) {
                Some((_, times)) => *times += 1,
                None => counted.push((warning, 1)),
            }
        }
        let write = |(text, times)| if times > 1 { format!("{text} ({times} times)") } else { text };
        counted.into_iter().map(write).collect()
    }

    /// Where the configuration in effect is not the one that was asked for, or not the same in every launch.
    fn mismatches(&self) -> Vec<String> {
        let mut mismatches = Vec::new();
        for (index, configuration) in self.plan.configurations.iter().enumerate() {
            let label = &self.engines[index].label;
            let launches = self.record.launches.iter().filter(|launch| launch.configuration == index);
            for facts in launches.clone().filter_map(|launch| Some(&launch.loaded.as_ref()?.facts)) {
                let mut compare = |what: &str, asked: Option<&str>, runs: Option<String>, same: bool| {
                    if let (Some(asked), Some(runs), false) = (asked, runs, same) {
                        let (asked, runs) = (shorten(asked, SHOWN_WORD), shorten(&line(&runs), SHOWN_WORD));
                        mismatches.push(line(&format!("{label}: asked for {what} `{asked}`, runs `{runs}`")));
                    }
                };
                let (asked, runs) = (configuration.device.as_str(), facts.device.clone());
                let same = runs.as_deref().is_some_and(|runs| same_device(asked, runs));
                compare("device", Some(asked).filter(|asked| !asked.is_empty()), runs, same);
                let asked = configuration.dtype.as_deref();
                let same = asked == facts.weights_dtype.as_deref() || asked == facts.compute_dtype.as_deref();
                compare("dtype", asked, dtype_of(facts), same);
                let asked = configuration.threads;
                let same = Some(asked) == facts.threads;
                let runs = facts.threads.map(|threads| threads.to_string());
                compare(
                    "threads",
                    Some(&asked.to_string()).filter(|_| asked > 0).map(|x| x.as_str()),
                    runs,
                    same,
                );
            }
            let mut stated = launches.map(|launch| in_effect(configuration, std::iter::once(launch)));
            if let Some(first) = stated.next()
                && stated.any(|other| other != first)
            {
                mismatches.push(format!(
                    "{label}: its launches ran with different configurations or versions; the first one's stand here"
                ));
            }
        }
        mismatches
    }
}

fn case_of(workload: &Workload, mode: Mode) -> Case {
    // One process for each request is about the whole of it, from the start of the process.
    let headline = match (mode, workload.kind) {
        (Mode::OneShot, Kind::Warm) => "total",
        _ => workload.headline.as_str(),
    };
    Case {
        label: line(&workload.label),
        scenario: line(&workload.scenario),
        headline: metric::named(headline),
        samples: workload.samples,
        warmup: workload.warmup,
    }
}

/// The engine and its preset, with a number where nothing that has a column tells two configurations apart.
fn names(plan: &Plan) -> Vec<String> {
    let base = |it: &Configuration| {
        let preset = it.preset.iter().map(|preset| format!(":{preset}"));
        line(&format!("{}{}", it.engine, preset.collect::<String>()))
    };
    let alike = |one: &Configuration, other: &Configuration| {
        let factors = |it: &Configuration| {
            (base(it), it.model.name.clone(), it.device.clone(), it.dtype.clone(), it.threads)
        };
        factors(one) == factors(other)
    };
    let named = plan.configurations.iter().enumerate().map(|(index, configuration)| {
        match plan.configurations[..index].iter().filter(|other| alike(other, configuration)).count() {
            0 => base(configuration),
            before => format!("{} #{}", base(configuration), before + 1),
        }
    });
    named.collect()
}

/// The facts of the first launch that stated each; the caller knows the name.
fn in_effect<'a>(
    configuration: &Configuration,
    launches: impl Iterator<Item = &'a Launch> + Clone,
) -> Engine {
    let facts = || launches.clone().filter_map(|launch| Some(&launch.loaded.as_ref()?.facts));
    let hello = launches.clone().find_map(|launch| launch.hello.as_ref());
    // An engine that was never asked for a `hello` may still say what it is made of.
    let libraries = || facts().map(|facts| libraries(&facts.libraries)).find(|text| !text.is_empty());
    let asked = Asked {
        device: Some(word(&configuration.device)).filter(|device| !device.is_empty()),
        dtype: configuration.dtype.as_deref().map(word),
        threads: Some(configuration.threads).filter(|&threads| threads > 0),
    };
    Engine {
        name: String::new(),
        label: line(&configuration.label),
        engine: line(&configuration.engine),
        model: line(&configuration.model.name),
        version: hello.map(|hello| word(&hello.version)).or_else(libraries),
        device: facts().find_map(|facts| facts.device.as_deref()).map(word),
        dtype: facts().find_map(dtype_of).as_deref().map(word),
        threads: facts().find_map(|facts| facts.threads),
        asked,
    }
}

fn libraries(versions: &BTreeMap<String, String>) -> String {
    let all = versions.iter().map(|(name, version)| format!("{name} {version}"));
    word(&all.collect::<Vec<_>>().join(", "))
}

fn word(text: &str) -> String {
    shorten(&line(text), LONGEST_WORD)
}

fn sentence(text: &str) -> String {
    shorten(&line(text), LONGEST_SENTENCE)
}

fn dtype_of(facts: &protocol::Facts) -> Option<String> {
    match (facts.weights_dtype.as_ref(), facts.compute_dtype.as_ref()) {
        (Some(weights), Some(compute)) if weights != compute => Some(format!("{weights}/{compute}")),
        (weights, compute) => weights.or(compute).cloned(),
    }
}

fn fault_of<'a>(failures: impl Iterator<Item = &'a Failure>) -> Option<Fault> {
    let failures: Vec<&Failure> = failures.collect();
    let first = failures.first()?;
    Some(Fault {
        kind: word(&first.kind),
        when: word(&first.when),
        message: sentence(&first.message),
        hint: first.hint.as_deref().map(sentence),
        stderr: first.stderr.iter().map(|said| sentence(said)).collect(),
        times: failures.len(),
    })
}

fn set_ratios(plan: &Plan, rows: &mut [(usize, Row)]) {
    let estimate = |row: &Row| {
        let figure = row.figure(row.case.headline?.name)?;
        Some(figure.summary.estimate).filter(|_| row.fault.is_none())
    };
    let ratios: Vec<Option<(f64, bool)>> = rows
        .iter()
        .map(|(configuration, row)| {
            let reference = reference_of(plan, *configuration)?;
            let mut others = rows.iter().filter(|(other, _)| *other == reference);
            let (_, other) = others.find(|(_, other)| other.case.label == row.case.label)?;
            let (own, theirs) = (estimate(row)?, estimate(other)?);
            let ratio = match row.case.headline?.better {
                metric::Better::Higher => own / theirs,
                metric::Better::Lower => theirs / own,
            };
            // The reference is as good as itself, however wide its launches spread.
            let wide = [row, other].iter().any(|it| it.wide_spread().is_some());
            ratio.is_finite().then_some((ratio, wide && reference != *configuration))
        })
        .collect();
    for ((_, row), ratio) in rows.iter_mut().zip(ratios) {
        row.ratio = ratio.map(|(ratio, _)| ratio);
        row.ratio_is_unsure = ratio.is_some_and(|(_, unsure)| unsure);
    }
}

/// The configuration that another is compared with: of the reference's label or engine, on the same model, and with as
/// many of the other factors the same as there is one.
fn reference_of(plan: &Plan, configuration: usize) -> Option<usize> {
    let own = plan.configurations.get(configuration)?;
    let alike = |other: &Configuration| {
        usize::from(other.device == own.device)
            + usize::from(other.dtype == own.dtype)
            + usize::from(other.threads == own.threads)
    };
    let candidates = plan.configurations.iter().enumerate().filter(|(_, other)| other.model == own.model);
    let named = |it: &Configuration| {
        let with_preset = it.preset.as_ref().map(|preset| format!("{}:{preset}", it.engine));
        it.label == plan.reference || with_preset.unwrap_or_else(|| it.engine.clone()) == plan.reference
    };
    let best = candidates.filter(|(_, other)| named(other)).max_by_key(|(index, other)| {
        (usize::from(other.label == plan.reference), alike(other), std::cmp::Reverse(*index))
    });
    best.map(|(index, _)| index)
}
