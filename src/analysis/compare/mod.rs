//! Run records to verdicts: what differs, by how much, how sure that is. Pure but for the command at its door.
//!
//! ```text
//! RunRecord --series--> values by configuration, block and round --within--> each configuration against its reference
//! two RunRecords --comparable, between--> per metric the change from one to the other, or what makes them incomparable
//! ```

pub mod between;
pub mod comparable;
pub mod judgement;
pub mod matching;
pub mod sentence;
pub mod series;
pub mod show;
#[cfg(test)]
pub mod specimen;
pub mod within;

use std::path::Path;

use anyhow::Result;

use crate::cli::exit_code::Usage;
use crate::cli::{CompareArgs, JudgeArgs};
use crate::commands::baseline::Baseline;
use crate::commands::output;
use crate::record::RunRecord;
use stats::Thresholds;

pub use comparable::differences;
pub use judgement::{Judgement, judge, judge_within};
pub use matching::matching;
pub use sentence::sentence;
pub use within::{Compared, all_pairs, look, within};

/// `orchestrate compare BASE NEW`.
pub fn compare(arguments: &CompareArgs) -> Result<u8> {
    let format = show::named(&arguments.format)?;
    let thresholds = thresholds(&arguments.judge)?;
    let (base, of_base) = opened(&arguments.base)?;
    let (new, of_new) = opened(&arguments.new)?;
    let judged = judge(&base, &new, thresholds, arguments.judge.force);
    let mut judgement = judged.map_err(|incomparable| Usage(incomparable.to_string()))?;
    judgement.base.name = arguments.base.clone();
    judgement.new.name = arguments.new.clone();
    judgement.notices.splice(0..0, of_base.into_iter().chain(of_new));
    output::print(&(format.render)(&judgement, output::width()))?;
    Ok(judgement.exit_code(arguments.judge.fail_on))
}

/// What may pass, as the command line has it.
pub fn thresholds(arguments: &JudgeArgs) -> Result<Thresholds> {
    let JudgeArgs { warning, critical, .. } = arguments;
    let thresholds = Thresholds::new(warning.0, critical.0);
    let percent =
        |share: f64| format!("{:.3}", 100.0 * share).trim_end_matches('0').trim_end_matches('.').to_string();
    Ok(thresholds.ok_or_else(|| {
        let (warning, critical) = (percent(warning.0), percent(critical.0));
        Usage(format!("--warning {warning}% is above --critical {critical}%: less cannot be worse"))
    })?)
}

/// A file where there is one; else what a baseline of that name holds, with what is to be known of that.
fn opened(name: &str) -> Result<(RunRecord, Vec<String>)> {
    let path = Path::new(name);
    if path.is_file() || name.contains('/') || name.ends_with(".jsonl") {
        return Ok((RunRecord::read(path)?, Vec::new()));
    }
    let baseline = Baseline::read(name)?;
    Ok((baseline.record()?, baseline.notices()))
}
