//! The time budget of a run. It limits the number of blocks and the number of rounds in each block.

use std::time::{Duration, Instant};

use crate::plan::{Order, Plan};
use stats::MIN_VERDICT_BLOCKS;

/// The time of a run without a budget. Blocks have fewer rounds to fit into it, but a run always has the blocks that a verdict
/// needs.
const DEFAULT_TIME: Duration = Duration::from_secs(120);
/// The fewest rounds of a block in a run without a budget, because a median needs several values.
const MIN_ROUNDS: u32 = 2;
/// The time limit of the output check of one configuration. It is enough for a slow engine.
const MAX_CHECK_TIME: Duration = Duration::from_secs(120);
/// The output check before the blocks takes at most the budget divided by this. The rest is for measuring.
const FIRST_CHECK_DIVISOR: u32 = 4;
/// The budget divided by this is reserved for the check of the measured tokens after the last block.
const TOKEN_CHECK_DIVISOR: u32 = 10;
/// The longest warm-up of a case in a launch.
const MAX_WARM_UP_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct TimeBudget {
    /// The start of the first output check, and after it the start of the measurements.
    started: Instant,
    /// The part of `total` for measuring all configurations, or for one of them if they are measured one after the other.
    budget: Option<Duration>,
    /// The budget of the whole run.
    total: Option<Duration>,
    /// The time that the first output check has used.
    used_by_checks: Duration,
    /// The user chose the number of blocks.
    is_fixed: bool,
    /// The number of blocks that must fit into the budget.
    wanted_blocks: u32,
    /// The number of blocks so far.
    blocks: u32,
    block_began: Instant,
    last_block_time: Duration,
    /// The time of the rounds in the current or last block. Fewer rounds can reduce only this part of a block.
    rounds_time: Duration,
}

impl TimeBudget {
    pub fn of(plan: &Plan) -> Self {
        Self::new(plan, Duration::ZERO)
    }

    /// The time budget of the next configuration, if configurations are measured one after the other.
    pub fn for_next_configuration(&self, plan: &Plan) -> Self {
        Self::new(plan, self.used_by_checks)
    }

    fn new(plan: &Plan, used_by_checks: Duration) -> Self {
        // In sequential order, each configuration has an equal share.
        let parts = match plan.order {
            Order::Interleaved => 1,
            Order::Sequential => plan.measured().len().max(1) as u32,
        };
        let (now, total) = (Instant::now(), plan.extent.budget_ns.map(Duration::from_nanos));
        let is_checked = plan.configurations.iter().any(|it| plan.verifier_of(&it.model).is_some());
        let for_token_check =
            |total: Duration| if is_checked { total / TOKEN_CHECK_DIVISOR } else { Duration::ZERO };
        Self {
            started: now,
            budget: total.map(|total| total.saturating_sub(used_by_checks + for_token_check(total)) / parts),
            total,
            used_by_checks,
            is_fixed: plan.extent.blocks.is_some(),
            wanted_blocks: plan.extent.blocks.unwrap_or(MIN_VERDICT_BLOCKS as u32),
            blocks: 0,
            block_began: now,
            last_block_time: Duration::ZERO,
            rounds_time: Duration::ZERO,
        }
    }

    /// The time limit of the output check of each configuration.
    pub fn output_check_limit(&self, configurations: usize) -> Duration {
        let share = self.total.map(|total| total / FIRST_CHECK_DIVISOR / configurations.max(1) as u32);
        share.map_or(MAX_CHECK_TIME, |share| share.min(MAX_CHECK_TIME))
    }

    /// Whether the first output check has used its part of the budget. Starting engines counts too.
    pub fn is_check_time_over(&self) -> bool {
        self.total.is_some_and(|total| self.started.elapsed() > total / FIRST_CHECK_DIVISOR)
    }

    /// Ends the first output check and starts the time of the measurements.
    pub fn measuring_begins(&mut self, plan: &Plan) {
        *self = Self::new(plan, self.started.elapsed());
    }

    pub fn block_begins(&mut self) {
        self.block_began = Instant::now();
        self.rounds_time = Duration::ZERO;
    }

    pub fn add_rounds_time(&mut self, time: Duration) {
        self.rounds_time += time;
    }

    pub fn block_ends(&mut self) {
        self.last_block_time = self.block_began.elapsed();
        self.blocks += 1;
    }

