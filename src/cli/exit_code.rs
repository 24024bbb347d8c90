//! The meaning of this program's exit status. `orchestrate --help` prints the table `EXIT_CODES`.

use crate::analysis::compare::judgement::Conclusion;
use crate::shell::Usage;

/// Everything that was requested was measured. With `--all`, an engine that cannot run here is a row, not a failure.
pub const DONE: u8 = 0;
/// A comparison: a case that was measured before fails now, or a gating metric is certainly worse, by at least the severity of
/// `--fail-on`. Or a target of the run file is missed.
pub const WORSE: u8 = 1;
/// The command line is invalid.
pub const USAGE: u8 = 2;
/// A comparison: nothing gives `WORSE`, and a gating metric is inconclusive or none was compared. Or the machine was not steady
/// enough for a baseline.
pub const INCONCLUSIVE: u8 = 3;
/// Something could not be measured, or its output is wrong. The record has the reason and all other results. In `check`:
/// the engine violates the protocol, or could not be checked. In `setup`: at least one of several engines was not set up.
pub const FAILED_CASES: u8 = 4;
/// A file, a folder, a set-up or the lock of another run prevented the command, or this program failed.
pub const ERROR: u8 = 5;
/// Ended by Ctrl-C; the results so far are saved.
pub const INTERRUPTED: u8 = 130;

pub const EXIT_CODES: &str = "\
Exit codes:
  0    the selection was measured (with --all: engines that cannot run here are only listed)
  1    in a comparison, a case that was measured before fails now, or a headline metric is worse by
       at least the severity of --fail-on; or a target of the run file is missed
  2    the command line is invalid
  3    in a comparison, a headline metric is inconclusive, or none was compared; or the machine was
       not steady enough for --save-baseline
  4    a case failed or the time budget ended before it, an output is wrong, a named engine cannot
       run, or no engine can run; all other results are saved. In `setup` of several engines: at
       least one was not set up. In `check`: the engine violates the protocol, or could not be
       checked
  5    a file, a folder, a set-up or the lock of another run prevented the command, or orchestrate
       itself failed
  130  interrupted; the results so far are saved
If several apply, the first of 130, 5, 1, 2, 4, 3 is returned.";

/// The exit status of an error: `USAGE` for a mistake of the user, else `ERROR`.
pub fn of_error(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) { USAGE } else { ERROR }
}

pub fn of_conclusion(conclusion: Conclusion) -> u8 {
    match conclusion {
        Conclusion::Worse => WORSE,
        Conclusion::Inconclusive => INCONCLUSIVE,
        Conclusion::Passed => DONE,
    }
}

/// The most severe exit status of a run. A certain worsening comes before a failed case, because a script that checks only for
/// status 1 must not miss it. A failed case comes before an inconclusive comparison, because more measurement does not repair it.
pub fn most_severe<const N: usize>(codes: [u8; N]) -> u8 {
    const RANKS: [u8; 6] = [INTERRUPTED, ERROR, WORSE, USAGE, FAILED_CASES, INCONCLUSIVE];
    RANKS.into_iter().find(|rank| codes.contains(rank)).unwrap_or(DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regression_ranks_before_a_failed_case_and_both_before_inconclusive() {
        assert_eq!(most_severe([FAILED_CASES, WORSE, DONE]), WORSE);
        assert_eq!(most_severe([FAILED_CASES, INCONCLUSIVE, DONE]), FAILED_CASES);
        assert_eq!(most_severe([DONE, INCONCLUSIVE, DONE]), INCONCLUSIVE);
        assert_eq!(most_severe([WORSE, INTERRUPTED]), INTERRUPTED);
        assert_eq!(most_severe([DONE, DONE]), DONE);
    }
}
