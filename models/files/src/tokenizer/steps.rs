//! The steps of a `tokenizer.json` around its model: on a text before merging, and on its ids after. Steps that GGUF can
//! express are recognised; all others are refused by name.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Pre;
use super::json::SPACE;
use super::pre::{EACH_NUMBER, GPT2_SPLIT};
use crate::text::shown;

pub(super) const UNUSABLE: &str = "the GGUF would have no tokenizer that llama.cpp could use";

/// Finds the family with these cuts.
pub(super) fn pre(step: Option<&Value>, ignore_merges: bool) -> Result<&'static Pre> {
    let Some(step) = step.filter(|step| !step.is_null()) else {
        bail!("there is neither `pre_tokenizer` nor byte fallback; {UNUSABLE}");
    };
    let mut splits = Vec::new();
    cuts(step, &mut splits)?;
    Pre::splitting(&splits, ignore_merges).with_context(|| {
        let merged = if ignore_merges { ", `ignore_merges` set" } else { "" };
        format!("unknown pre-tokenizer: words are cut by {splits:?}{merged}; {UNUSABLE}")
    })
}

fn cuts(step: &Value, splits: &mut Vec<String>) -> Result<()> {
    let kind = step["type"].as_str().unwrap_or_default();
    match kind {
        "Sequence" => {
            let steps = step["pretokenizers"].as_array().context("`pre_tokenizer`: a sequence of nothing")?;
            // No real file nests sequences; refusing them bounds the recursion.
            let nested = steps.iter().find(|step| step["type"] == "Sequence");
            ensure!(nested.is_none(), "`pre_tokenizer`: a sequence in a sequence; {UNUSABLE}");
            steps.iter().try_for_each(|step| cuts(step, splits))
        }
        "ByteLevel" if step["add_prefix_space"] != true => {
            if step["use_regex"] != false {
                splits.push(GPT2_SPLIT.into());
            }
            Ok(())
        }
        "Digits" if step["individual_digits"] == true => {
            splits.push(EACH_NUMBER.into());
            Ok(())
        }
        "Split" => {
            let regex = step["pattern"]["Regex"].as_str();
            // Removing the gaps is the same if the expression matches everything.
            let isolated = step["behavior"] == "Isolated" && step["invert"] != true;
            let removed = step["behavior"] == "Removed" && step["invert"] == true;
            let regex = regex.filter(|_| isolated || removed);
            splits.push(regex.with_context(|| format!("`pre_tokenizer` is {step}; {UNUSABLE}"))?.into());
            Ok(())
        }
        _ => bail!("`pre_tokenizer` is {step}; {UNUSABLE}"),
    }
}

/// Whether characters are composed first. Every other normaliser is refused.
pub(super) fn composes(normalizer: Option<&Value>) -> Result<bool> {
    match normalizer {
        None | Some(Value::Null) => Ok(false),
        Some(step) if step["type"] == "NFC" => Ok(true),
        Some(step) => bail!("`normalizer` is {step}; {UNUSABLE}"),
    }
}

/// Whether a space is added in front when spaces are replaced. `Metaspace` adds none to a text that begins with one;
/// llama.cpp and the older form do.
pub(super) fn space_prefix(normalizer: Option<&Value>, pre_tokenizer: Option<&Value>) -> Result<bool> {
    let steps = match normalizer {
        None | Some(Value::Null) => Vec::new(),
        Some(step) if step["type"] == "Sequence" => {
            step["normalizers"].as_array().cloned().unwrap_or_default()
        }
        Some(step) => vec![step.clone()],
    };
    let (mut prefix, mut replaced) = (false, false);
    for step in &steps {
        let kind = step["type"].as_str().unwrap_or_default();
        match kind {
            "Prepend" if step["prepend"] == SPACE => prefix = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == SPACE => replaced = true,
            _ => bail!("`normalizer` has {step}; {UNUSABLE}"),
        }
    }
    match pre_tokenizer.filter(|step| !step.is_null()) {
        None => {}
        // It cuts at spaces, and the normaliser has left none.
        Some(step) if replaced && step["type"] == "Split" && step["pattern"]["String"] == " " => {}
        Some(step)
            if step["type"] == "Metaspace" && step["replacement"] == SPACE && step["split"] == false =>
        {
            replaced = true;
            prefix |= step["prepend_scheme"] != "never";
        }
        Some(step) => bail!("`pre_tokenizer` is {step}; {UNUSABLE}"),
    }
    ensure!(replaced, "spaces are not replaced by `{SPACE}`; {UNUSABLE}");
    Ok(prefix)
}

/// The ids that the post-processor adds before and after a text.
pub(super) fn around(step: Option<&Value>, ids: &HashMap<&str, u32>) -> Result<(Option<u32>, Option<u32>)> {
    let steps = match step {
        None | Some(Value::Null) => Vec::new(),
        Some(step) if step["type"] == "Sequence" => {
            step["processors"].as_array().cloned().unwrap_or_default()
        }
        Some(step) => vec![step.clone()],
    };
    let (mut before, mut after) = (None, None);
    for step in steps {
        if step["type"] == "ByteLevel" {
            continue; // It moves offsets, not ids.
        }
        ensure!(step["type"] == "TemplateProcessing", "`post_processor` is {step}; {UNUSABLE}");
        let single = step["single"].as_array().context("`post_processor` has no `single`")?;
        let mut place = &mut before;
        for piece in single {
            if piece.get("Sequence").is_some() {
                place = &mut after;
                continue;
            }
            let token =
                piece["SpecialToken"]["id"].as_str().context("`post_processor`: a piece of neither")?;
            let other = place.replace(id_of(ids, "`post_processor`", token)?);
            ensure!(
                other.is_none(),
                "`post_processor` puts several tokens on one side of a text; {UNUSABLE}"
            );
        }
    }
    Ok((before, after))
}

pub(super) fn id_of(ids: &HashMap<&str, u32>, what: &str, token: &str) -> Result<u32> {
    let id = ids.get(token).copied();
    id.with_context(|| format!("{what} names `{}`, which is no token", shown(token)))
}
