//! The time budget of a run. It limits the number of blocks, and the warm-up and the rounds in each block.
//!
//! A budget that the user set is a limit: nothing begins after its end. The default budget ends no run before the first block
//! is complete. In this block it only shortens the warm-up and reduces the rounds.

use std::time::{Duration, Instant};

use crate::plan::budget::{FIRST_CHECK_DIVISOR, TokenCheck};
use crate::plan::{Order, Plan};
use stats::MIN_VERDICT_BLOCKS;

/// The longest time limit of the output check of one configuration with the default budget.
const MAX_CHECK_TIME: Duration = Duration::from_secs(120);
/// The time limit of that check without a budget. On a large model, a slow engine needs minutes to score the held-out texts.
const UNBUDGETED_CHECK_TIME: Duration = Duration::from_secs(600);
/// The shortest limit of that check with the default budget: an engine is always checked, because unverified output is not
/// ranked.
const MIN_DEFAULT_CHECK_TIME: Duration = Duration::from_secs(20);
/// The longest warm-up of a case in a launch.
pub const MAX_WARM_UP_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct TimeBudget {
    /// The start of the run, and after the first output check the start of the measurements. In sequential order: the start of
    /// one configuration's measurements.
    started: Instant,
    /// The part of `total` for measuring all configurations, or for one of them if they are measured one after the other.
    budget: Option<Duration>,
    /// The budget of the whole run.
    total: Option<Duration>,
    /// The user set the budget.
    is_limit: bool,
    /// The time from the start of the run to the end of the first output check.
    pub used_by_checks: Duration,
    /// The expected time of the check of the measured tokens.
    pub token_check: TokenCheck,
    /// The number of blocks that must fit into the budget: those that the user requests, or else those that a verdict needs.
    pub wanted_blocks: u32,
    /// The number of blocks so far.
    blocks: u32,
    block_began: Instant,
}

impl TimeBudget {
    pub fn of(plan: &Plan) -> Self {
        Self::new(plan, Duration::ZERO, TokenCheck::of(plan, None))
    }

    /// The time budget of the next configuration, if configurations are measured one after the other.
    pub fn for_next_configuration(&self, plan: &Plan) -> Self {
        Self::new(plan, self.used_by_checks, self.token_check)
    }

    fn new(plan: &Plan, used_by_checks: Duration, token_check: TokenCheck) -> Self {
        // In sequential order, each configuration has an equal share.
        let parts = match plan.order {
            Order::Interleaved => 1,
            Order::Sequential => plan.measured().len().max(1) as u32,
        };
        let (now, total) = (Instant::now(), plan.extent.budget());
        let for_blocks = |total: Duration| {
            let left = total.saturating_sub(used_by_checks);
            left.saturating_sub(token_check.reserved(left))
        };
        Self {
            started: now,
            budget: total.map(|total| for_blocks(total) / parts),
            total,
            is_limit: plan.extent.set_budget().is_some(),
            used_by_checks,
            token_check,
            wanted_blocks: plan.extent.blocks.unwrap_or(MIN_VERDICT_BLOCKS as u32),
            blocks: 0,
            block_began: now,
        }
    }

    /// The time limit of the output check of a configuration: its weight in the time that is left for it and for later ones.
    pub fn output_check_limit(&self, weight: u32, weights_left: u32) -> Duration {
        let left =
            self.total.map(|total| (total / FIRST_CHECK_DIVISOR).saturating_sub(self.started.elapsed()));
        let share = left.map(|left| left / weights_left.max(weight).max(1));
        let share = match share {
            // A user who wants a longer check sets a longer budget.
            Some(share) if self.is_limit => share,
            Some(share) => share.clamp(MIN_DEFAULT_CHECK_TIME, MAX_CHECK_TIME),
            None => UNBUDGETED_CHECK_TIME,
        };
        share * weight
    }

    /// Whether the first output check has used its part of a budget that the user set. The whole time of the run so far counts.
    pub fn is_check_time_over(&self) -> bool {
        self.total.is_some_and(|total| self.is_limit && self.started.elapsed() > total / FIRST_CHECK_DIVISOR)
    }

    /// Ends the first output check and starts the time of the measurements.
    pub fn measuring_begins(&mut self, plan: &Plan, token_check: TokenCheck) {
        *self = Self::new(plan, self.started.elapsed(), token_check);
    }

    pub fn block_begins(&mut self) {
        self.block_began = Instant::now();
    }

    pub fn block_ends(&mut self) {
        self.blocks += 1;
    }

