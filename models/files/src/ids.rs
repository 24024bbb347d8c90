//! The ids that begin and end a text, by the names of their fields.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::architecture::Layout;
use crate::config::as_u32;
use crate::{Config, gguf};

const BEGIN: &str = "bos_token_id";
const END: &str = "eos_token_id";
const BEGIN_IN_GGUF: &str = "tokenizer.ggml.bos_token_id";
const END_IN_GGUF: &str = "tokenizer.ggml.eos_token_id";

/// The source of an id for an error; this file takes precedence over config.json.
const BESIDE: &str = "`generation_config.json` beside it";

/// The id that begins a text, and all ids that end one.
pub(crate) type Ids = (Option<u32>, Vec<u32>);

pub(crate) fn of_json(fields: &Map<String, Value>, generation: &Value) -> Result<Ids> {
    let of = |name| match generation.get(name).filter(|value| !value.is_null()) {
        Some(value) => list(name, value).context(BESIDE),
        None => fields.get(name).map_or(Ok(Vec::new()), |value| list(name, value)),
    };
    Ok((of(BEGIN)?.first().copied(), of(END)?))
}

pub(crate) fn of_gguf(metadata: &BTreeMap<String, gguf::Value>) -> Result<Ids> {
    let of = |key: &str| {
        let Some(value) = metadata.get(key) else { return Ok(None) };
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(Some).with_context(|| format!("metadata `{key}`: expected the id of a token, found {value}"))
    };
    let mut ends: Vec<u32> = of(END_IN_GGUF)?.into_iter().collect();
    for key in gguf::OTHER_ENDS {
        ends.extend(of(key)?.filter(|id| !ends.contains(id)));
    }
    Ok((of(BEGIN_IN_GGUF)?, ends))
}

/// The message for an id outside the vocabulary.
pub(crate) fn beyond(config: &Config) -> Option<String> {
    let size = config.vocabulary_size;
    let is_beyond = |id: &&u32| **id >= size;
    let begins = config.bos_id.iter().find(is_beyond).map(|id| (BEGIN, BEGIN_IN_GGUF, *id));
    let ends = || config.eos_ids.iter().find(is_beyond).map(|id| (END, END_IN_GGUF, *id));
    let (name, key, id) = begins.or_else(ends)?;
    let field = match config.layout() {
        Layout::HuggingFace => {
            let own = config.fields().and_then(|fields| fields.get(name));
            let is_own = own.is_some_and(|value| list(name, value).is_ok_and(|ids| ids.contains(&id)));
            if is_own { format!("`{name}`") } else { format!("{BESIDE}: `{name}`") }
        }
        Layout::Gguf => {
            let says = |key: &&str| config.raw.get(*key).and_then(Value::as_u64) == Some(id.into());
            format!("`{}`", [key].into_iter().chain(gguf::OTHER_ENDS).find(says).unwrap_or(key))
        }
    };
    Some(format!("{field}: expected the id of one of {size} tokens, found `{id}`"))
}

/// One id or a list of them.
fn list(name: &str, value: &Value) -> Result<Vec<u32>> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(|value| as_u32(name, value)).collect(),
        one => Ok(vec![as_u32(name, one)?]),
    }
}
