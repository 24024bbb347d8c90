//! `orchestrate compare BASE NEW`: what changed from one record or baseline to another.

use std::path::Path;

use anyhow::Result;
use stats::{Class, Thresholds};

use super::baseline::Baseline;
use super::output;
use crate::analysis::compare::judgement::Standing;
use crate::analysis::compare::{Judgement, judge};
use crate::cli::exit_code::{DONE, NOT_MEASURABLE, WORSE};
use crate::cli::{CompareArgs, JudgeArgs};
use crate::record::RunRecord;
use crate::shell::Usage;

pub fn compare(arguments: &CompareArgs) -> Result<u8> {
    let thresholds = thresholds(&arguments.judge)?;
    let (base, of_base) = opened(&arguments.base)?;
    let (new, of_new) = opened(&arguments.new)?;
    let judged = judge(&base, &new, thresholds, arguments.judge.force);
    let mut judgement = judged.map_err(|incomparable| Usage(incomparable.to_string()))?;
    judgement.base.name = arguments.base.clone();
    judgement.new.name = arguments.new.clone();
    judgement.notices.splice(0..0, of_base.into_iter().chain(of_new));
    output::show(&judgement, &arguments.format)?;
    Ok(exit_code(&judgement, arguments.judge.fail_on))
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

/// 1 where a gating change is as bad as that, or worse; else 3 where of a gating metric it could not be told; else 0.
pub fn exit_code(judgement: &Judgement, fail_on: Class) -> u8 {
    match judgement.standing(fail_on) {
        Standing::Worse => WORSE,
        Standing::Open => NOT_MEASURABLE,
        Standing::Passed => DONE,
    }
}