    /// The number of wanted blocks that are still to be measured.
    pub fn missing_blocks(&self) -> u32 {
        self.wanted_blocks.saturating_sub(self.blocks)
    }

    /// The time left for measuring. `None` without a budget.
    pub fn left(&self) -> Option<Duration> {
        self.budget.map(|budget| budget.saturating_sub(self.started.elapsed()))
    }

    /// The time after which a launch or a request is ended. `None` without a limit.
    pub fn ends(&self) -> Option<Instant> {
        self.budget.filter(|_| self.is_limit).map(|budget| self.started + budget)
    }

    /// Whether the budget is used up, so that nothing new may begin.
    pub fn is_spent(&self) -> bool {
        let can_end = self.is_limit || self.blocks > 0;
        can_end && self.budget.is_some_and(|budget| self.started.elapsed() > budget)
    }

    /// The time limit of one warm-up, given the number of cases that this block has not warmed up yet.
    pub fn warm_up_limit(&self, cases_left: usize) -> Duration {
        // Half of the remaining time is for measuring.
        let share = self.budget.map(|budget| self.left_of_block(budget) / 2 / cases_left.max(1) as u32);
        share.map_or(MAX_WARM_UP_TIME, |share| share.min(MAX_WARM_UP_TIME))
    }

    /// The number of planned rounds of a workload that fit, for each configuration by the time of its round. `cases_left` counts the
    /// cases that this block has not measured yet, including these. Later cases get the time that earlier ones do not use.
    ///
    /// Each configuration has an equal share of the time, and gets the part that faster ones do not use. So a slow
    /// configuration has fewer rounds, and does not take rounds from the others.
    pub fn rounds_that_fit(&self, planned: u32, round_times: &[Duration], cases_left: usize) -> Vec<u32> {
        let Some(budget) = self.budget else { return vec![planned; round_times.len()] };
        let cases = round_times.len();
        let mut left = self.left_of_block(budget) * cases as u32 / cases_left.max(cases).max(1) as u32;
        let mut rounds = vec![1; round_times.len()];
        for (position, &index) in ascending(round_times).iter().enumerate() {
            let share = left / (round_times.len() - position) as u32;
            let fitting = share.as_nanos() / round_times[index].as_nanos().max(1);
            rounds[index] = u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, planned.max(1));
            left = left.saturating_sub(round_times[index] * rounds[index]);
        }
        rounds
    }

    /// The rest of this block's share of `time`. A twentieth of `time` is reserved for delays.
    fn left_of_block(&self, time: Duration) -> Duration {
        let left = (time * 19 / 20).saturating_sub(self.block_began - self.started);
        let share = left / self.missing_blocks().max(1);
        share.saturating_sub(self.block_began.elapsed())
    }
}

