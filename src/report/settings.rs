//! The effects of a larger batch, the cache, a padding, a depth or drafts on the same engine. `settings_table` shows them.

use super::run_data::RunData;
use super::verdicts::PairVerdict;
use crate::analysis::claims::{self, Contradiction};
use crate::analysis::compare::{SettingEffect, setting_effects};
use crate::analysis::metric::Unit;
use crate::text::line;

/// The title of the axis whose values are numbers of sequences.
const BATCH: &str = "batch";
/// The title of the axis that says whether an engine keeps keys and values.
const CACHE: &str = "cache";

/// A case against another case of the same engine that differs in one setting.
#[derive(Debug, Clone)]
pub struct SettingImpact {
    pub setting: &'static str,
    pub value: String,
    pub other: String,
    /// `case` is the label of the case, and `against` that of the other case.
    pub pair: PairVerdict,
    /// The setting is the cache, and the engine reports that it keeps none: both cases are the same work.
    pub is_same_work: bool,
}

/// The effects of all settings that vary. Wrong, contradicted and failed cases are left out.
pub fn impacts(data: &RunData, contradictions: &[Contradiction]) -> Vec<SettingImpact> {
    let plan = data.plan;
    let is_sound = |case: usize| {
        let configuration = plan.cases[case].configuration;
        data.is_row(configuration)
            && !data.agreements[configuration].is_wrong()
            && !claims::is_contradicted(contradictions, configuration)
            && data.failure(case).is_none()
    };
    let label = |case: usize| line(&plan.cases[case].workload.label);
    let impact = |SettingEffect { case, against, difference, metric, result }| {
        let configuration = plan.cases[case].configuration;
        let mut launches = data.record.launches_of(configuration).filter_map(|launch| launch.loaded.as_ref());
        let keeps_none = launches.any(|loaded| loaded.facts.use_cache == Some(false));
        SettingImpact {
            is_same_work: difference.setting == CACHE && keeps_none,
            setting: difference.setting,
            value: difference.value,
            other: difference.other,
            pair: PairVerdict::of_cases(data, metric, configuration, [label(case), label(against)], result),
        }
    };
    setting_effects(&data.values, is_sound).into_iter().map(impact).collect()
}

impl SettingImpact {
    /// The scaling efficiency of a batch: 1 if twice the sequences give twice the tokens per second.
    pub fn scaling_efficiency(&self) -> Option<f64> {
        let times = sequences(self.setting, &self.value)? / sequences(self.setting, &self.other)?;
        // These rates count the tokens of all sequences.
        Some(self.pair.ratio()? / times).filter(|_| self.pair.metric.unit == Unit::TokensPerSecond)
    }
}

/// The sequences of a batch; `None` for a value of another axis.
pub fn sequences(setting: &str, value: &str) -> Option<f64> {
    value.parse().ok().filter(|it| setting == BATCH && *it > 0.0)
}
