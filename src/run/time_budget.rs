//! The time budget of a run: how many blocks fit, and how many rounds in each.

use std::time::{Duration, Instant};

use crate::plan::{Order, Plan};
use stats::FIRM;

/// The default time without a budget. After the blocks that a verdict needs, a run goes on only this long. Blocks that would take
/// longer have fewer rounds.
const WITHOUT_BUDGET: Duration = Duration::from_secs(120);
/// The fewest rounds of a block: one value is no median.
const MIN_ROUNDS: u32 = 2;
/// The time for the output check of one configuration, enough for a slow engine.
const ONE_CHECK: Duration = Duration::from_secs(120);
/// The first output check takes at most one part in this many of the budget. The rest is for measuring.
const CHECKS_PART: u32 = 4;
/// One part in this many of the budget is kept for the check of the measured tokens after the last block.
const CHECK_PART: u32 = 10;
/// The longest warm-up of a case in a launch.
const WARM_UP: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct TimeBudget {
    started: Instant,
    budget: Option<Duration>,
    /// The budget of the whole run, and the part that the first output check has used.
    total: Option<Duration>,
    for_checks: Duration,
    /// The user chose the number of blocks.
    is_fixed: bool,
    /// The number of blocks that must fit into the budget.
    wanted: u32,
    blocks: u32,
    block_began: Instant,
    last_block: Duration,
    /// The time spent on rounds in this block or the last one. Only this part can be reduced.
    rounds: Duration,
}

impl TimeBudget {
    pub fn of(plan: &Plan) -> Self {
        Self::with(plan, Duration::ZERO)
    }

    /// The time budget of the next configuration, if configurations are measured one after the other.
    pub fn anew(&self, plan: &Plan) -> Self {
        Self::with(plan, self.for_checks)
    }

    fn with(plan: &Plan, for_checks: Duration) -> Self {
        // In sequential order each configuration has its share.
        let parts = match plan.order {
            Order::Interleaved => 1,
            Order::Sequential => plan.measured().len().max(1) as u32,
        };
        let (now, total) = (Instant::now(), plan.extent.budget_ns.map(Duration::from_nanos));
        let is_checked = plan.configurations.iter().any(|it| plan.verifier_of(&it.model).is_some());
        let checked = |total: Duration| if is_checked { total / CHECK_PART } else { Duration::ZERO };
        Self {
            started: now,
            budget: total.map(|total| total.saturating_sub(for_checks + checked(total)) / parts),
            total,
            for_checks,
            is_fixed: plan.extent.blocks.is_some(),
            wanted: plan.extent.blocks.unwrap_or(FIRM as u32),
            blocks: 0,
            block_began: now,
            last_block: Duration::ZERO,
            rounds: Duration::ZERO,
        }
    }

    /// The time limit for the output check of each of so many configurations.
    pub fn output_check(&self, configurations: usize) -> Duration {
        let share = self.total.map(|total| total / CHECKS_PART / configurations.max(1) as u32);
        share.map_or(ONE_CHECK, |share| share.min(ONE_CHECK))
    }

    /// Whether the first output check has used its part of the budget. Starting engines counts too.
    pub fn is_check_time_over(&self) -> bool {
        self.total.is_some_and(|total| self.started.elapsed() > total / CHECKS_PART)
    }

    /// Ends the first output check. Without a budget, its time is not taken from the measurements.
    pub fn measuring_begins(&mut self, plan: &Plan) {
        *self = Self::with(plan, self.started.elapsed());
    }

    pub fn block_begins(&mut self) {
        self.block_began = Instant::now();
        self.rounds = Duration::ZERO;
    }

    pub fn rounds_took(&mut self, time: Duration) {
        self.rounds += time;
    }

    pub fn block_ends(&mut self) {
        self.last_block = self.block_began.elapsed();
        self.blocks += 1;
    }

    /// Whether another block would exceed the time. Blocks that a verdict needs may have fewer rounds; a block beyond them must
    /// be complete.
    pub fn is_over(&self) -> bool {
        let after_another = self.started.elapsed() + self.last_block;
        match self.budget {
            Some(budget) if self.blocks < self.wanted => {
                self.started.elapsed() + self.last_block.saturating_sub(self.rounds) > budget
            }
            Some(budget) => after_another > budget,
            None => self.blocks >= self.wanted.max(FIRM as u32) && after_another > WITHOUT_BUDGET,
        }
    }

    /// Whether the budget is used up, so that nothing new may begin.
    pub fn is_spent(&self) -> bool {
        self.budget.is_some_and(|budget| self.started.elapsed() > budget)
    }

    /// The warm-up limit of a case, if so many warm-ups are still to come in this block.
    pub fn warm_up(&self, still_to_come: usize) -> Duration {
        // Half of the remaining time is for measuring.
        let share = self.budget.map(|budget| self.left_of_block(budget) / 2 / still_to_come.max(1) as u32);
        share.map_or(WARM_UP, |share| share.min(WARM_UP))
    }

    /// The number of planned rounds that fit, given the time of one round and the number of remaining workloads of this block.
    /// Time that a cheap workload does not use goes to the later ones.
    pub fn rounds(&self, planned: u32, round: Duration, workloads: usize) -> u32 {
        let (time, least) = match self.budget {
            Some(budget) => (budget, 1),
            None if self.is_fixed => return planned,
            None => (WITHOUT_BUDGET, MIN_ROUNDS.min(planned)),
        };
        let share = self.left_of_block(time) / workloads.max(1) as u32;
        let fitting = share.as_nanos() / round.as_nanos().max(1);
        u32::try_from(fitting).unwrap_or(u32::MAX).clamp(least.max(1), planned.max(1))
    }

