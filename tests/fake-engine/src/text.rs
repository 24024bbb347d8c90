//! Texts of the engine: those of the model's own tokenizer, or plain bytes and numbers.

use std::path::Path;
use std::sync::OnceLock;

use tokenizers::Tokenizer;

use crate::answer::{BOS, FIRST_ORDINARY_ID};
use crate::script::Script;

/// The character for bytes that are no complete character.
const INCOMPLETE: char = '\u{FFFD}';

/// The ids of a prompt, without its dropped words.
pub fn ids_of(script: &Script, text: &str) -> Vec<u64> {
    let dropped = script.count("dropped_words") as usize;
    let text = match dropped {
        0 => text,
        words => text.splitn(words + 1, ' ').last().unwrap_or_default(),
    };
    match tokenizer(script) {
        Some(tokenizer) => match tokenizer.encode(text, true) {
            Ok(encoding) => encoding.get_ids().iter().map(|id| u64::from(*id)).collect(),
            Err(_) => Vec::new(),
        },
        // A BOS, then one id for each byte.
        None => {
            std::iter::once(BOS).chain(text.bytes().map(|byte| FIRST_ORDINARY_ID + u64::from(byte))).collect()
        }
    }
}

/// The text of each id of an output. A character of several ids belongs to the last of them.
pub fn parts(script: &Script, ids: &[u64]) -> Vec<String> {
    let Some(tokenizer) = tokenizer(script) else { return ids.iter().map(|id| format!(" {id}")).collect() };
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let mut written = String::new();
    let mut parts = Vec::new();
    for end in 1..=ids.len() {
        let all = tokenizer.decode(&ids[..end], true).unwrap_or_default();
        let complete = if end == ids.len() { all.as_str() } else { all.trim_end_matches(INCOMPLETE) };
        parts.push(complete.strip_prefix(written.as_str()).unwrap_or_default().to_owned());
        written = complete.to_owned();
    }
    parts
}

/// The tokenizer of the model that the orchestrator names, if the script uses it.
fn tokenizer(script: &Script) -> Option<&'static Tokenizer> {
    static TOKENIZER: OnceLock<Option<Tokenizer>> = OnceLock::new();
    let open = || {
        let model = std::env::var("ORCHESTRATE_MODEL").ok()?;
        Tokenizer::from_file(Path::new(&model).join("tokenizer.json")).ok()
    };
    if script.flag("models_tokenizer") { TOKENIZER.get_or_init(open).as_ref() } else { None }
}
