//! The remaining work of a run: its open cases, its open workloads, and its time budget. This file starts no engine and makes
//! no request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::blocking::off_thread;
use super::journal::{Event, Journal};
use super::needed_time::NeededTime;
use super::participants::{BlockTime, RowGroup, participants, row_groups};
use super::time_budget::TimeBudget;
use super::warm_up::MIN_STEADY_REQUESTS;
use crate::analysis::compare;
use crate::plan::budget::RunTimes;
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Order, Plan, Role};
use crate::record::{Closed, Entry, FEWER_BLOCKS, Failure, FailureKind, RunRecord};
use crate::run::process::LaunchError;
use crate::text;
use stats::{Analysis, INTERIM_ANALYSES, MIN_VERDICT_BLOCKS, Rule, StoppedBy};

pub(super) struct Schedule<'a> {
    plan: &'a Plan,
    began: Instant,
    pub time_budget: TimeBudget,
    /// The time that parts of the run need.
    pub needed: NeededTime,
    /// Cases that get no more requests: they or their configuration failed, or the row of a twin failed.
    failed: BTreeSet<usize>,
    /// Workloads that get no more blocks, by label.
    closed: BTreeSet<String>,
    /// The number of warm-up requests that a case needed in an earlier launch.
    pub needed_warm_ups: BTreeMap<usize, u32>,
    /// The time of each configuration in its last block that the budget did not cut short.
    block_times: BTreeMap<usize, BlockTime>,
    /// The time of each configuration in the current block.
    times: BTreeMap<usize, BlockTime>,
    /// The configurations that were left out of a block because of their time.
    left_out: BTreeSet<usize>,
}

