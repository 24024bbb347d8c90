//! A record, sorted by configuration and case.

use std::collections::BTreeSet;

use super::engines::{engines, word};
use super::resources::{Resources, Sources};
use super::rows::{Case, Engine, Extent, Failed, Fault, MetricSummary, Row};
use super::wall_time::WallTime;
use crate::analysis::agreement::Agreement;
use crate::analysis::claims::{self, Contradiction};
use crate::analysis::metric::limits::Key;
use crate::analysis::metric::share::{self, Absent};
use crate::analysis::metric::{self, METRICS, MetricId, Observation};
use crate::analysis::values::Values;
use crate::plan::{self, Plan, Workload};
use crate::record::{End, Failure, FailureKind, RunRecord, Warning};
use crate::text::{line, shorten};
use stats::INTERIM_ANALYSES;

/// The longest sentence of an engine that any format keeps.
const LONGEST_SENTENCE: usize = 2000;
/// The most hints of one failure.
const MOST_HINTS: usize = 3;

pub struct RunData<'a> {
    pub record: &'a RunRecord,
    pub plan: &'a Plan,
    pub values: Values<'a>,
    /// One for each configuration.
    pub engines: Vec<Engine>,
    /// One for each configuration.
    pub agreements: Vec<Agreement>,
}

impl<'a> RunData<'a> {
    pub fn of(record: &'a RunRecord) -> Self {
        let (engines, agreements) = (engines(record), Agreement::of(record));
        Self { record, plan: &record.header.plan, values: Values::of(record), engines, agreements }
    }

    pub fn row(&self, case: usize) -> Row {
        let planned = &self.plan.cases[case];
        let launches = self.values.launches(case);
        let summaries = METRICS.iter().filter_map(|metric| {
            Some(MetricSummary { metric, summary: self.values.of_metric(case, metric).summary()? })
        });
        let summaries: Vec<MetricSummary> = summaries.collect();
        let estimates = summaries.iter().map(|it| (it.metric.id, it.summary.estimate)).collect();
        let resources = || Resources::of(&Sources::of(&self.values, case, estimates));
        let resources = (!launches.is_empty()).then(resources);
        let reference = self.plan.reference_of(planned.configuration);
        let warm_ups = self.record.warm_ups.iter().filter(|warm_up| warm_up.case == case);
        Row {
            case: case_of(self.plan, &planned.workload),
            engine: self.engine(planned.configuration),
            launches: launches.len(),
            samples: launches.iter().map(|requests| requests.measured.len()).sum(),
            summaries,
            limit: self.limit(case),
            reference: reference.map(|reference| self.engine(reference).label),
            warm_ups: warm_ups.copied().collect(),
            wall_time: WallTime::of(self.plan, launches),
            resources,
            fault: self.fault(case),
            contradicted: false,
        }
    }

    /// The limit that the share of the case's headline refers to.
    fn limit(&self, case: usize) -> Result<Option<Key>, Absent> {
        let headline = metric::headline(self.plan, &self.plan.cases[case].workload).map(|it| it.id);
        let (limit, always): (fn(&Observation) -> Option<Key>, bool) = match headline {
            Some(MetricId::DECODE_RATE) => (share::bandwidth_limit, true),
            // Operations have a limit for weights in any memory: a missing one means that nothing was probed.
            Some(MetricId::PREFILL_RATE) => (share::compute_limit, self.record.limits.is_empty()),
            _ => return Ok(None),
        };
        let found = self.values.observed(case).find_map(|it| limit(&it));
        let reason = || self.values.observed(case).find_map(|it| share::why_absent(&it)).filter(|_| always);
        found.map_or_else(|| reason().map_or(Ok(None), Err), |key| Ok(Some(key)))
    }

    pub fn engine(&self, configuration: usize) -> Engine {
        self.engines[configuration].clone()
    }

    /// The failure of a case: the first one, and the number of all.
    pub fn fault(&self, case: usize) -> Option<Fault> {
        let failures = self.record.failures.iter();
        let own = fault_of(failures.clone().filter(|failure| failure.case == Some(case)));
        // A failure of the whole engine also applies to its measured cases: they have no verdicts.
        let (configuration, measured) = (self.plan.cases[case].configuration, self.values.is_measured(case));
        let whole = |it: &&Failure| it.case.is_none() && it.configuration == configuration;
        own.or_else(|| fault_of(failures.filter(whole)).filter(|_| measured))
    }

    /// The configurations that failed as a whole, each once.
    pub fn failed(&self) -> Vec<Failed> {
        let configurations = self.plan.configurations.iter().enumerate();
        let rows = configurations.filter(|(_, configuration)| configuration.role.is_none());
        let failed = rows.filter_map(|(index, configuration)| {
            let failures = self.record.failures.iter();
            let whole = failures.filter(|failure| failure.configuration == index && failure.case.is_none());
            let recorded = fault_of(whole);
            // The plan has the reason for an unavailable engine, even when an interrupted run did not reach it.
            let known = configuration.unavailable.as_ref().map(|unavailable| Fault {
                kind: FailureKind::Unavailable,
                message: line(&unavailable.reason),
                hint: unavailable.hint.as_deref().map(|hint| hints(hint, line)),
                times: 1,
                ..Fault::default()
            });
            recorded.or(known).map(|fault| Failed { engine: self.engine(index), fault })
        });
        failed.collect()
    }

