//! What is still to be measured, and when a workload has blocks enough.

use anyhow::Result;

use super::Run;
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Order};
use crate::record::{Closed, Entry};
use crate::run::event::Event;
use stats::{FIRM, LOOKS, Look, Rule, StoppedBy};

impl Run<'_> {
    /// Ends the measuring of workloads that have blocks enough.
    pub(super) fn close_what_has_enough(&mut self, blocks: usize) -> Result<()> {
        for workload in [self.open_workloads(Kind::Launch), self.open_workloads(Kind::Warm)].concat() {
            let in_time = (!self.pace.is_over()).then_some(());
            let enough = match (self.plan.extent.blocks, self.plan.order) {
                (Some(asked), _) => (blocks >= asked as usize).then_some(StoppedBy::Asked),
                (None, Order::Sequential) => (blocks >= FIRM).then_some(StoppedBy::Asked),
                (None, Order::Interleaved) => self.look(&workload, blocks),
            };
            // A block that the budget cut short is no look.
            let enough = enough.filter(|by| *by == StoppedBy::Asked || !self.pace.is_spent());
            if let Some(by) = enough.or_else(|| in_time.is_none().then_some(StoppedBy::Time)) {
                self.closed.insert(workload.clone());
                self.recorder.take(Entry::Closed(Closed { workload, blocks: blocks as u32, by }))?;
            }
        }
        Ok(())
    }

    /// Only after the blocks of `LOOKS` is anything looked at.
    fn look(&self, workload: &str, blocks: usize) -> Option<StoppedBy> {
        let rule = Rule::to_within(self.plan.extent.target).unwrap_or_default();
        let look = || crate::analysis::compare::look(&self.recorder.record, workload, blocks, rule);
        match LOOKS.contains(&blocks).then(look)? {
            Look::Stop(by) => Some(by),
            Look::GoOn { .. } => None,
        }
    }

    /// Tells the displays where the run stands. Requests are counted up to the next look.
    pub(super) fn announce(&mut self, block: u32, configurations: &[usize]) {
        let next = LOOKS.into_iter().find(|&look| look > block as usize).unwrap_or(block as usize + 1) as u32;
        let until = self.plan.extent.blocks.unwrap_or(next);
        let cases =
            configurations.iter().flat_map(|&it| self.plan.cases_of(it)).filter(|&it| self.is_open(it));
        let in_a_block: u64 = cases.map(|case| self.requests_of(case, configurations.len() > 1)).sum();
        let to_come = in_a_block * u64::from(until.saturating_sub(block));
        let requests = self.recorder.record.samples.len() as u64 + to_come;
        (self.listener)(Event::BlockStarted { block, until, requests });
    }

    fn requests_of(&self, case: usize, interleaved: bool) -> u64 {
        let workload = &self.plan.cases[case].workload;
        if self.plan.mode == Mode::OneShot || workload.kind == Kind::Launch {
            return u64::from(workload.rounds);
        }
        let warm_up = workload.warmup.or(self.warm_after.get(&case).copied()).unwrap_or(9);
        u64::from(warm_up) + u64::from(workload.rounds) * if interleaved { 2 } else { 1 }
    }

    pub(super) fn is_open(&self, case: usize) -> bool {
        !self.failed.contains(&case) && !self.closed.contains(self.label_of(case))
    }

    pub(super) fn has_open_cases(&self, configuration: usize) -> bool {
        self.plan.cases_of(configuration).into_iter().any(|case| self.is_open(case))
    }

    /// Those of a configuration.
    pub(super) fn open_cases(&self, configuration: usize, kind: Kind) -> Vec<usize> {
        let cases = self.plan.cases_of(configuration).into_iter();
        cases.filter(|&case| self.is_open(case) && self.plan.cases[case].workload.kind == kind).collect()
    }

    /// Labels in the plan's order.
    pub(super) fn open_workloads(&self, kind: Kind) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for case in (0..self.plan.cases.len()).filter(|&case| self.is_open(case)) {
            let workload = &self.plan.cases[case].workload;
            if workload.kind == kind && !labels.contains(&workload.label) {
                labels.push(workload.label.clone());
            }
        }
        labels
    }

    pub(super) fn label_of(&self, case: usize) -> &str {
        &self.plan.cases[case].workload.label
    }
}