/// The indices of these times, the shortest time first.
pub fn ascending(times: &[Duration]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..times.len()).collect();
    order.sort_by_key(|&index| times[index]);
    order
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

    /// The budget of a user who set none.
    fn default_budget(budget_s: u64) -> TimeBudget {
        TimeBudget { is_limit: false, ..budget(Some(budget_s), None) }
    }

    fn started_150_s_ago(budget: TimeBudget) -> TimeBudget {
        TimeBudget { started: budget.started - Duration::from_secs(150), ..budget }
    }

    /// A time budget that has used nothing yet. It begins in the future, so that a busy machine cannot change the test.
    fn unused(budget: TimeBudget) -> TimeBudget {
        let later = Instant::now() + Duration::from_secs(3600);
        TimeBudget { started: later, block_began: later, ..budget }
    }

    fn ms(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|&it| Duration::from_millis(it)).collect()
    }

    #[test]
    fn a_run_with_a_set_number_of_blocks_has_all_rounds_and_no_end() {
        let budget = budget(None, Some(5));
        assert_eq!(budget.rounds_that_fit(5, &ms(&[1_000_000, 1]), 3), [5, 5]);
        assert_eq!(budget.warm_up_limit(100), MAX_WARM_UP_TIME);
        assert_eq!((budget.left(), budget.ends(), budget.is_spent()), (None, None, false));
    }

    #[test]
    fn a_budget_is_shared_by_five_blocks_and_their_workloads() {
        // Two seconds for each workload of a block, minus a twentieth.
        let budget = unused(budget(Some(40), None));
        let rounds = |planned, time| budget.rounds_that_fit(planned, &ms(&[time]), 4);
        assert_eq!(
            [rounds(10, 470), rounds(10, 490), rounds(3, 10), rounds(10, 100_000)],
            [[4], [3], [3], [1]]
        );
        assert_eq!(budget.warm_up_limit(4), Duration::from_millis(950));
    }

    #[test]
    fn a_slow_configuration_has_fewer_rounds_and_takes_none_from_the_others() {
        // 1900 ms for one workload of a block.
        let budget = unused(budget(Some(10), None));
        assert_eq!(budget.rounds_that_fit(5, &ms(&[400, 10, 600]), 1), [2, 5, 1]);
        assert_eq!(budget.rounds_that_fit(5, &ms(&[100, 100, 100]), 1), [5, 5, 5]);
        assert_eq!(budget.rounds_that_fit(5, &ms(&[9000, 10]), 1), [1, 5]);
        assert_eq!(budget.rounds_that_fit(5, &[], 1), [0_u32; 0]);
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
        while budget.missing_blocks() > 0 {
            budget.block_begins();
            passes(&mut budget, launches);
            let rounds = budget.rounds_that_fit(10, &[round], 1)[0];
            passes(&mut budget, round * rounds);
            budget.block_ends();
            blocks.push(rounds);
        }
        // The first blocks leave a little time to the last ones.
        assert_eq!(blocks, [4, 4, 4, 5, 5]);
        assert!(!budget.is_spent());
    }

    #[test]
    fn the_time_of_the_token_check_is_reserved() {
        let plan = |verifies| {
            let configurations = vec![Configuration { verifies, ..Configuration::default() }];
            Plan { configurations, ..plan(Some(100), None) }
        };
        let budget_s = |verifies, seconds: Option<u64>| {
            let plan = plan(verifies);
            let mut budget = TimeBudget::of(&plan);
            budget.started += Duration::from_secs(3600);
            budget.measuring_begins(&plan, TokenCheck::of(&plan, seconds.map(Duration::from_secs)));
            budget.budget.unwrap().as_secs()
        };
        assert_eq!([budget_s(true, Some(1)), budget_s(true, Some(20)), budget_s(false, None)], [90, 75, 100]);
        assert_eq!(budget_s(true, Some(3600)), 50, "half of the time remains for blocks");
    }

    #[test]
    fn nothing_starts_after_the_end_of_a_budget_that_the_user_set() {
        assert!(!unused(budget(Some(10), None)).is_spent());
        let spent = started_150_s_ago(budget(Some(10), None));
        assert!(spent.is_spent() && spent.ends().is_some_and(|end| end < Instant::now()));
    }

    #[test]
    fn the_default_budget_ends_no_run_before_its_first_block_is_complete() {
        let mut late = started_150_s_ago(default_budget(10));
        assert!(!late.is_spent() && late.ends().is_none());
        assert_eq!((late.left(), late.rounds_that_fit(5, &ms(&[1]), 1)), (Some(Duration::ZERO), vec![1]));
        late.block_ends();
        assert!(late.is_spent());
    }

    #[test]
    fn output_checks_take_at_most_half_of_a_budget_that_the_user_set() {
        let limit_s = |budget: &TimeBudget, weight, left| budget.output_check_limit(weight, left).as_secs();
        let unlimited = budget(None, None);
        assert_eq!([limit_s(&unlimited, 1, 3), limit_s(&unlimited, 2, 3)], [600, 1200]);
        let of_400 = unused(budget(Some(400), None));
        assert_eq!([limit_s(&of_400, 1, 2), limit_s(&of_400, 2, 4), limit_s(&of_400, 1, 1)], [100, 100, 200]);
        assert!(!unlimited.is_check_time_over() && !of_400.is_check_time_over());
        let mut checking = started_150_s_ago(budget(Some(200), None));
        assert!(checking.is_check_time_over() && limit_s(&checking, 1, 1) == 0);
        let plan = plan(Some(200), None);
        checking.measuring_begins(&plan, TokenCheck::Off);
        let left = checking.budget.unwrap();
        assert!(left <= Duration::from_secs(50) && left > Duration::from_secs(20), "{left:?}");
        assert!(checking.for_next_configuration(&plan).budget.unwrap() == left);
    }

    #[test]
    fn with_the_default_budget_every_engine_has_time_for_its_output_check() {
        let of_180 = unused(default_budget(180));
        assert_eq!(of_180.output_check_limit(1, 6), MIN_DEFAULT_CHECK_TIME);
        assert_eq!(of_180.output_check_limit(2, 6), MIN_DEFAULT_CHECK_TIME * 2);
        assert_eq!(of_180.output_check_limit(1, 1), Duration::from_secs(90));
        let late = started_150_s_ago(default_budget(180));
        assert_eq!(late.output_check_limit(1, 1), MIN_DEFAULT_CHECK_TIME);
        assert!(!late.is_check_time_over());
    }
}
