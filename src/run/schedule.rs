//! The remaining work of a run: its open cases, its open workloads, and its time budget. This file starts no engine and makes
//! no request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::blocking::off_thread;
use super::journal::{Event, Journal};
use super::time_budget::TimeBudget;
use super::warm_up::MIN_WARM_UPS;
use crate::analysis::compare;
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Order, Plan};
use crate::record::{Closed, Entry, Failure, FailureKind, RunRecord};
use crate::run::process::LaunchError;
use crate::text;
use stats::{Analysis, INTERIM_ANALYSES, MIN_VERDICT_BLOCKS, Rule, StoppedBy};

pub(super) struct Schedule<'a> {
    plan: &'a Plan,
    began: Instant,
    pub time_budget: TimeBudget,
    /// Failed cases, which get no more requests.
    failed: BTreeSet<usize>,
    /// Workloads with enough blocks, by label.
    closed: BTreeSet<String>,
    /// The number of warm-up requests that a case needed in an earlier launch.
    pub needed_warm_ups: BTreeMap<usize, u32>,
}

impl<'a> Schedule<'a> {
    pub fn of(plan: &'a Plan) -> Self {
        Self {
            plan,
            began: Instant::now(),
            time_budget: TimeBudget::of(plan),
            failed: BTreeSet::new(),
            closed: BTreeSet::new(),
            needed_warm_ups: BTreeMap::new(),
        }
    }

    /// Opens all workloads again for the next configuration, if configurations are measured one after the other.
    pub fn start_over(&mut self) {
        self.closed.clear();
        self.time_budget = self.time_budget.for_next_configuration(self.plan);
    }

    pub fn ran(&self) -> Duration {
        self.began.elapsed()
    }

    /// The end of the run's budget, where it has one.
    pub fn budget_ends(&self) -> Option<Instant> {
        self.plan.extent.budget_ns.map(|ns| self.began + Duration::from_nanos(ns))
    }

    /// The configurations that a block launches, in order.
    pub fn order(&self, configurations: &[usize], block: u32) -> Vec<usize> {
        let mut order = self.plan.order_of(configurations, block);
        order.retain(|&configuration| self.has_open_cases(configuration));
        order
    }

    /// Closes the workloads that have enough blocks, or all of them if the time is over. `blocks` is the number of blocks so far.
    pub async fn close_finished_workloads(&mut self, journal: &mut Journal<'_>, blocks: usize) -> Result<()> {
        let workloads = [self.open_workloads(Kind::Launch), self.open_workloads(Kind::Warm)].concat();
        let analyses = self.analyses(journal.record(), &workloads, blocks).await?;
        let is_over = self.time_budget.is_over();
        for (workload, analysis) in workloads.into_iter().zip(analyses) {
            let enough = match (self.plan.extent.blocks, self.plan.order) {
                (Some(fixed), _) => (blocks >= fixed as usize).then_some(StoppedBy::Fixed),
                (None, Order::Sequential) => (blocks >= MIN_VERDICT_BLOCKS).then_some(StoppedBy::Fixed),
                (None, Order::Interleaved) => match analysis {
                    Some(Analysis::Stop(by)) => Some(by),
                    Some(Analysis::GoOn { .. }) | None => None,
                },
            };
            // A block that the budget cut short allows no interim analysis.
            let enough = enough.filter(|by| *by == StoppedBy::Fixed || !self.time_budget.is_spent());
            let closed = enough.or_else(|| is_over.then_some(StoppedBy::Time));
            if analysis.is_some() || closed.is_some() {
                journal.send(Event::Detail(self.decision(&workload, blocks, closed)));
            }
            if let Some(by) = closed {
                self.closed.insert(workload.clone());
                journal.take(Entry::Closed(Closed { workload, blocks: blocks as u32, by }))?;
            }
        }
        Ok(())
    }

    /// The decision about a workload after a block, with its reason.
    fn decision(&self, workload: &str, blocks: usize, closed: Option<StoppedBy>) -> String {
        // `0.07` is 7 %, not 7.000000000000001 %.
        let target = format!("±{} %", (1e8 * self.plan.extent.target).round() / 1e6);
        let next = INTERIM_ANALYSES.into_iter().find(|&analysis| analysis > blocks).unwrap_or(blocks);
        let why = match closed {
            None => format!("goes on until block {next}: an interval of a ratio is wider than {target}"),
            Some(StoppedBy::Width) => format!("ends: every interval of a ratio is within {target}"),
            Some(StoppedBy::LastAnalysis) => {
                format!("ends: the last interim analysis; an interval is wider than {target}")
            }
            Some(StoppedBy::Time) => "ends: the time is over".into(),
            Some(StoppedBy::Fixed) => "ends: the number of blocks is fixed".into(),
        };
        format!("{workload}: after {}: {why}", text::plural(blocks, "block"))
    }