impl<'a> Schedule<'a> {
    pub fn of(plan: &'a Plan) -> Self {
        Self {
            plan,
            began: Instant::now(),
            time_budget: TimeBudget::of(plan),
            needed: NeededTime::default(),
            failed: BTreeSet::new(),
            closed: BTreeSet::new(),
            needed_warm_ups: BTreeMap::new(),
            block_times: BTreeMap::new(),
            times: BTreeMap::new(),
            left_out: BTreeSet::new(),
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

    /// The end of the run's budget, if the user set one.
    pub fn budget_ends(&self) -> Option<Instant> {
        self.plan.extent.set_budget().map(|budget| self.began + budget)
    }

    pub fn block_begins(&mut self) {
        self.time_budget.block_begins();
        self.times.clear();
    }

    pub fn block_ends(&mut self) {
        if !self.time_budget.is_spent() {
            self.block_times.append(&mut self.times);
        }
        self.time_budget.block_ends();
    }

    /// Adds to the time of a configuration in this block. `least` is the part that no shorter block could avoid.
    pub fn add_time(&mut self, configuration: usize, whole: Duration, least: Duration) {
        self.times.entry(configuration).or_default().add(BlockTime { whole, least });
    }

    /// The configurations of the next block, after this number of blocks. None remain if no workload is open or no block fits.
    pub fn participants(&self, configurations: &[usize], blocks: u32) -> Vec<usize> {
        let open = configurations.iter().copied().filter(|&it| self.has_open_cases(it));
        let (null_engine, open): (Vec<usize>, Vec<usize>) =
            open.partition(|&it| self.plan.is_null_engine(it));
        let mut members = match self.time_budget.left().filter(|_| blocks > 0) {
            Some(left) => participants(&self.row_groups(&open), self.time_budget.missing_blocks(), left),
            None => open,
        };
        // The null engine takes part in each block that has a query of a row, and in no other.
        if members.iter().any(|&it| !self.open_cases(it, &[Kind::Query]).is_empty()) {
            members.extend(null_engine);
        }
        members
    }

    fn row_groups(&self, configurations: &[usize]) -> Vec<RowGroup> {
        let row_of = |configuration: usize| match self.plan.configurations[configuration].role {
            Some(Role::Twin { of } | Role::Baseline { of }) => of,
            Some(Role::Verifier | Role::NullEngine) | None => configuration,
        };
        let time_of = |it| self.block_times.get(&it).copied().unwrap_or_default();
        let mut groups = row_groups(configurations, row_of, time_of);
        let pairs = self.plan.pairs();
        let is_reference = |it: &usize| pairs.iter().any(|(_, reference)| reference == it);
        for group in &mut groups {
            group.is_reference = group.configurations.iter().any(is_reference);
        }
        groups
    }

    /// Warns once about each row that is left out of a block.
    pub fn warn_of_left_out(
        &mut self,
        journal: &mut Journal,
        configurations: &[usize],
        members: &[usize],
    ) -> Result<()> {
        for &configuration in configurations {
            let is_row = self.plan.configurations[configuration].role.is_none();
            let is_left_out = !members.contains(&configuration) && self.has_open_cases(configuration);
            if is_row && is_left_out && self.left_out.insert(configuration) {
                self.needed.is_short = true;
                journal.warn(Some(configuration), FEWER_BLOCKS.into())?;
            }
        }
        Ok(())
    }

    /// A budget in which every part of the run has its time; `None` if none had too little.
    pub fn needed_budget(&self) -> Option<String> {
        let known: Duration = self.block_times.values().map(|time| time.whole).sum();
        // In sequential order, the later configurations have no time yet.
        let mean = known.checked_div(self.block_times.len() as u32);
        let block = mean.map(|mean| mean * self.plan.measured().len() as u32);
        let needs_blocks = self.plan.has_blocks() && block.is_none();
        let times = RunTimes {
            before_blocks: self.time_budget.used_by_checks,
            blocks: block.unwrap_or_default() * self.time_budget.wanted_blocks,
            token_check: self.time_budget.token_check,
            ..RunTimes::default()
        };
        self.needed.budget(times, needs_blocks, self.plan.extent.budget().unwrap_or_else(|| self.ran()))
    }

    /// The configurations that a block launches, in order.
    pub fn order(&self, configurations: &[usize], block: u32) -> Vec<usize> {
        let mut order = self.plan.order_of(configurations, block);
        order.retain(|&configuration| self.has_open_cases(configuration));
        order
    }

    /// Closes the workloads that have enough blocks, or all of them if the time is over. `blocks` is the number of blocks so far.
    pub async fn close_finished_workloads(
        &mut self,
        journal: &mut Journal<'_>,
        configurations: &[usize],
        blocks: usize,
    ) -> Result<()> {
        let workloads = [self.open_workloads(&[Kind::Launch]), self.open_workloads(Kind::IN_ROUNDS)].concat();
        let analyses = self.analyses(journal.record(), &workloads, blocks).await?;
        let is_over = self.participants(configurations, blocks as u32).is_empty();
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
                self.needed.is_short |= by == StoppedBy::Time && blocks < MIN_VERDICT_BLOCKS;
                let blocks = blocks as u32;
                journal.take(Entry::Closed(Closed { workload, blocks, by, needs_budget: None }))?;
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
            None => format!("goes on until block {next}: an interval is wider than {target}"),
            Some(StoppedBy::Width) => format!("ends: every interval is within {target}"),
            Some(StoppedBy::LastAnalysis) => {
                format!("ends: the last interim analysis; an interval is wider than {target}")
            }
            Some(StoppedBy::Time) => "ends: the time is over".into(),
            Some(StoppedBy::Fixed) => "ends: the number of blocks is fixed".into(),
        };
        format!("{workload}: after {}: {why}", text::plural(blocks, "block"))
    }

    /// For each workload, the result of its interim analysis, where there is one. Analyses happen after the numbers of blocks in
    /// `INTERIM_ANALYSES`, in interleaved runs without a fixed number. They are slow on a large record, so a separate thread
    /// works on a copy.
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

    /// Sends the event of a new block, with the number of requests up to the fixed number of blocks, or else up to the next
    /// interim analysis.
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
        let warm_up =
            workload.warmup.or(self.needed_warm_ups.get(&case).copied()).unwrap_or(MIN_STEADY_REQUESTS);
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

    /// Ends a case: it gets no more requests. This records no failure.
    pub fn end_case(&mut self, case: usize) {
        self.failed.insert(case);
    }

    /// Continues a case after a failed request, unless it has this number of failures.
    pub fn reopen(&mut self, case: usize, record: &RunRecord, max_failures: usize) {
        if record.failures.iter().filter(|it| it.case == Some(case)).count() < max_failures {
            self.failed.remove(&case);
        }
    }

    /// Ends all cases of a configuration, for example of the twin of a failed one. This records no failure.
    pub fn end_cases_of(&mut self, configuration: usize) {
        self.failed.extend(self.plan.cases_of(configuration));
    }

    /// Records a failure for each case that the budget left no time for.
    pub fn record_unmeasured_cases(&mut self, journal: &mut Journal) -> Result<()> {
        if self.plan.extent.budget().is_none() {
            return Ok(());
        }
        let measured: BTreeSet<usize> = journal.record().measured().map(|it| it.case).collect();
        for case in 0..self.plan.cases.len() {
            if self.failed.contains(&case) || measured.contains(&case) || self.has_no_row_to_compare(case) {
                continue;
            }
            self.needed.is_short = true;
            let failure = Failure {
                configuration: self.plan.cases[case].configuration,
                case: Some(case),
                kind: FailureKind::NoTime,
                message: format!("no time: {}", self.plan.extent.too_short_for("this case")),
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
        let is_closed = self.closed.contains(self.label_of(case));
        !self.has_failed(case) && !is_closed && !self.has_no_row_to_compare(case)
    }

    /// Whether the case belongs to the null engine, and no row is measured in its workload.
    fn has_no_row_to_compare(&self, case: usize) -> bool {
        let is_of_null_engine = |case: usize| self.plan.is_null_engine(self.plan.cases[case].configuration);
        let is_row = |other: usize| {
            let is_same = self.label_of(other) == self.label_of(case);
            is_same && !is_of_null_engine(other) && !self.has_failed(other)
        };
        is_of_null_engine(case) && !(0..self.plan.cases.len()).any(is_row)
    }

    pub fn has_open_cases(&self, configuration: usize) -> bool {
        self.plan.cases_of(configuration).into_iter().any(|case| self.is_open(case))
    }

    pub fn open_cases(&self, configuration: usize, kinds: &[Kind]) -> Vec<usize> {
        let cases = self.plan.cases_of(configuration).into_iter();
        cases
            .filter(|&case| self.is_open(case) && kinds.contains(&self.plan.cases[case].workload.kind))
            .collect()
    }

    /// The labels of open workloads, in the plan's order.
    pub fn open_workloads(&self, kinds: &[Kind]) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for case in (0..self.plan.cases.len()).filter(|&case| self.is_open(case)) {
            let workload = &self.plan.cases[case].workload;
            if kinds.contains(&workload.kind) && !labels.contains(&workload.label) {
                labels.push(workload.label.clone());
            }
        }
        labels
    }

    pub fn label_of(&self, case: usize) -> &str {
        &self.plan.cases[case].workload.label
    }
}
