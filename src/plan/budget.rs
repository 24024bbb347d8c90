//! The budget of a run: how it is divided among the parts of the run, the estimate of a sufficient budget, and their texts. A run,
//! its report, `--dry-run` and the warning before a run share this estimate. They differ only in how they know the times.

use std::time::Duration;

use stats::MIN_VERDICT_BLOCKS;

use super::{Extent, Plan};
use crate::shell::duration_as_given;
use crate::text::{estimated_time, plural};

/// The output checks before the first block have at most the budget divided by this, if the user set the budget. With a quarter, a
/// proposed budget was up to four times the time of the run.
pub const FIRST_CHECK_DIVISOR: u32 = 2;
/// The check of the measured tokens has at least the time after the first output checks, divided by this.
pub const TOKEN_CHECK_DIVISOR: u32 = 10;
/// The check of the measured tokens has at most that time divided by this, so that half of it remains for blocks.
const MAX_TOKEN_CHECK_DIVISOR: u32 = 2;
/// The time of the check of the measured tokens, if the times of the verifier are unknown. A verifier in Python takes this long to
/// start on two busy cores.
const UNKNOWN_TOKEN_CHECK: Duration = Duration::from_secs(10);
/// Blocks differ, so a sufficient budget is larger than the expected time by this factor. With 1.1, a proposed budget was too
/// short by an eighth on a busy machine.
const RESERVE: f64 = 1.25;

/// The times of the parts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// The part before the first block: mostly the first output checks.
    pub before_blocks: Duration,
    /// The time for the first output checks in which each configuration's share is long enough.
    pub first_checks: Duration,
    pub blocks: Duration,
    pub token_check: TokenCheck,
}

/// The time of the check of the measured tokens after the last block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenCheck {
    /// No verifier checks tokens.
    #[default]
    Off,
    /// The times of the verifier are unknown.
    Unknown,
    Takes(Duration),
}

impl TokenCheck {
    /// The check of a plan that takes this time.
    pub fn of(plan: &Plan, time: Option<Duration>) -> Self {
        let is_checked = plan.configurations.iter().any(|it| plan.verifier_of(&it.model).is_some());
        if is_checked { time.map_or(Self::Unknown, Self::Takes) } else { Self::Off }
    }

    /// The time of the check, unless it is unknown.
    pub fn known(self) -> Option<Duration> {
        match self {
            Self::Off => Some(Duration::ZERO),
            Self::Unknown => None,
            Self::Takes(time) => Some(time),
        }
    }

    /// The time that the check needs, with a reserve.
    pub fn needed(self) -> Duration {
        self.known().unwrap_or(UNKNOWN_TOKEN_CHECK).mul_f64(RESERVE)
    }

    /// The part that a run reserves for the check, of the time that is left after the first output checks.
    pub fn reserved(self, left: Duration) -> Duration {
        if self == Self::Off {
            return Duration::ZERO;
        }
        (left / TOKEN_CHECK_DIVISOR).max(self.needed().min(left / MAX_TOKEN_CHECK_DIVISOR))
    }
}

impl RunTimes {
    /// A budget in which every part has its time.
    pub fn sufficient_budget(self) -> Duration {
        let (blocks, token_check) = (self.blocks.mul_f64(RESERVE), self.token_check.needed());
        let least_reserved = match self.token_check {
            TokenCheck::Off => Duration::ZERO,
            TokenCheck::Unknown | TokenCheck::Takes(_) => blocks / (TOKEN_CHECK_DIVISOR - 1),
        };
        let after_checks =
            (blocks + token_check.max(least_reserved)).max(token_check * MAX_TOKEN_CHECK_DIVISOR);
        (self.before_blocks + after_checks).max(self.first_checks.mul_f64(RESERVE) * FIRST_CHECK_DIVISOR)
    }
}

/// The time for all first output checks in which the share of each is long enough. Each configuration has its weight in the time that
/// is left, and so the part that earlier ones did not use. `checks`: the weight and the time of each check, in order.
pub fn time_for_shares(checks: &[(u32, Duration)]) -> Duration {
    let mut weights: u32 = checks.iter().map(|(weight, _)| weight).sum();
    let (mut before, mut needed) = (Duration::ZERO, Duration::ZERO);
    for &(weight, time) in checks {
        needed = needed.max(before + time * weights / weight.max(1));
        before += time;
        weights -= weight;
    }
    needed
}

