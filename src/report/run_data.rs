//! The results of a record by configuration and case: rows, failures, notices and warnings.

use std::collections::{BTreeMap, BTreeSet};

use super::engines::{engines, word};
use super::resources::{Resources, Sources};
use super::rows::{
    Case, Engine, FailedConfiguration, FailureSummary, MeasuredWorkload, MetricSummary, Row, ScoredText,
    Stress, group_by_key,
};
use super::wall_time::WallTime;
use crate::analysis::agreement::Agreement;
use crate::analysis::claims::{self, Contradiction};
use crate::analysis::metric::limits::Key;
use crate::analysis::metric::serving::{self, QUEUE_PARTS};
use crate::analysis::metric::share::{self, Absent, StatedPeak};
use crate::analysis::metric::{self, METRICS, MetricId, Observation};
use crate::analysis::values::Values;
use crate::plan::scenario::Kind;
use crate::plan::{Plan, Workload};
use crate::record::{End, FEWER_BLOCKS, Failure, FailureKind, RunRecord, Warning};
use crate::text::{line, shorten};
use stats::INTERIM_ANALYSES;

/// The largest width, in columns, of a sentence that an engine sent, in any format.
const MAX_SENTENCE_WIDTH: usize = 2000;
/// The most hints of one failure.
const MAX_HINTS: usize = 3;