    /// For each workload, the result of its interim analysis, where there is one. Analyses happen after the numbers of blocks in
    /// `INTERIM_ANALYSES`, in runs without a fixed number. They are slow on a large record, so a separate thread works on a copy.
    async fn analyses(
        &self,
        record: &RunRecord,
        workloads: &[String],
        blocks: usize,
    ) -> Result<Vec<Option<Analysis>>> {
        let is_adaptive = self.plan.extent.blocks.is_none() && self.plan.order == Order::Interleaved;
        if !is_adaptive || !INTERIM_ANALYSES.contains(&blocks) {
            return Ok(vec![None; workloads.len()]);
        }
        let rule = Rule::with_target(self.plan.extent.target).unwrap_or_default();
        let (record, workloads) = (record.clone(), workloads.to_vec());
        let analysis = move |workload: &String| compare::interim_analysis(&record, workload, blocks, rule);
        off_thread(move || workloads.iter().map(|it| Some(analysis(it))).collect()).await
    }

    /// Sends the event of a new block, with the total number of requests up to the next interim analysis.
    pub fn announce(&self, journal: &mut Journal, block: u32, configurations: &[usize]) {
        let next = INTERIM_ANALYSES.into_iter().find(|&analysis| analysis > block as usize);
        let until = self.plan.extent.blocks.unwrap_or(next.map_or(block + 1, |blocks| blocks as u32));
        let cases =
            configurations.iter().flat_map(|&it| self.plan.cases_of(it)).filter(|&it| self.is_open(it));
        let in_a_block: u64 = cases.map(|case| self.requests_of(case, configurations.len() > 1)).sum();
        let remaining = in_a_block * u64::from(until.saturating_sub(block));
        let requests = journal.record().samples.len() as u64 + remaining;
        journal.send(Event::BlockStarted { block, until, requests });
    }

    /// The expected number of requests of a case in one block.
    fn requests_of(&self, case: usize, interleaved: bool) -> u64 {
        let workload = &self.plan.cases[case].workload;
        if self.plan.mode == Mode::OneShot || workload.kind == Kind::Launch {
            return u64::from(workload.rounds);
        }
        // Interleaved engines are paused between requests. After a pause, a discarded request may come before the measured one.
        let warm_up = workload.warmup.or(self.needed_warm_ups.get(&case).copied()).unwrap_or(MIN_WARM_UPS);
        u64::from(warm_up) + u64::from(workload.rounds) * if interleaved { 2 } else { 1 }
    }

    /// Returns the value, or records the failure and returns `None`. An error of this program ends the run.
    pub fn record_if_failed<T>(
        &mut self,
        journal: &mut Journal,
        configuration: usize,
        case: Option<usize>,
        result: Result<T, LaunchError>,
    ) -> Result<Option<T>> {
        match LaunchError::separate(result)? {
            Ok(value) => Ok(Some(value)),
            Err(failure) => {
                self.record_failure(journal, failure.into_failure(configuration, case)).map(|()| None)
            }
        }
    }

    /// Records a failure. The failed cases get no more requests.
    pub fn record_failure(&mut self, journal: &mut Journal, failure: Failure) -> Result<()> {
        match failure.case {
            Some(case) => self.end_case(case),
            None => self.end_cases_of(failure.configuration),
        }
        journal.fail(failure)
    }

    /// Sends no more requests of a case. This records no failure.
    pub fn end_case(&mut self, case: usize) {
        self.failed.insert(case);
    }

    /// Sends no more requests to a configuration, such as the twin of a failed one. This records no failure.
    pub fn end_cases_of(&mut self, configuration: usize) {
        self.failed.extend(self.plan.cases_of(configuration));
    }

    /// Records a failure for each case that the budget left no time for.
    pub fn record_unmeasured_cases(&mut self, journal: &mut Journal) -> Result<()> {
        let Some(budget_ns) = self.plan.extent.budget_ns else { return Ok(()) };
        let budget = Duration::from_nanos(budget_ns);
        let measured: BTreeSet<usize> = journal.record().measured().map(|it| it.case).collect();
        for case in 0..self.plan.cases.len() {
            if self.failed.contains(&case) || measured.contains(&case) {
                continue;
            }
            let budget_text = humantime::format_duration(budget);
            let failure = Failure {
                configuration: self.plan.cases[case].configuration,
                case: Some(case),
                kind: FailureKind::NoTime,
                message: format!("the budget of {budget_text} ended before this case was measured"),
                hint: Some(format!("--budget {}", humantime::format_duration(budget * 4))),
                ..Failure::default()
            };
            self.record_failure(journal, failure)?;
        }
        Ok(())
    }

    pub fn has_failed(&self, case: usize) -> bool {
        self.failed.contains(&case)
    }

    pub fn is_open(&self, case: usize) -> bool {
        !self.has_failed(case) && !self.closed.contains(self.label_of(case))
    }

    pub fn has_open_cases(&self, configuration: usize) -> bool {
        self.plan.cases_of(configuration).into_iter().any(|case| self.is_open(case))
    }

    pub fn open_cases(&self, configuration: usize, kind: Kind) -> Vec<usize> {
        let cases = self.plan.cases_of(configuration).into_iter();
        cases.filter(|&case| self.is_open(case) && self.plan.cases[case].workload.kind == kind).collect()
    }

    /// The labels of open workloads, in the plan's order.
    pub fn open_workloads(&self, kind: Kind) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for case in (0..self.plan.cases.len()).filter(|&case| self.is_open(case)) {
            let workload = &self.plan.cases[case].workload;
            if workload.kind == kind && !labels.contains(&workload.label) {
                labels.push(workload.label.clone());
            }
        }
        labels
    }

    pub fn label_of(&self, case: usize) -> &str {
        &self.plan.cases[case].workload.label
    }
}