    /// The extents, one for each workload, in the order in which the plan first names them.
    pub fn extents(&self) -> Vec<Extent> {
        // An interrupted run shows the planned number of blocks. Without a plan it shows the blocks that began.
        let unended = self.plan.extent.blocks.unwrap_or_else(|| self.begun_blocks());
        let mut known = BTreeSet::new();
        let workloads = self.plan.cases.iter().map(|case| &case.workload);
        let extents = workloads.filter(|it| known.insert(it.label.as_str())).map(|workload| {
            let closed = self.record.closed.iter().find(|closed| closed.workload == workload.label);
            Extent {
                workload: line(&workload.label),
                scenario: line(&workload.scenario),
                blocks: closed.map_or(unended, |closed| closed.blocks),
                stopped_by: closed.map(|closed| closed.by),
            }
        });
        extents.collect()
    }

    /// The number of blocks in which at least one engine was launched. Launches for output checks count for none.
    fn begun_blocks(&self) -> u32 {
        let launches = self.record.launches.iter().filter(|launch| !launch.for_output_checks);
        launches.map(|launch| launch.block.saturating_add(1)).max().unwrap_or(0)
    }

    /// A larger number of blocks for a remedy: the next interim analysis of a run without `--blocks`.
    pub fn more_blocks(&self) -> usize {
        let blocks = self.begun_blocks().max(self.plan.extent.blocks.unwrap_or(0)) as usize;
        let mut analyses = INTERIM_ANALYSES.into_iter().skip(1);
        analyses.find(|analysis| *analysis > blocks).unwrap_or(blocks.saturating_mul(2))
    }

    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        match self.record.end {
            Some(End::Finished) => {}
            Some(End::Interrupted) => {
                notices.push("the run was interrupted: only its recorded samples are shown".into())
            }
            None => {
                notices.push("the run was cut off before its end: only its recorded samples are shown".into())
            }
        }
        let missing: Vec<&plan::Case> = self.missing().collect();
        let all = self.plan.cases.iter().filter(|case| self.is_row(case.configuration)).count();
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

    /// Whether the configuration has a row. A twin has none.
    fn is_row(&self, configuration: usize) -> bool {
        self.plan.configurations[configuration].role.is_none()
    }

    /// Cases without samples and without a failure that explains it.
    fn missing(&self) -> impl Iterator<Item = &'a plan::Case> {
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
                self.is_row(case.configuration)
                    && !self.values.is_measured(*index)
                    && self.fault(*index).is_none()
                    && !failed.contains(&case.configuration)
            })
            .map(|(_, case)| case)
    }

    /// All warnings: `before`, then the claims, then those of the record, each once with its count.
    pub fn warnings(&self, before: Vec<String>, contradictions: &[Contradiction]) -> Vec<String> {
        let recorded =
            self.record.warnings.iter().filter(|warning| !claims::is_repeated(contradictions, warning));
        let recorded = recorded.map(|warning: &Warning| {
            let message = sentence(&warning.message);
            match warning.configuration {
                Some(configuration) => format!("{}: {message}", self.engine(configuration).label),
                None => message,
            }
        });
        let mut counted: Vec<(String, usize)> = Vec::new();
        let contradicted = contradictions.iter().map(|doubt| sentence(&doubt.message));
        for warning in before.into_iter().chain(contradicted).chain(recorded) {
            match counted.iter_mut().find(|(text, _)| *text == warning) {
                Some((_, times)) => *times += 1,
                None => counted.push((warning, 1)),
            }
        }
        let write = |(text, times)| if times > 1 { format!("{text} ({times} times)") } else { text };
        counted.into_iter().map(write).collect()
    }
}

fn case_of(plan: &Plan, workload: &Workload) -> Case {
    Case {
        label: line(&workload.label),
        scenario: line(&workload.scenario),
        headline: metric::headline(plan, workload),
        rounds: workload.rounds,
        warmup: workload.warmup,
    }
}

pub fn sentence(text: &str) -> String {
    shorten(&line(text), LONGEST_SENTENCE)
}

/// The hints, one in each line, limited in number.
fn hints(hint: &str, clean: fn(&str) -> String) -> String {
    let hints = hint.lines().map(clean).filter(|hint| !hint.is_empty());
    hints.take(MOST_HINTS).collect::<Vec<_>>().join("\n")
}

fn fault_of<'a>(failures: impl Iterator<Item = &'a Failure>) -> Option<Fault> {
    let failures: Vec<&Failure> = failures.collect();
    let first = failures.first()?;
    Some(Fault {
        kind: FailureKind::parse(word(first.kind.as_str()).as_str()),
        when: word(&first.when),
        message: sentence(&first.message),
        hint: first.hint.as_deref().map(|hint| hints(hint, sentence)),
        stderr: first.stderr.iter().map(|text| sentence(text)).collect(),
        times: failures.len(),
    })
}

#[cfg(test)]
mod tests;