/// The number of blocks in which at least one engine was launched. Launches for output checks do not count.
pub fn begun_blocks(record: &RunRecord) -> u32 {
    let launches = record.launches.iter().filter(|launch| !launch.for_output_checks);
    launches.map(|launch| launch.block.saturating_add(1)).max().unwrap_or(0)
}

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
            stated_peak: self.stated_peak(case),
            reference: reference.map(|reference| self.engine(reference).label),
            warm_ups: warm_ups.copied().collect(),
            wall_time: WallTime::of(self.plan, launches).filter(|_| planned.workload.kind != Kind::Score),
            resources,
            scored_text: self.values.samples(case).find_map(|it| it.scores.as_ref()).map(ScoredText::from),
            stress: self.stress(case),
            queue_over_time: self.queue_over_time(case),
            failure: self.failure(case),
            contradicted: false,
        }
    }

    /// How the engine of a case changed while it was in use for a set time. The case has one launch.
    fn stress(&self, case: usize) -> Option<Stress> {
        let growth = self.values.observations(case).find_map(|it| it.growth)?;
        let failed = self.record.failures.iter().filter(|it| it.case == Some(case));
        Some(Stress {
            used_ns: growth.used_ns,
            requests: self.values.samples(case).count(),
            errors: failed.filter(|it| it.kind != FailureKind::NoTime).count(),
            latency: growth.latency,
            memory: growth.memory,
        })
    }

    fn queue_over_time(&self, case: usize) -> Option<[f64; QUEUE_PARTS]> {
        let windows: Vec<[f64; QUEUE_PARTS]> =
            self.values.observations(case).filter_map(|it| serving::queue_over_time(&it)).collect();
        let mean = |part: usize| windows.iter().map(|it| it[part]).sum::<f64>() / windows.len() as f64;
        (!windows.is_empty()).then(|| std::array::from_fn(mean))
    }

    /// The machine's limit for the case's headline, or the reason why there is none. `Ok(None)` if neither is known.
    fn limit(&self, case: usize) -> Result<Option<Key>, Absent> {
        let headline = metric::headline(self.plan, &self.plan.cases[case].workload).map(|it| it.id);
        let (limit, caches_explain): (fn(&Observation) -> Option<Key>, bool) = match headline {
            Some(MetricId::DECODE_RATE) => (share::bandwidth_limit, true),
            // Caches do not affect the limit of operations. Small weights are the reason only if nothing was probed.
            Some(MetricId::PREFILL_RATE) => (share::compute_limit, self.record.limits.is_empty()),
            _ => return Ok(None),
        };
        let key = self.values.observations(case).find_map(|it| limit(&it));
        let reason = || self.values.observations(case).find_map(|it| share::why_absent(&it));
        key.map_or_else(|| reason().filter(|_| caches_explain).map_or(Ok(None), Err), |key| Ok(Some(key)))
    }

    /// The peak that a data sheet states for the case's headline.
    fn stated_peak(&self, case: usize) -> Option<StatedPeak> {
        let stated: fn(&Observation) -> Option<StatedPeak> =
            match metric::headline(self.plan, &self.plan.cases[case].workload)?.id {
                MetricId::DECODE_RATE => share::stated_bandwidth,
                MetricId::PREFILL_RATE => share::stated_operations,
                _ => return None,
            };
        self.values.observations(case).find_map(|it| stated(&it))
    }

    pub fn engine(&self, configuration: usize) -> Engine {
        self.engines[configuration].clone()
    }

    pub fn failure(&self, case: usize) -> Option<FailureSummary> {
        let of_case = summary_of(self.record.failures.iter().filter(|failure| failure.case == Some(case)));
        // A failure of the engine also applies to its measured cases: they have no verdicts.
        let of_engine = || self.engine_failure(self.plan.cases[case].configuration);
        of_case.or_else(|| of_engine().filter(|_| self.values.is_measured(case)))
    }

    /// The failure of a configuration as a whole, which belongs to no case.
    fn engine_failure(&self, configuration: usize) -> Option<FailureSummary> {
        let failures = self.record.failures.iter();
        summary_of(failures.filter(|it| it.case.is_none() && it.configuration == configuration))
    }

    /// The configurations that failed as a whole, each once.
    pub fn failed(&self) -> Vec<FailedConfiguration> {
        let rows = (0..self.plan.configurations.len()).filter(|&index| self.is_row(index));
        let failed = rows.filter_map(|index| {
            // The plan has the reason for an unavailable engine, even when an interrupted run did not reach it.
            let unavailable = self.plan.configurations[index].unavailable.as_ref().map(|it| FailureSummary {
                kind: FailureKind::of_unavailable(&self.plan.configurations[index]),
                message: line(&it.reason),
                hint: it.hint.as_deref().map(|hint| hints(hint, line)),
                times: 1,
                ..FailureSummary::default()
            });
            let failure = self.engine_failure(index).or(unavailable)?;
            Some(FailedConfiguration { engine: self.engine(index), failure })
        });
        failed.collect()
    }

    /// How far each workload was measured, in the order of the plan.
    pub fn workloads(&self) -> Vec<MeasuredWorkload> {
        // An interrupted run shows the planned number of blocks. If the plan has no number, it shows the blocks that began.
        let planned_blocks = self.plan.extent.blocks.unwrap_or_else(|| self.begun_blocks());
        let mut known = BTreeSet::new();
        let workloads = self.plan.cases.iter().map(|case| &case.workload);
        let workloads = workloads.filter(|it| known.insert(it.label.as_str())).map(|workload| {
            let closed = self.record.closed.iter().find(|closed| closed.workload == workload.label);
            MeasuredWorkload {
                workload: line(&workload.label),
                scenario: line(&workload.scenario),
                blocks: closed.map_or(planned_blocks, |closed| closed.blocks),
                rounds: self.rounds(&workload.label),
                stopped_by: closed.map(|closed| closed.by),
                needs_budget: closed.and_then(|closed| closed.needs_budget.as_deref().map(line)),
            }
        });
        workloads.collect()
    }

    /// The fewest and the most rounds of a case of this workload in one block. A failure may have ended a block of its engine, so
    /// failed cases do not count.
    fn rounds(&self, workload: &str) -> Option<(usize, usize)> {
        let cases = self.plan.cases.iter().enumerate();
        let of_workload = cases
            .filter(|(_, case)| case.workload.label == workload && self.is_row(case.configuration))
            .filter(|(index, _)| self.failure(*index).is_none());
        let in_blocks = of_workload.flat_map(|(index, _)| {
            let launches = self.values.launches(index).iter();
            let by_block = group_by_key(launches.map(|it| (it.launch.block, it.measured.len())));
            by_block.into_iter().map(|(_, rounds)| rounds.iter().sum())
        });
        in_blocks.fold(None, |range: Option<(usize, usize)>, rounds| {
            let (least, most) = range.unwrap_or((rounds, rounds));
            Some((least.min(rounds), most.max(rounds)))
        })
    }

    fn begun_blocks(&self) -> u32 {
        begun_blocks(self.record)
    }

    /// A larger number of blocks for a remedy: that of the next interim analysis (8, 12 or 20), or else twice the current number.
    pub fn more_blocks(&self) -> usize {
        let blocks = self.begun_blocks().max(self.plan.extent.blocks.unwrap_or(0)) as usize;
        let mut analyses = INTERIM_ANALYSES.into_iter().skip(1);
        analyses.find(|analysis| *analysis > blocks).unwrap_or(blocks.saturating_mul(2))
    }

    pub fn notices(&self) -> Vec<String> {
        let ended = match self.record.end {
            Some(End::Finished) => None,
            Some(End::Interrupted) => Some("was interrupted"),
            None => Some("was cut off before its end"),
        };
        let ended = ended.map(|how| format!("the run {how}: only its recorded samples are shown"));
        ended.into_iter().chain(self.missing_cases()).collect()
    }

    /// Names the cases without samples, unless a failure explains their absence.
    fn missing_cases(&self) -> Option<String> {
        let rows = self.plan.cases.iter().enumerate().filter(|(_, case)| self.is_row(case.configuration));
        let all = rows.clone().count();
        let is_explained = |index: usize, configuration: usize| {
            self.plan.configurations[configuration].unavailable.is_some()
                || self.engine_failure(configuration).is_some()
                || self.failure(index).is_some()
        };
        let mut missing: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (index, case) in rows {
            if !self.values.is_measured(index) && !is_explained(index, case.configuration) {
                missing.entry(case.configuration).or_default().push(&case.workload.label);
            }
        }
        let count: usize = missing.values().map(Vec::len).sum();
        if count == all || count == 0 {
            return (count > 0).then(|| match all {
                1 => "the case has no samples".to_string(),
                all => format!("none of {all} cases has samples"),
            });
        }
        let label = |index: usize| line(&format!("`{}`", self.plan.configurations[index].label));
        let (whole, parts): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(index, cases)| cases.len() == self.plan.cases_of(*index).len());
        let of_whole: Vec<String> = whole.into_iter().map(|(index, _)| label(index)).collect();
        let of_whole = (!of_whole.is_empty()).then(|| format!("every case of {}", of_whole.join(", ")));
        let of_parts = parts
            .into_iter()
            .map(|(index, cases)| line(&format!("{} of {}", cases.join(", "), label(index))));
        let names: Vec<String> = of_whole.into_iter().chain(of_parts).collect();
        Some(format!("cases without samples: {count} of {all}: {}", names.join("; ")))
    }

    /// Whether the configuration has a row. A twin, the program of a baseline and a separate verifier have
    /// none.
    pub fn is_row(&self, configuration: usize) -> bool {
        self.plan.configurations[configuration].role.is_none()
    }

    pub fn is_measured_row(&self, configuration: usize) -> bool {
        let mut cases = self.plan.cases_of(configuration).into_iter();
        self.is_row(configuration) && cases.any(|case| self.values.is_measured(case))
    }

    /// All warnings: `mismatches`, contradicted claims, remarks on claims, warnings of the record. Equal warnings are shown once,
    /// with their number.
    pub fn warnings(&self, mismatches: Vec<String>, contradictions: &[Contradiction]) -> Vec<String> {
        let is_repeated = |warning: &&Warning| {
            claims::is_repeated(contradictions, warning) || self.record.is_repeated_by_twin(warning)
        };
        let recorded = self.record.warnings.iter().filter(|warning| !is_repeated(warning));
        let recorded = recorded.map(|warning: &Warning| {
            let message = current_wording(sentence(&warning.message));
            match warning.configuration {
                Some(configuration) => {
                    format!("{}: {message}", line(&self.plan.name_in_warnings(configuration)))
                }
                None => message,
            }
        });
        let contradicted = contradictions.iter().map(|it| sentence(&it.message));
        let remarks = claims::remarks(&self.values, &self.agreements);
        let remarks = remarks.iter().map(|it| sentence(it));
        let all = mismatches.into_iter().chain(contradicted).chain(remarks).chain(recorded);
        let write = |(text, times): (String, Vec<()>)| match times.len() {
            1 => text,
            times => format!("{text} ({times} times)"),
        };
        group_by_key(all.map(|text| (text, ()))).into_iter().map(write).collect()
    }
}

