//! Checks of prompts: as ids and as text, alone and in batches, empty and too long.

use protocol::FailureKind::{BadRequest, Context, Unsupported};
use serde_json::json;

use super::checked_engine::{Check, CheckedEngine};
use super::requests::{first_sequence, outputs};
use super::result::{Outcome, absent, require, wrong};

pub const CHECKS: &[Check] = &[
    Check::new("prompt-ids", "the engine takes ids as a prompt, and counts them", uses_ids),
    Check::new("text-tokens", "a text has as many tokens as the tokenizer gives", counts_text_tokens),
    Check::new("text-as-ids", "a text and its ids give the same output", reads_text_as_ids),
    Check::new("empty-prompt", "an empty prompt is BOS alone, or is refused", reads_an_empty_prompt),
    Check::new("no-such-token", "the engine refuses an id outside the vocabulary", refuses_unknown_ids),
    Check::new("context", "the engine refuses a request beyond its context", refuses_long_requests),
    Check::new("batch", "a batch gives one sequence for each prompt", answers_batches),
    Check::new(
        "batch-too-large",
        "the engine refuses a batch above its reported limit",
        refuses_large_batches,
    ),
];

/// The largest batch that a check sends.
pub const MAX_TESTED_BATCH: u32 = 4096;

fn uses_ids(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("prompt_ids", |it| it.prompt_ids)?;
    let ids = subject.prompt_ids();
    for length in [1, 2, ids.len()] {
        subject.generate_verified(&json!({ "prompt_ids": ids[..length], "max_new_tokens": 2 }))?;
    }
    Ok(())
}

const TEXTS: [&str; 3] = ["Hello", "A longer text, with commas and 12 numbers.", "größer: ünïcode ✓"];

fn counts_text_tokens(subject: &mut CheckedEngine) -> Outcome {
    takes_text(subject)?;
    for text in TEXTS {
        let expected = encoded(subject, text)?.len();
        let answer = subject.generate(&json!({ "prompt": text, "max_new_tokens": 1 }))?;
        let found = first_sequence(&answer).map_or(0, |sequence| sequence.prompt_tokens as usize);
        let fault = format!("expected {expected} `prompt_tokens` with BOS, got {found}");
        subject.absent_if_minimal(require(found == expected, fault))?;
    }
    Ok(())
}

fn reads_text_as_ids(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("prompt and prompt_ids", |it| it.prompt && it.prompt_ids)?;
    subject.claims_determinism()?;
    for text in TEXTS {
        let ids = encoded(subject, text)?;
        let from_text = outputs(&subject.generate(&json!({ "prompt": text, "max_new_tokens": 6 }))?);
        let from_ids = outputs(&subject.generate(&json!({ "prompt_ids": ids, "max_new_tokens": 6 }))?);
        if from_text != from_ids {
            return wrong(format!("got {} from ids, {} from the text", json!(from_ids), json!(from_text)));
        }
    }
    Ok(())
}

fn takes_text(subject: &mut CheckedEngine) -> Outcome {
    subject.handshake()?;
    match subject.tokenizer {
        _ if !subject.takes_text() => absent("not claimed: `prompt`"),
        None => absent("the model has no tokenizer"),
        Some(_) => Ok(()),
    }
}

fn encoded(subject: &CheckedEngine, text: &str) -> Outcome<Vec<u32>> {
    let ids = subject.tokenizer.as_ref().and_then(|tokenizer| tokenizer.encode(text).ok());
    ids.filter(|ids| !ids.is_empty()).map_or_else(|| absent("the model has no tokenizer"), Ok)
}

fn reads_an_empty_prompt(subject: &mut CheckedEngine) -> Outcome {
    takes_text(subject)?;
    let bos = subject.load_answer()?.facts.bos_id;
    let line = json!({ "prompt": "", "max_new_tokens": 1 });
    if bos.is_none() {
        return subject.expect_refusal(&protocol::encode(&line), &[BadRequest]);
    }
    let answer = subject.generate_verified(&line)?;
    let found = first_sequence(&answer).map_or(0, |sequence| sequence.prompt_tokens);
    require(found == 1, format!("expected 1 `prompt_tokens` for BOS alone, got {found}"))
}

fn refuses_unknown_ids(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("prompt_ids", |it| it.prompt_ids)?;
    let facts = subject.load_answer()?.facts;
    let Some(size) = facts.vocabulary_size else {
        return absent("`loaded` has no `vocabulary_size`");
    };
    // The second line also exceeds the context. The protocol puts the error of the vocabulary first.
    for tokens in [Some(1), facts.context_tokens].into_iter().flatten() {
        let line = json!({ "prompt_ids": [size], "max_new_tokens": tokens });
        subject.expect_refusal(&protocol::encode(&line), &[BadRequest])?;
    }
    Ok(())
}

fn refuses_long_requests(subject: &mut CheckedEngine) -> Outcome {
    let Some(context) = subject.load_answer()?.facts.context_tokens else {
        return absent("`loaded` has no `context_tokens`");
    };
    let line = subject.line(json!({ "max_new_tokens": context }));
    subject.expect_refusal(&protocol::encode(&line), &[Context])
}

fn answers_batches(subject: &mut CheckedEngine) -> Outcome {
    let capabilities = subject.claims("batch", |it| it.batch > 1)?;
    let ids = subject.prompt_ids();
    let mut line = match capabilities.prompt_ids {
        true => json!({ "prompts_ids": [ids[..ids.len() - 1], ids], "max_new_tokens": 4 }),
        false => json!({ "prompts": ["Hello", "Hello, and good morning"], "max_new_tokens": 4 }),
    };
    // A layout that the engine supports, or the default one if the engine lists none.
    line["padding"] = json!(capabilities.padding_sides.first().copied().unwrap_or_default());
    subject.generate_verified(&line).map(drop)
}

fn refuses_large_batches(subject: &mut CheckedEngine) -> Outcome {
    let largest = subject.hello()?.capabilities.batch;
    if largest >= MAX_TESTED_BATCH {
        return absent(format!("claims batches of {largest}; larger ones are not tested"));
    }
    subject.expect_refusal(&protocol::encode(&subject.batch(largest + 1)), &[Unsupported])
}
