//! The time budget of one launch for an output check, its start included.

use std::time::{Duration, Instant};

/// The longest request of a check, if no budget is shorter.
const MOST_FOR_A_REQUEST: Duration = Duration::from_secs(60);
/// The shortest useful time for an answer.
const MIN_FOR_A_REQUEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct CheckTime {
    began: Instant,
    pub whole: Duration,
    /// The end of the run's budget. No request and no launch goes beyond it.
    budget_ends: Option<Instant>,
}

impl CheckTime {
    pub fn begins(whole: Duration, budget_ends: Option<Instant>) -> Self {
        Self { began: Instant::now(), whole, budget_ends }
    }

    pub fn left(&self) -> Duration {
        let left = self.whole.saturating_sub(self.began.elapsed());
        self.left_of_budget().map_or(left, |of_budget| left.min(of_budget))
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// The time limit of a request within the remaining time.
    pub fn for_remaining_time(&self) -> Duration {
        let left = self.left().max(MIN_FOR_A_REQUEST);
        whole_ms(self.left_of_budget().map_or(left, |of_budget| left.min(of_budget)))
    }

    /// The time limit of a request that is made even if little time remains. A budget may shorten it.
    pub fn for_a_request(&self) -> Duration {
        whole_ms(self.left_of_budget().map_or(MOST_FOR_A_REQUEST, |left| left.min(MOST_FOR_A_REQUEST)))
    }

    /// The time for an engine to end by itself.
    pub fn for_an_end(&self, usual: Duration) -> Duration {
        self.left_of_budget().map_or(usual, |left| left.min(usual))
    }

    /// The rest of the budget. `None` without one.
    pub fn left_of_budget(&self) -> Option<Duration> {
        self.budget_ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }

    /// Whether the budget is used up. A missing answer then says nothing about the engine.
    pub fn budget_is_over(&self) -> bool {
        self.left_of_budget().is_some_and(|left| left.is_zero())
    }
}

/// Records state the time of a request, so it is in whole milliseconds.
fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_budget_limits_every_request_and_every_launch() {
        let over = CheckTime::begins(HOUR, Some(Instant::now()));
        assert!(over.is_over() && over.budget_is_over());
        let none = Duration::ZERO;
        assert_eq!(
            [over.left(), over.for_remaining_time(), over.for_a_request(), over.for_an_end(HOUR)],
            [none; 4]
        );
        let short = CheckTime::begins(HOUR, Some(Instant::now() + Duration::from_secs(30)));
        assert!(short.left() <= Duration::from_secs(30) && short.for_a_request() <= Duration::from_secs(30));
        let long = CheckTime::begins(HOUR, Some(Instant::now() + HOUR));
        assert_eq!(long.for_a_request(), MOST_FOR_A_REQUEST);
    }

    #[test]
    fn without_a_budget_a_request_has_its_usual_time() {
        let over = CheckTime::begins(Duration::ZERO, None);
        assert!(over.is_over() && !over.budget_is_over());
        assert_eq!((over.for_a_request(), over.for_an_end(HOUR)), (MOST_FOR_A_REQUEST, HOUR));
        assert_eq!((over.for_remaining_time(), over.left_of_budget()), (MIN_FOR_A_REQUEST, None));
    }
}