/// The budget that is probably enough for `wanted` blocks, after a run whose budget was enough for `measured` blocks.
pub fn for_blocks(budget_ns: u64, measured: usize, wanted: usize) -> String {
    let of_block = Duration::from_nanos(budget_ns) / measured.max(1) as u32;
    // The budget of the run had its part for output checks.
    let times = RunTimes { blocks: of_block * wanted as u32, ..RunTimes::default() };
    budget_text(times.sufficient_budget())
}

/// A sufficient budget as `--budget` takes it: `90s`, `5m`. It is rounded up, to a second, to ten seconds or to a minute.
pub fn budget_text(budget: Duration) -> String {
    let seconds = budget.as_secs_f64();
    match seconds {
        ..=60.0 => format!("{}s", seconds.ceil()),
        ..=120.0 => format!("{}s", 10.0 * (seconds / 10.0).ceil()),
        _ => format!("{}m", (seconds / 60.0).ceil()),
    }
}

/// Every text about a budget that is too short: `--budget 10s is too short for the output checks`.
pub fn too_short_for(subject: &str, budget: Duration, is_default: bool) -> String {
    match is_default {
        true => format!("the default time budget of {} is too short for {subject}", estimated_time(budget)),
        false => format!("--budget {} is too short for {subject}", duration_as_given(budget)),
    }
}

impl Extent {
    /// `too_short_for` about the budget of a run, which has one.
    pub fn too_short_for(&self, subject: &str) -> String {
        too_short_for(subject, self.budget().unwrap_or_default(), self.has_default_budget)
    }
}

/// The subject of `too_short_for`, if fewer blocks fit than the run wants. `fitting`: those that fit.
pub fn blocks_that_do_not_fit(wanted: usize, fitting: &str) -> String {
    let of_verdict = if wanted == MIN_VERDICT_BLOCKS { " of a verdict" } else { "" };
    let article = if of_verdict.is_empty() { "" } else { "the " };
    format!("{article}{}{of_verdict} ({fitting})", plural(wanted, "block"))
}

/// The reason why a proposed budget is longer than the sum of the expected times.
pub const PROPOSAL: &str =
    "the proposed budget has a reserve, and each check gets at most half of the time that is left";

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_sufficient_budget_gives_every_part_its_time() {
        let times = |before, first_checks, blocks, token_check| RunTimes {
            before_blocks: s(before),
            first_checks: s(first_checks),
            blocks: s(blocks),
            token_check,
        };
        for (times, expected) in [
            (times(0, 0, 80, TokenCheck::Off), 100),
            (times(8, 8, 80, TokenCheck::Off), 108),
            // The first output checks have half of the budget.
            (times(40, 60, 8, TokenCheck::Off), 150),
            // A tenth is reserved even for a short check of tokens.
            (times(0, 0, 72, TokenCheck::Takes(s(1))), 100),
            (times(0, 0, 72, TokenCheck::Takes(s(16))), 110),
            // A long check of tokens has half of the time.
            (times(5, 5, 8, TokenCheck::Takes(s(40))), 105),
            (times(0, 0, 4, TokenCheck::Unknown), 25),
        ] {
            assert_eq!(times.sufficient_budget().as_secs(), expected, "{times:?}");
            // The run reserves what the proposal assumes.
            let left = times.sufficient_budget() - times.before_blocks;
            let reserved = times.token_check.reserved(left);
            assert!(reserved >= times.token_check.needed(), "{times:?}");
            assert!(left - reserved + s(1) >= times.blocks.mul_f64(RESERVE), "{times:?}");
        }
    }

    #[test]
    fn a_slow_check_gets_the_part_that_faster_ones_before_it_do_not_use() {
        assert_eq!(time_for_shares(&[(1, s(4)), (1, s(4)), (2, s(8))]), s(16));
        assert_eq!(time_for_shares(&[(1, s(1)), (1, s(1)), (1, s(20))]), s(22));
        assert_eq!(time_for_shares(&[(1, s(20)), (1, s(1)), (1, s(1))]), s(60));
        assert_eq!(time_for_shares(&[]), Duration::ZERO);
    }
}
