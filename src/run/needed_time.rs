//! The time that the parts of a run need. If one of them had too little, the run proposes one budget for all parts at its end.

use std::time::Duration;

use crate::plan::budget::{RunTimes, TokenCheck, budget_text, time_for_shares};

/// If a budget was too short by an unknown time, the run proposes at least this multiple of it.
const LONGER: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct NeededTime {
    /// A part had too little time.
    pub is_short: bool,
    /// A part had too little time, and the time that it needs is unknown.
    pub is_unknown: bool,
    /// The first output checks, in order: their weights and the times that they needed.
    first_checks: Vec<(u32, Duration)>,
    /// The time that they needed and did not get.
    missing: Duration,
    /// The time for the check of the measured tokens. `None` before the check.
    pub token_check: Option<Duration>,
}

impl NeededTime {
    /// Adds a part that had too little time. `None`: its time is unknown.
    pub fn add_short(&mut self, is_known: bool) {
        self.is_short = true;
        self.is_unknown |= !is_known;
    }

    /// Adds the output check of a configuration. `more`: the time that it would have needed in addition.
    pub fn add_first_check(&mut self, weight: u32, took: Duration, more: Duration) {
        self.first_checks.push((weight, took + more));
        self.missing += more;
    }

    /// A budget for all parts, as `--budget` takes it. `times` has the other times of the run. `budget`: that of the run, or else the
    /// time that it took. `None` if no part had too little time.
    pub fn budget(&self, times: RunTimes, needs_blocks: bool, budget: Duration) -> Option<String> {
        let times = RunTimes {
            before_blocks: times.before_blocks + self.missing,
            first_checks: time_for_shares(&self.first_checks),
            token_check: self.token_check.map_or(times.token_check, TokenCheck::Takes),
            ..times
        };
        let known = times.sufficient_budget();
        let is_unknown = self.is_unknown || needs_blocks;
        let sufficient = if is_unknown { known.max(budget * LONGER) } else { known };
        self.is_short.then(|| budget_text(sufficient))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_run_proposes_a_budget_for_all_of_its_parts_if_one_was_short() {
        let times = RunTimes { before_blocks: s(10), blocks: s(16), ..RunTimes::default() };
        let mut needed = NeededTime::default();
        assert_eq!(needed.budget(times, false, s(20)), None);
        needed.is_short = true;
        assert_eq!(needed.budget(times, false, s(20)).as_deref(), Some("30s"));
        // The time that an output check did not get is added, and the check of tokens has its own.
        needed.add_first_check(1, s(10), s(6));
        assert_eq!(needed.budget(times, false, s(20)).as_deref(), Some("40s"));
        needed.token_check = Some(s(16));
        assert_eq!(needed.budget(times, false, s(20)).as_deref(), Some("56s"));
        // Without a complete block, or after an answer that did not come, only a multiple of the budget is known.
        assert_eq!(needed.budget(times, true, s(20)).as_deref(), Some("80s"));
        needed.add_short(false);
        assert_eq!(needed.budget(times, false, s(20)).as_deref(), Some("80s"));
    }
}
