//! The budgets that this program proposes, and their text. A run, its report and `--dry-run` share this estimate; they differ only
//! in how they know the time of a block.

use std::time::Duration;

use super::Plan;

/// The budget divided by this is reserved for the check of the measured tokens after the last block.
pub const TOKEN_CHECK_DIVISOR: u32 = 10;
/// Blocks differ, so a sufficient budget is larger than the expected time of its blocks by this factor. With 1.1, a proposed budget
/// was too short by an eighth on a busy machine.
const RESERVE: f64 = 1.25;

/// The part of a budget that is reserved for the check of the measured tokens.
pub fn for_token_check(plan: &Plan, total: Duration) -> Duration {
    if is_token_checked(plan) { total / TOKEN_CHECK_DIVISOR } else { Duration::ZERO }
}

/// Whether the verifier checks the measured tokens of a configuration after the last block.
pub fn is_token_checked(plan: &Plan) -> bool {
    plan.configurations.iter().any(|it| plan.verifier_of(&it.model).is_some())
}

/// The budget for blocks and first output checks that take these times, as `--budget` takes it.
pub fn sufficient_budget(blocks: Duration, checks: Duration, is_token_checked: bool) -> String {
    let needed = blocks.mul_f64(RESERVE) + checks;
    // The part for the token check grows with the whole budget.
    let whole =
        if is_token_checked { needed * TOKEN_CHECK_DIVISOR / (TOKEN_CHECK_DIVISOR - 1) } else { needed };
    budget_text(whole)
}

/// A sufficient budget: `90s`, `5m`. It is rounded up, to a second, to ten seconds or to a minute.
pub fn budget_text(budget: Duration) -> String {
    let seconds = budget.as_secs_f64();
    match seconds {
        ..=60.0 => format!("{}s", seconds.ceil()),
        ..=120.0 => format!("{}s", 10.0 * (seconds / 10.0).ceil()),
        _ => format!("{}m", (seconds / 60.0).ceil()),
    }
}

/// A budget as a user gives it: `1m30s`.
pub fn as_given(budget: Duration) -> String {
    humantime::format_duration(budget).to_string().replace(' ', "")
}
