//! EXIT_CODES: what this program's exit status means. `orchestrate --help` prints the table.

/// Everything that was asked for was measured. Under `--all`, engines that cannot run here are rows and no failure.
pub const DONE: u8 = 0;
/// Reserved for a comparison that found a gating metric worse.
#[expect(dead_code, reason = "documented from the start, so that no other meaning takes the number")]
pub const WORSE: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// Reserved for a comparison that could not tell.
#[expect(dead_code, reason = "documented from the start, so that no other meaning takes the number")]
pub const NOT_MEASURABLE: u8 = 3;
/// Something could not be measured; the record says what and why, and holds everything else. Of `check`: a breach.
pub const FAILED_CASES: u8 = 4;
/// This program could not do its own work.
pub const ERROR: u8 = 5;
/// Ended by Ctrl-C; what was measured is saved.
pub const INTERRUPTED: u8 = 130;

pub const EXIT_CODES: &str = "\
Exit codes:
  0    everything asked for was measured (with --all: engines that cannot run here are rows)
  1    (reserved) a comparison found a gating metric worse
  2    the command line makes no sense
  3    (reserved) a comparison could not tell
  4    a case failed, an engine asked for by name could not run, or nothing could; the rest is measured and saved
  5    orchestrate itself could not do its work
  130  interrupted; what was measured is saved";

/// An error of the user's making: the command line names something that is not there.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
