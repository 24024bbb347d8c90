//! How the time of a run is spent: on how many blocks, on how many rounds in each.

use std::time::{Duration, Instant};

use crate::plan::{Order, Plan};
use stats::FIRM;

/// Without a budget a run goes on beyond the blocks that a verdict needs only so long, and those have fewer rounds where
/// they would take longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// But never fewer than these: one is no median.
const LEAST_ROUNDS: u32 = 2;
/// Of one configuration, in which it is asked for proof: as long as a slow one needs that is honest.
const PROOF: Duration = Duration::from_secs(120);
/// One part in so many of a budget is for proof: what is right and was not measured is no use either.
const PROOF_PART: u32 = 4;
/// One part in so many of a budget is left for the check of the measured tokens, which comes after the last block.
const CHECK_PART: u32 = 10;
/// The warm-up of a case in a launch.
const WARM_UP: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Pace {
    started: Instant,
    budget: Option<Duration>,
    /// That of the whole run, and what proof has taken of it.
    whole: Option<Duration>,
    proved: Duration,
    /// The user said how many blocks there are to be.
    asked: bool,
    /// So many blocks are to fit into the budget.
    wanted: u32,
    blocks: u32,
    block_began: Instant,
    last_block: Duration,
    /// What of this block, or of the last one, went into rounds: the part that can be made smaller.
    rounds: Duration,
}

impl Pace {
    pub fn of(plan: &Plan) -> Self {
        Self::with(plan, Duration::ZERO)
    }

    /// For the next configuration, where they are measured one after the other.
    pub fn anew(&self, plan: &Plan) -> Self {
        Self::with(plan, self.proved)
    }

    fn with(plan: &Plan, proved: Duration) -> Self {
        // One after the other, each has its share.
        let parts = match plan.order {
            Order::Interleaved => 1,
            Order::Sequential => plan.measured().len().max(1) as u32,
        };
        let (now, whole) = (Instant::now(), plan.extent.budget_ns.map(Duration::from_nanos));
        let is_checked = plan.configurations.iter().any(|it| plan.witness_of(&it.model).is_some());
        let checked = |whole: Duration| if is_checked { whole / CHECK_PART } else { Duration::ZERO };
        Self {
            started: now,
            budget: whole.map(|whole| whole.saturating_sub(proved + checked(whole)) / parts),
            whole,
            proved,
            asked: plan.extent.blocks.is_some(),
            wanted: plan.extent.blocks.unwrap_or(FIRM as u32),
            blocks: 0,
            block_began: now,
            last_block: Duration::ZERO,
            rounds: Duration::ZERO,
        }
    }

    /// How long one of so many configurations may be asked for proof.
    pub fn proof(&self, configurations: usize) -> Duration {
        let share = self.whole.map(|whole| whole / PROOF_PART / configurations.max(1) as u32);
        share.map_or(PROOF, |share| share.min(PROOF))
    }

    /// Whether proof has had its part of the budget: starting engines takes time too.
    pub fn has_proved_enough(&self) -> bool {
        self.whole.is_some_and(|whole| self.started.elapsed() > whole / PROOF_PART)
    }

    /// Ends the time of proof. Without a budget it takes nothing of the time that there is for measuring.
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

    /// Whether one more block would take more time than there is. Those that a verdict needs are made with as few rounds as
    /// it takes; one beyond them is a whole one.
    pub fn is_over(&self) -> bool {
        let after_another = self.started.elapsed() + self.last_block;
        match self.budget {
            Some(budget) if self.blocks < self.wanted => {
                self.started.elapsed() + self.last_block.saturating_sub(self.rounds) > budget
            }
            Some(budget) => after_another > budget,
            None => self.blocks >= self.wanted.max(FIRM as u32) && after_another > PATIENCE,
        }
    }

    /// Whether the budget is used up: nothing more is begun.
    pub fn is_spent(&self) -> bool {
        self.budget.is_some_and(|budget| self.started.elapsed() > budget)
    }

    /// How long a case may warm up, when so many warm-ups are still to come in this block.
    pub fn warm_up(&self, still_to_come: usize) -> Duration {
        // Half of what is left is for measuring.
        let share = self.budget.map(|budget| self.left_of_block(budget) / 2 / still_to_come.max(1) as u32);
        share.map_or(WARM_UP, |share| share.min(WARM_UP))
    }

    /// How many of the planned rounds fit, when a round costs so much and so many workloads are still to come in this
    /// block. What a cheap workload leaves falls to those after it.
    pub fn rounds(&self, planned: u32, round: Duration, workloads: usize) -> u32 {
        let (time, least) = match self.budget {
            Some(budget) => (budget, 1),
            None if self.asked => return planned,
            None => (PATIENCE, LEAST_ROUNDS.min(planned)),
        };
        let share = self.left_of_block(time) / workloads.max(1) as u32;
        let fitting = share.as_nanos() / round.as_nanos().max(1);
        u32::try_from(fitting).unwrap_or(u32::MAX).clamp(least.max(1), planned.max(1))
    }

    /// This block's share of a time, less what it has used. A twentieth is kept for what takes longer than expected.
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

    fn pace(budget_s: Option<u64>, blocks: Option<u32>) -> Pace {
        let extent = Extent {
            blocks,
            budget_ns: budget_s.map(|seconds| seconds * 1_000_000_000),
            ..Extent::default()
        };
        Pace::of(&Plan { extent, ..Plan::default() })
    }

    fn earlier(pace: Pace) -> Pace {
        Pace { started: pace.started - Duration::from_secs(150), ..pace }
    }