    /// Whether another block would exceed the time. Blocks up to `wanted_blocks` may have fewer rounds. A further block must be
    /// complete.
    pub fn is_over(&self) -> bool {
        let after_another = self.started.elapsed() + self.last_block_time;
        match self.budget {
            Some(budget) if self.blocks < self.wanted_blocks => {
                self.started.elapsed() + self.last_block_time.saturating_sub(self.rounds_time) > budget
            }
            Some(budget) => after_another > budget,
            None => {
                self.blocks >= self.wanted_blocks.max(MIN_VERDICT_BLOCKS as u32)
                    && after_another > DEFAULT_TIME
            }
        }
    }

    /// Whether the budget is used up, so that nothing new may begin.
    pub fn is_spent(&self) -> bool {
        self.budget.is_some_and(|budget| self.started.elapsed() > budget)
    }

    /// The time limit of one warm-up, given the number of warm-ups that remain in this block.
    pub fn warm_up_limit(&self, remaining: usize) -> Duration {
        // Half of the remaining time is for measuring.
        let share = self.budget.map(|budget| self.left_of_block(budget) / 2 / remaining.max(1) as u32);
        share.map_or(MAX_WARM_UP_TIME, |share| share.min(MAX_WARM_UP_TIME))
    }

    /// The number of planned rounds that fit, given the time of one round and the number of remaining workloads of this block.
    /// Later workloads get the time that an earlier workload does not use.
    pub fn rounds_that_fit(&self, planned: u32, round: Duration, workloads: usize) -> u32 {
        let (time, min_rounds) = match self.budget {
            Some(budget) => (budget, 1),
            None if self.is_fixed => return planned,
            None => (DEFAULT_TIME, MIN_ROUNDS.min(planned)),
        };
        let share = self.left_of_block(time) / workloads.max(1) as u32;
        let fitting = share.as_nanos() / round.as_nanos().max(1);
        u32::try_from(fitting).unwrap_or(u32::MAX).clamp(min_rounds.max(1), planned.max(1))
    }