    /// This block's share of a time, less the time that it has used. A twentieth is kept for delays.
    fn left_of_block(&self, time: Duration) -> Duration {
        let left = (time * 19 / 20).saturating_sub(self.block_began - self.started);
        let share = left / self.wanted.saturating_sub(self.blocks).max(1);
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

    fn earlier(budget: TimeBudget) -> TimeBudget {
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
        assert_eq!(budget(None).rounds(5, Duration::from_secs(1), 3), 5);
        assert_eq!(budget(None).rounds(5, Duration::from_secs(1000), 3), 2);
        assert_eq!(budget(None).rounds(1, Duration::from_secs(1000), 3), 1);
        assert_eq!(budget(None).warm_up(100), WARM_UP);
        // A user who sets the number of blocks accepts the time that they take.
        assert_eq!(budget(Some(5)).rounds(5, Duration::from_secs(1000), 3), 5);
    }

    #[test]
    fn a_budget_is_shared_by_five_blocks_and_their_workloads() {
        // Two seconds for each workload of a block, less a twentieth.
        let budget = unused(budget(Some(40), None));
        assert_eq!(budget.rounds(10, Duration::from_millis(470), 4), 4);
        assert_eq!(budget.rounds(10, Duration::from_millis(490), 4), 3);
        assert_eq!(budget.rounds(3, Duration::from_millis(10), 4), 3);
        assert_eq!(budget.rounds(10, Duration::from_secs(100), 4), 1);
        assert_eq!(budget.warm_up(4), Duration::from_millis(950));
    }

    /// Minutes in place of seconds, so that the time of the test itself does not matter.
    #[test]
    fn a_short_budget_has_five_blocks_with_fewer_rounds() {
        fn passes(budget: &mut TimeBudget, time: Duration) {
            (budget.started, budget.block_began) = (budget.started - time, budget.block_began - time);
        }
        let minutes = |count: u64| Duration::from_secs(60 * count);
        // Ten rounds of four minutes and one for launches: five such blocks take twice the budget.
        let (launches, round) = (minutes(1), minutes(4));
        let (mut budget, mut blocks) = (budget(Some(100 * 60), None), Vec::new());
        while !budget.is_over() {
            budget.block_begins();
            passes(&mut budget, launches);
            let rounds = budget.rounds(10, round, 1);
            passes(&mut budget, round * rounds);
            budget.rounds_took(round * rounds);
            budget.block_ends();
            blocks.push(rounds);
        }
        // The first blocks leave a little time to the last ones.
        assert_eq!(blocks, [4, 4, 4, 5, 5]);
    }

    #[test]
    fn a_run_without_a_budget_always_has_five_blocks() {
        let mut budget = TimeBudget { last_block: Duration::from_secs(1000), ..unused(budget(None, None)) };
        budget.blocks = 4;
        assert!(!budget.is_over());
        budget.blocks = 5;
        assert!(budget.is_over());
        budget.last_block = Duration::from_secs(1);
        assert!(!budget.is_over());
    }

    #[test]
    fn a_tenth_of_a_budget_is_reserved_for_the_token_check() {
        let verifying = |verifies| {
            let configurations = vec![Configuration { verifies, ..Configuration::default() }];
            TimeBudget::of(&Plan { configurations, ..plan(Some(100), None) }).budget.unwrap().as_secs()
        };
        assert_eq!([verifying(true), verifying(false)], [90, 100]);
    }

    #[test]
    fn nothing_starts_after_the_end_of_a_budget() {
        assert!(!unused(budget(Some(10), None)).is_spent() && !budget(None, None).is_spent());
        assert!(earlier(budget(Some(10), None)).is_spent());
    }

    #[test]
    fn output_checks_take_at_most_a_quarter_of_a_budget() {
        assert_eq!(budget(None, None).output_check(3), ONE_CHECK);
        assert_eq!(budget(Some(400), None).output_check(2), Duration::from_secs(50));
        assert!(!budget(None, None).is_check_time_over());
        assert!(!unused(budget(Some(400), None)).is_check_time_over());
        let mut for_checks = earlier(budget(Some(400), None));
        assert!(for_checks.is_check_time_over());
        for_checks.measuring_begins(&plan(Some(400), None));
        let left = for_checks.budget.unwrap();
        assert!(left <= Duration::from_secs(250) && left > Duration::from_secs(150), "{left:?}");
        assert!(for_checks.anew(&plan(Some(400), None)).budget.unwrap() == left);
        let mut free = earlier(budget(None, None));
        free.measuring_begins(&plan(None, None));
        assert!(free.started.elapsed() < Duration::from_secs(100) && !free.is_spent());
    }

    #[test]
    fn a_budget_ends_a_run_before_the_block_that_would_exceed_it() {
        let mut budget =
            TimeBudget { last_block: Duration::from_secs(11), ..unused(budget(Some(10), Some(3))) };
        assert!(budget.is_over());
        // The three requested blocks may have fewer rounds. A further block may not.
        budget.rounds = Duration::from_secs(9);
        assert!(!budget.is_over());
        budget.blocks = 3;
        assert!(budget.is_over());
        budget.last_block = Duration::from_secs(2);
        assert!(!budget.is_over());
    }
}