/// The text of a recorded warning. Earlier versions named the time of each engine's blocks, so that equal warnings differed.
fn current_wording(message: String) -> String {
    let start = "has fewer blocks than other engines, because each ";
    let after_time = message.strip_prefix(start).and_then(|rest| rest.split_once(" s of the time budget"));
    match after_time {
        Some((_, hint)) => format!("{FEWER_BLOCKS}{}", hint.replace("; try ", "; hint: ")),
        None => message,
    }
}

fn case_of(plan: &Plan, workload: &Workload) -> Case {
    Case {
        label: line(&workload.label),
        scenario: line(&workload.scenario),
        headline: metric::headline(plan, workload),
        scores_text: workload.kind == Kind::Score,
        prefix_cache: workload.shape.prefix_cache,
        rounds: workload.rounds,
        warmup: workload.warmup,
    }
}

/// The text as one safe line, shortened to `MAX_SENTENCE_WIDTH`.
pub fn sentence(text: &str) -> String {
    shorten(&line(text), MAX_SENTENCE_WIDTH)
}

/// At most `MAX_HINTS` hints, one in each line.
fn hints(hint: &str, clean: fn(&str) -> String) -> String {
    let hints = hint.lines().map(clean).filter(|hint| !hint.is_empty());
    hints.take(MAX_HINTS).collect::<Vec<_>>().join("\n")
}

/// The first failure, with the number of all failures.
fn summary_of<'a>(failures: impl Iterator<Item = &'a Failure>) -> Option<FailureSummary> {
    let failures: Vec<&Failure> = failures.collect();
    let first = failures.first()?;
    Some(FailureSummary {
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