    /// The rest of this block's share of `time`. A twentieth of `time` is reserved for delays.
    fn left_of_block(&self, time: Duration) -> Duration {
        let left = (time * 19 / 20).saturating_sub(self.block_began - self.started);
        let share = left / self.wanted_blocks.saturating_sub(self.blocks).max(1);
        share.saturating_sub(self.block_began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Configuration, Extent};

    fn plan(budget_s: Option<u64>, blocks: Option<u32>) -> Plan {
        let budget_ns = budget_s.map(|seconds| seconds * 1_000_000_000);
        Plan { extent: Extent { blocks, budget_ns, ..Extent::default() }, ..Plan::default() }
    }

    fn budget(budget_s: Option<u64>, blocks: Option<u32>) -> TimeBudget {
        TimeBudget::of(&plan(budget_s, blocks))
    }

    fn started_150_s_ago(budget: TimeBudget) -> TimeBudget {
        TimeBudget { started: budget.started - Duration::from_secs(150), ..budget }
    }

    /// A time budget that has used nothing yet. It begins in the future, so that a busy machine cannot change the test.
    fn unused(budget: TimeBudget) -> TimeBudget {
        let later = Instant::now() + Duration::from_secs(3600);
        TimeBudget { started: later, block_began: later, ..budget }
    }

    #[test]
    fn without_a_budget_a_block_has_at_least_two_rounds() {
        let budget = |blocks| budget(None, blocks);
        assert_eq!(budget(None).rounds_that_fit(5, Duration::from_secs(1), 3), 5);
        assert_eq!(budget(None).rounds_that_fit(5, Duration::from_secs(1000), 3), 2);
        assert_eq!(budget(None).rounds_that_fit(1, Duration::from_secs(1000), 3), 1);
        assert_eq!(budget(None).warm_up_limit(100), MAX_WARM_UP_TIME);
        // A user who sets the number of blocks accepts the time that they take.
        assert_eq!(budget(Some(5)).rounds_that_fit(5, Duration::from_secs(1000), 3), 5);
    }

    #[test]
    fn a_budget_is_shared_by_five_blocks_and_their_workloads() {
        // Two seconds for each workload of a block, minus a twentieth.
        let budget = unused(budget(Some(40), None));
        assert_eq!(budget.rounds_that_fit(10, Duration::from_millis(470), 4), 4);
        assert_eq!(budget.rounds_that_fit(10, Duration::from_millis(490), 4), 3);
        assert_eq!(budget.rounds_that_fit(3, Duration::from_millis(10), 4), 3);
        assert_eq!(budget.rounds_that_fit(10, Duration::from_secs(100), 4), 1);
        assert_eq!(budget.warm_up_limit(4), Duration::from_millis(950));
    }

    /// The budget is in minutes, so that the time of the test itself does not matter.
    #[test]
    fn a_short_budget_has_five_blocks_with_fewer_rounds() {
        fn passes(budget: &mut TimeBudget, time: Duration) {
            (budget.started, budget.block_began) = (budget.started - time, budget.block_began - time);
        }
        let minutes = |count: u64| Duration::from_secs(60 * count);
        // Five blocks of one minute for launches and ten rounds of four minutes would take twice the budget.
        let (launches, round) = (minutes(1), minutes(4));
        let (mut budget, mut blocks) = (budget(Some(100 * 60), None), Vec::new());
        while !budget.is_over() {
            budget.block_begins();
            passes(&mut budget, launches);
            let rounds = budget.rounds_that_fit(10, round, 1);
            passes(&mut budget, round * rounds);
            budget.add_rounds_time(round * rounds);
            budget.block_ends();
            blocks.push(rounds);
        }
        // The first blocks leave a little time to the last ones.
        assert_eq!(blocks, [4, 4, 4, 5, 5]);
    }

    #[test]
    fn a_run_without_a_budget_always_has_five_blocks() {
        let mut budget =
            TimeBudget { last_block_time: Duration::from_secs(1000), ..unused(budget(None, None)) };
        budget.blocks = 4;
        assert!(!budget.is_over());
        budget.blocks = 5;
        assert!(budget.is_over());
        budget.last_block_time = Duration::from_secs(1);
        assert!(!budget.is_over());
    }

    #[test]
    fn a_tenth_of_a_budget_is_reserved_for_the_token_check() {
        let budget_s = |verifies| {
            let configurations = vec![Configuration { verifies, ..Configuration::default() }];
            TimeBudget::of(&Plan { configurations, ..plan(Some(100), None) }).budget.unwrap().as_secs()
        };
        assert_eq!([budget_s(true), budget_s(false)], [90, 100]);
    }

    #[test]
    fn nothing_starts_after_the_end_of_a_budget() {
        assert!(!unused(budget(Some(10), None)).is_spent() && !budget(None, None).is_spent());
        assert!(started_150_s_ago(budget(Some(10), None)).is_spent());
    }

    #[test]
    fn output_checks_take_at_most_a_quarter_of_a_budget() {
        assert_eq!(budget(None, None).output_check_limit(3), MAX_CHECK_TIME);
        assert_eq!(budget(Some(400), None).output_check_limit(2), Duration::from_secs(50));
        assert!(!budget(None, None).is_check_time_over());
        assert!(!unused(budget(Some(400), None)).is_check_time_over());
        let mut checking = started_150_s_ago(budget(Some(400), None));
        assert!(checking.is_check_time_over());
        checking.measuring_begins(&plan(Some(400), None));
        let left = checking.budget.unwrap();
        assert!(left <= Duration::from_secs(250) && left > Duration::from_secs(150), "{left:?}");
        assert!(checking.for_next_configuration(&plan(Some(400), None)).budget.unwrap() == left);
        let mut unlimited = started_150_s_ago(budget(None, None));
        unlimited.measuring_begins(&plan(None, None));
        assert!(unlimited.started.elapsed() < Duration::from_secs(100) && !unlimited.is_spent());
    }

    #[test]
    fn a_budget_ends_a_run_before_the_block_that_would_exceed_it() {
        let mut budget =
            TimeBudget { last_block_time: Duration::from_secs(11), ..unused(budget(Some(10), Some(3))) };
        assert!(budget.is_over());
        // The three requested blocks may have fewer rounds. A further block may not.
        budget.rounds_time = Duration::from_secs(9);
        assert!(!budget.is_over());
        budget.blocks = 3;
        assert!(budget.is_over());
        budget.last_block_time = Duration::from_secs(2);
        assert!(!budget.is_over());
    }
}
