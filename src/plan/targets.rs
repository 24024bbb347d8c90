//! The targets of a run: bounds that results must keep, as a run file states them.

use serde::{Deserialize, Serialize};

use super::{Configuration, MetricId, Workload, engine_name};

/// Bounds of a metric, for the cases that the target names. A field without a value names all.
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
    /// The smallest value that meets the target, in the metric's own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// The symbol of the unit of the bounds.
    pub unit: String,
}

impl Target {
    pub fn names(&self, configuration: &Configuration, workload: &Workload) -> bool {
        // A path means its last part, as in the label of a program.
        let last_part = |name: &str| name.trim_end_matches('/').rsplit('/').next().map(String::from);
        let is = |name: &Option<String>, known: &[&str]| {
            let is_known = |name: &str| known.contains(&name);
            name.as_ref().is_none_or(|name| is_known(name) || last_part(name).is_some_and(|it| is_known(&it)))
        };
        let Configuration { label, engine, preset, model, .. } = configuration;
        let with_preset = engine_name(engine, preset.as_deref());
        is(&self.engine, &[label, engine, &with_preset])
            && is(&self.model, &[&model.name, &model.path])
            && is(&self.case, &[&workload.label, &workload.scenario])
    }

    /// Whether a value meets the bounds.
    pub fn is_met_by(&self, value: f64) -> bool {
        self.at_least.is_none_or(|least| value >= least) && self.at_most.is_none_or(|most| value <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Prompt;

    #[test]
    fn a_target_names_cases_by_engine_preset_label_scenario_and_model() {
        let (label, engine) = ("reed q8_0".into(), "reed".into());
        let preset = Some("q8_0".into());
        let configuration = Configuration { label, engine, preset, ..Configuration::default() };
        let workload = Workload::specimen(Prompt::Tokens(8));
        let target = |engine: Option<&str>, case: Option<&str>| Target {
            engine: engine.map(String::from),
            model: None,
            case: case.map(String::from),
            metric: None,
            at_least: Some(200.0),
            at_most: None,
            unit: "tok/s".into(),
        };
        for engine in [None, Some("reed"), Some("./bin/reed"), Some("reed:q8_0"), Some("reed q8_0")] {
            assert!(target(engine, Some("decode")).names(&configuration, &workload), "{engine:?}");
        }
        assert!(!target(Some("coal"), None).names(&configuration, &workload));
        assert!(!target(None, Some("ttft")).names(&configuration, &workload));
        let wanted = target(None, None);
        assert_eq!([199.9, 200.0].map(|value| wanted.is_met_by(value)), [false, true]);
    }
}