    /// Which has used nothing yet, however long a busy machine takes over the test: its beginning is still to come.
    fn unused(pace: Pace) -> Pace {
        let later = Instant::now() + Duration::from_secs(3600);
        Pace { started: later, block_began: later, ..pace }
    }

    #[test]
    fn without_a_budget_every_case_warms_up_as_long_as_it_needs_and_rounds_are_two_at_least() {
        let pace = |blocks| pace(None, blocks);
        assert_eq!(pace(None).rounds(5, Duration::from_secs(1), 3), 5);
        assert_eq!(pace(None).rounds(5, Duration::from_secs(1000), 3), 2);
        assert_eq!(pace(None).rounds(1, Duration::from_secs(1000), 3), 1);
        assert_eq!(pace(None).warm_up(100), WARM_UP);
        // Who says how many blocks says how long it may take.
        assert_eq!(pace(Some(5)).rounds(5, Duration::from_secs(1000), 3), 5);
    }

    #[test]
    fn a_budget_is_shared_by_five_blocks_and_their_workloads() {
        // Two seconds for each workload of a block, less a twentieth.
        let pace = unused(pace(Some(40), None));
        assert_eq!(pace.rounds(10, Duration::from_millis(470), 4), 4);
        assert_eq!(pace.rounds(10, Duration::from_millis(490), 4), 3);
        assert_eq!(pace.rounds(3, Duration::from_millis(10), 4), 3);
        assert_eq!(pace.rounds(10, Duration::from_secs(100), 4), 1);
        assert_eq!(pace.warm_up(4), Duration::from_millis(950));
    }

    /// In minutes what takes seconds, so that what the test itself takes is nothing.
    #[test]
    fn a_budget_that_is_short_of_rounds_has_room_for_the_five_blocks_of_a_verdict() {
        fn passes(pace: &mut Pace, time: Duration) {
            (pace.started, pace.block_began) = (pace.started - time, pace.block_began - time);
        }
        let minutes = |count: u64| Duration::from_secs(60 * count);
        // Ten rounds of four minutes and one for launches: five such blocks take twice the budget.
        let (launches, round) = (minutes(1), minutes(4));
        let (mut pace, mut blocks) = (pace(Some(100 * 60), None), Vec::new());
        while !pace.is_over() {
            pace.block_begins();
            passes(&mut pace, launches);
            let rounds = pace.rounds(10, round, 1);
            passes(&mut pace, round * rounds);
            pace.rounds_took(round * rounds);
            pace.block_ends();
            blocks.push(rounds);
        }
        // The first ones leave a little to the last.
        assert_eq!(blocks, [4, 4, 4, 5, 5]);
    }

    #[test]
    fn a_run_without_a_budget_has_its_five_blocks_however_long_they_take() {
        let mut pace = Pace { last_block: Duration::from_secs(1000), ..unused(pace(None, None)) };
        pace.blocks = 4;
        assert!(!pace.is_over());
        pace.blocks = 5;
        assert!(pace.is_over());
        pace.last_block = Duration::from_secs(1);
        assert!(!pace.is_over());
    }

    #[test]
    fn a_tenth_of_a_budget_is_left_for_the_check_of_the_measured_tokens_where_there_is_one() {
        let vouching = |vouches| {
            let extent = Extent { budget_ns: Some(100_000_000_000), ..Extent::default() };
            let configurations = vec![Configuration { vouches, ..Configuration::default() }];
            Pace::of(&Plan { configurations, extent, ..Plan::default() }).budget
        };
        assert_eq!([vouching(true), vouching(false)], [90, 100].map(|left| Some(Duration::from_secs(left))));
    }

    #[test]
    fn a_budget_that_is_used_up_begins_nothing_more() {
        assert!(!unused(pace(Some(10), None)).is_spent() && !pace(None, None).is_spent());
        assert!(earlier(pace(Some(10), None)).is_spent());
    }

    #[test]
    fn proof_has_a_quarter_of_a_budget_and_without_one_takes_nothing_from_the_blocks() {
        let plan = |budget_s: Option<u64>| {
            let budget_ns = budget_s.map(|seconds| seconds * 1_000_000_000);
            Plan { extent: Extent { budget_ns, ..Extent::default() }, ..Plan::default() }
        };
        assert_eq!(pace(None, None).proof(3), PROOF);
        assert_eq!(pace(Some(400), None).proof(2), Duration::from_secs(50));
        assert!(!pace(None, None).has_proved_enough() && !unused(pace(Some(400), None)).has_proved_enough());
        let mut proved = earlier(pace(Some(400), None));
        assert!(proved.has_proved_enough());
        proved.measuring_begins(&plan(Some(400)));
        let left = proved.budget.unwrap();
        assert!(left <= Duration::from_secs(250) && left > Duration::from_secs(150), "{left:?}");
        assert!(proved.anew(&plan(Some(400))).budget.unwrap() == left);
        let mut free = earlier(pace(None, None));
        free.measuring_begins(&plan(None));
        assert!(free.started.elapsed() < Duration::from_secs(100) && !free.is_spent());
    }

    #[test]
    fn a_budget_ends_a_run_before_the_block_that_would_exceed_it() {
        let mut pace = Pace { last_block: Duration::from_secs(11), ..unused(pace(Some(10), Some(3))) };
        assert!(pace.is_over());
        // One of the three that were asked for is made smaller, one beyond them is not.
        pace.rounds = Duration::from_secs(9);
        assert!(!pace.is_over());
        pace.blocks = 3;
        assert!(pace.is_over());
        pace.last_block = Duration::from_secs(2);
        assert!(!pace.is_over());
    }
}
