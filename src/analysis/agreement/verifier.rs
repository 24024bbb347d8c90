//! The verifier of a model: the engine that answers in f32, or the stored reference answers of such an engine.

use protocol::Facts;
use serde::Serialize;

use crate::plan::VERIFIER_DTYPE;
use crate::record::RunRecord;
use crate::shell::HINT;
use crate::text::line;

/// The answers that a configuration's answers are compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Against {
    Nothing,
    /// The configuration is the verifier.
    Itself,
    /// An engine of this run.
    Engine {
        label: String,
    },
    /// The reference answers of an engine.
    ReferenceAnswers {
        by: String,
    },
}

/// The verifier of one model, with its answers.
pub struct Verifier<'a> {
    /// The log-probabilities of each held-out text, with the index of the text.
    logprobs: Vec<(usize, &'a [Option<f64>])>,
    /// The verifier's continuation of the held-out prompt.
    pub continued: Option<&'a [u32]>,
    /// The verifier's configuration in this run, if it runs in f32.
    pub configuration: Option<usize>,
    pub against: Against,
}

impl<'a> Verifier<'a> {
    /// The verifier of a configuration's model, or the reason why there is none.
    pub fn of(record: &'a RunRecord, configuration: usize) -> Result<Self, String> {
        let plan = &record.header.plan;
        let model = &plan.configurations[configuration].model;
        let no_verifier = || "no verifier checked this model in f32".to_string();
        record.held_out.iter().find(|it| it.model == model.path).ok_or_else(no_verifier)?;
        let verifier = plan.verifier_of(model);
        let label = |index: usize| line(&plan.configurations[index].label);
        let other_dtype = verifier.and_then(|index| Some((index, dtype_other_than_f32(record, index)?)));
        let f32_verifier = verifier.filter(|_| other_dtype.is_none());
        if let Some(stored) = record.reference_answers.iter().find(|it| it.model == model.path) {
            return Ok(Self {
                logprobs: stored.logprobs.iter().map(Vec::as_slice).enumerate().collect(),
                continued: Some(stored.continued.as_slice()).filter(|ids| !ids.is_empty()),
                configuration: f32_verifier,
                against: Against::ReferenceAnswers { by: line(&stored.by) },
            });
        }
        let index = verifier.ok_or_else(no_verifier)?;
        let scored = record.scored.iter().filter(|it| it.configuration == index);
        let logprobs: Vec<_> = scored.map(|it| (it.sequence, it.logprobs.as_slice())).collect();
        let continued = record.continued.iter().find(|it| it.configuration == index);
        let has_answers = !logprobs.is_empty() || continued.is_some();
        // A verifier that never loaded the model reports no dtype, but that is not the reason.
        let has_loaded = record.launches_of(index).any(|launch| launch.loaded.is_some());
        if let Some((index, dtype)) = other_dtype.filter(|_| has_answers || has_loaded) {
            let label = label(index);
            return Err(format!(
                "the verifier `{label}` runs in {dtype}, but must run in f32{HINT}`--verifier` with an engine or a preset in f32"
            ));
        }
        if !has_answers {
            return Err(format!("the verifier `{}` gave no answers", label(index)));
        }
        let continued = continued.map(|it| it.ids.as_slice()).filter(|ids| !ids.is_empty());
        let against = Against::Engine { label: label(index) };
        Ok(Self { logprobs, continued, configuration: f32_verifier, against })
    }

    /// The verifier's log-probabilities for the ids of a held-out text.
    pub fn logprobs(&self, sequence: usize) -> Option<&'a [Option<f64>]> {
        self.logprobs.iter().find(|(it, _)| *it == sequence).map(|(_, logprobs)| *logprobs)
    }

    /// Whether this configuration is the verifier, and no reference answers replace its answers.
    pub fn is_itself(&self, configuration: usize) -> bool {
        matches!(self.against, Against::Engine { .. }) && self.configuration == Some(configuration)
    }
}

/// A dtype other than f32 that a configuration reports. `None` if every launch that loaded the model reports
/// f32 for weights and arithmetic.
fn dtype_other_than_f32(record: &RunRecord, configuration: usize) -> Option<String> {
    let unreported = || "an unreported dtype".to_string();
    let launches = record.launches.iter().filter(|it| it.configuration == configuration);
    let loaded: Vec<&Facts> = launches.filter_map(|it| Some(&it.loaded.as_ref()?.facts)).collect();
    if loaded.is_empty() {
        return Some(unreported());
    }
    let mut reported = loaded.iter().flat_map(|facts| [&facts.weights_dtype, &facts.compute_dtype]);
    let different = reported.find(|dtype| dtype.as_deref() != Some(VERIFIER_DTYPE))?;
    Some(different.as_deref().map_or_else(unreported, line))
}
