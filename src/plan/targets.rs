//! The targets of a run: bounds that results must keep, as a run file states them.

use serde::{Deserialize, Serialize};

use super::metric_id::MetricId;

/// Bounds of a metric, for the cases that the target names. An absent `engine`, `model` or `case` names all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// A label, or an engine with or without its preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A scenario, or the label of a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
    /// `None`: the headline metric of each case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricId>,
    /// The percentile that the bounds are about: one of `PERCENTILES`. `None`: the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentile: Option<u8>,
    /// The smallest value that meets the target, in the metric's own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The symbol of the unit of the bounds.
    pub unit: String,
}

/// The percentiles that a target may be about.
pub const PERCENTILES: [u8; 4] = [50, 90, 95, 99];

impl Target {
    /// Whether the target names a case that has these names. A path means its last part, as in the label of a program.
    pub fn names(&self, engine: &[&str], model: &[&str], case: &[&str]) -> bool {
        let last_part = |name: &str| name.trim_end_matches('/').rsplit('/').next().map(String::from);
        let is = |name: &Option<String>, known: &[&str]| {
            let is_known = |name: &str| known.contains(&name);
            name.as_ref().is_none_or(|name| is_known(name) || last_part(name).is_some_and(|it| is_known(&it)))
        };
        is(&self.engine, engine) && is(&self.model, model) && is(&self.case, case)
    }

    /// Whether a value meets the bounds.
    pub fn is_met_by(&self, value: f64) -> bool {
        self.at_least.is_none_or(|least| value >= least) && self.at_most.is_none_or(|most| value <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_cases_by_engine_preset_label_scenario_and_model() {
        let target = |engine: Option<&str>, case: Option<&str>| Target {
            engine: engine.map(String::from),
            model: None,
            case: case.map(String::from),
            metric: None,
            percentile: None,
            at_least: Some(200.0),
            at_most: None,
            unit: "tok/s".into(),
        };
        let names = |target: Target| {
            target.names(&["reed", "reed:q8_0", "reed q8_0"], &["embedded"], &["decode", "decode depth 8"])
        };
        for engine in [None, Some("reed"), Some("./bin/reed"), Some("reed:q8_0"), Some("reed q8_0")] {
            assert!(names(target(engine, Some("decode"))), "{engine:?}");
        }
        assert!(!names(target(Some("coal"), None)) && !names(target(None, Some("ttft"))));
        let of_model = |model: &str| Target { model: Some(model.into()), ..target(None, None) };
        assert!(names(of_model("./embedded/")) && !names(of_model("other")));
        let wanted = target(None, None);
        assert_eq!([199.9, 200.0].map(|value| wanted.is_met_by(value)), [false, true]);
    }
}
