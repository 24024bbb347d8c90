//! `reference-answers.json` in the folder of a model: the answers of a verifier, stored so that the check of held-out text need
//! not start that engine. They are valid only for the same requests and weights.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::plan::Model;
use crate::record::{HeldOut, ReferenceAnswers, RunRecord};

const FILE_NAME: &str = "reference-answers.json";
/// The name of the file in earlier versions.
const OLD_FILE_NAME: &str = "witness.json";
/// Log-probabilities are rounded to 1 / this number, a millionth, which is far below the difference between two engines in f32.
const ROUNDING_DIVISOR: f64 = 1e6;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswersFile {
    /// Engine and version.
    pub by: String,
    /// The identity of the weights, as in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The digest of the requests that were answered.
    pub held_out: String,
    /// One list for each held-out sequence, with one value for each id after the first.
    pub logprobs: Vec<Vec<Option<f64>>>,
    /// The ids with which the verifier continues the prompt.
    pub continued: Vec<u32>,
}

/// The reference answers in the model's folder, if they belong to these requests and these weights. An unknown identity of
/// weights counts as equal.
pub fn find(model: &Model, held_out: &HeldOut) -> Option<ReferenceAnswers> {
    let folder = Path::new(&model.path);
    let answers = [FILE_NAME, OLD_FILE_NAME].iter().find_map(|name| read(&folder.join(name)).ok())?;
    let identities = answers.identity.as_ref().zip(model.identity.as_ref());
    let same_weights = identities.is_none_or(|(stored, current)| stored == current);
    let is_complete = answers.held_out == digest(held_out)
        && answers.logprobs.len() == held_out.sequences.len()
        && answers
            .logprobs
            .iter()
            .zip(&held_out.sequences)
            .all(|(logprobs, ids)| logprobs.len() + 1 == ids.len());
    (same_weights && is_complete).then(|| ReferenceAnswers {
        model: model.path.clone(),
        by: answers.by,
        logprobs: answers.logprobs,
        continued: answers.continued,
    })
}

/// Makes the reference answers from the record of a run with one engine. Every request needs an answer.
pub fn from_record(record: &RunRecord, model: &Model) -> Result<AnswersFile> {
    let reason = || {
        let not_checked = record.not_checked.iter().map(|it| it.reason.clone());
        let failed = record.failures.iter().map(|it| it.message.clone());
        not_checked.chain(failed).next().map_or_else(String::new, |reason| format!(": {reason}"))
    };
    let held_out = record.held_out.iter().find(|it| it.model == model.path);
    let held_out = held_out.with_context(|| format!("no request was made{}", reason()))?;
    let mut logprobs = Vec::new();
    for sequence in 0..held_out.sequences.len() {
        let Some(scored) = record.scored.iter().find(|it| it.sequence == sequence) else {
            bail!("not all held-out text was scored{}", reason());
        };
        let round = |logprob: f64| (logprob * ROUNDING_DIVISOR).round() / ROUNDING_DIVISOR;
        logprobs.push(scored.logprobs.iter().map(|it| it.map(round)).collect());
    }
    let continued = record.continued.first();
    let continued = continued.with_context(|| format!("the prompt was not continued{}", reason()))?;
    let hello = record.launches.iter().find_map(|launch| launch.hello.as_ref());
    Ok(AnswersFile {
        by: hello.map_or_else(String::new, |hello| format!("{} {}", hello.engine, hello.version)),
        identity: model.identity.clone(),
        held_out: digest(held_out),
        logprobs,
        continued: continued.ids.clone(),
    })
}

/// The path of the reference answers. A model of one file has no folder for them.
pub fn path_of(model: &Model) -> Option<PathBuf> {
    let folder = Path::new(&model.path);
    folder.is_dir().then(|| folder.join(FILE_NAME))
}

pub fn read(path: &Path) -> Result<AnswersFile> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("`{}`", path.display()))
}

/// The file's text, with a line for each sequence, for people and for tools such as `diff`.
pub fn text(answers: &AnswersFile) -> Result<String> {
    let text = serde_json::to_string(answers)?;
    Ok(text.replace("],[", "],\n[").replace("\":[[", "\":\n[[") + "\n")
}

/// The digest of the requests. Another text or tokenizer gives another digest.
pub fn digest(held_out: &HeldOut) -> String {
    let HeldOut { model: _, sequences, prompt, max_new_tokens, text_bytes: _ } = held_out;
    let mut bytes: Vec<u8> = Vec::new();
    for ids in sequences.iter().chain([prompt]) {
        let length = ids.len() as u32;
        bytes.extend(std::iter::once(&length).chain(ids).flat_map(|id| id.to_le_bytes()));
    }
    bytes.extend(max_new_tokens.to_le_bytes());
    paths::digest(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Continued, HeldOutScores};

    fn held_out() -> HeldOut {
        let sequences = vec![vec![1, 2, 3], vec![4, 5]];
        HeldOut { model: "m".into(), sequences, prompt: vec![6], max_new_tokens: 2, ..HeldOut::default() }
    }

    fn answered() -> RunRecord {
        let scored = |sequence: usize, logprobs: Vec<Option<f64>>| HeldOutScores {
            sequence,
            logprobs,
            ..HeldOutScores::default()
        };
        RunRecord {
            held_out: vec![held_out()],
            scored: vec![scored(1, vec![None]), scored(0, vec![Some(-0.123_456_789), Some(-2.0)])],
            continued: vec![Continued { ids: vec![7, 8], ..Continued::default() }],
            ..RunRecord::default()
        }
    }

    fn model() -> Model {
        Model { path: "m".into(), identity: Some("w".into()), ..Model::default() }
    }

    #[test]
    fn answers_are_stored_rounded_and_in_the_order_of_the_sequences() {
        let answers = from_record(&answered(), &model()).unwrap();
        assert_eq!(answers.logprobs, [vec![Some(-0.123457), Some(-2.0)], vec![None]]);
        assert_eq!(serde_json::from_str::<AnswersFile>(&text(&answers).unwrap()).unwrap(), answers);
    }

    #[test]
    fn an_incomplete_answer_is_not_stored() {
        let mut half = answered();
        half.scored.truncate(1);
        let error = from_record(&half, &model()).unwrap_err().to_string();
        assert!(error.contains("not all held-out text was scored"), "{error}");
        assert!(from_record(&RunRecord::default(), &model()).is_err());
    }

    #[test]
    fn other_requests_have_another_digest() {
        let other = HeldOut { prompt: vec![6, 6], ..held_out() };
        let moved = HeldOut { sequences: vec![vec![1, 2], vec![3, 4, 5]], ..held_out() };
        assert_ne!(digest(&other), digest(&held_out()));
        assert_ne!(digest(&moved), digest(&held_out()));
        let elsewhere = HeldOut { model: "elsewhere".into(), ..held_out() };
        assert_eq!(digest(&elsewhere), digest(&held_out()));
    }
}
