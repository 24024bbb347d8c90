//! Checks of prompts: as ids and as text, alone and in batches, empty and too long.

use protocol::FailureKind::{BadRequest, Context, Unsupported};
use serde_json::json;

use super::asking::outputs;
use super::result::Not;
use super::subject::{Check, Subject, absent, wrong};

pub const CHECKS: &[Check] = &[
    Check { name: "prompt-ids", property: "the engine uses the given ids, and counts them", run: takes_ids },
    Check {
        name: "text-tokens",
        property: "a text has the tokens of the model's tokenizer",
        run: counts_text_tokens,
    },
    Check {
        name: "text-as-ids",
        property: "a text and its ids give the same output",
        run: reads_text_as_ids,
    },
    Check {
        name: "empty-prompt",
        property: "an empty prompt is BOS alone, or is refused",
        run: knows_the_empty_prompt,
    },
    Check {
        name: "no-such-token",
        property: "the engine refuses an id outside the vocabulary",
        run: refuses_unknown_ids,
    },
    Check {
        name: "context",
        property: "the engine refuses a request beyond its context",
        run: refuses_to_overflow,
    },
    Check { name: "batch", property: "a batch gives one sequence for each prompt", run: takes_batches },
    Check {
        name: "batch-too-large",
        property: "the engine refuses a batch above its stated limit",
        run: refuses_large_batches,
    },
];

fn takes_ids(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("prompt_ids", |can| can.prompt_ids)?;
    let ids = subject.prompt_ids();
    for length in [1, 2, ids.len()] {
        subject.verified(&json!({ "prompt_ids": ids[..length], "max_new_tokens": 2 }))?;
    }
    Ok(())
}

const TEXTS: [&str; 3] = ["Hello", "A longer text, with commas and 12 numbers.", "größer: ünïcode ✓"];

fn counts_text_tokens(subject: &mut Subject) -> Result<(), Not> {
    for text in TEXTS {
        let Some(tokens) = encoded(subject, text) else { return absent("the model has no tokenizer") };
        let answer = subject.generate(&json!({ "prompt": text, "max_new_tokens": 1 }))?;
        let sequence = answer.generated.iterations.first().and_then(|iteration| iteration.sequences.first());
        let found = sequence.map_or(0, |sequence| sequence.prompt_tokens as usize);
        if found != tokens.len() {
            let expected = tokens.len();
            let counted = wrong(format!("expected {expected} `prompt_tokens` with BOS, got {found}"));
            return subject.unless_minimal(counted);
        }
    }
    Ok(())
}

fn reads_text_as_ids(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("prompt_ids", |can| can.prompt_ids)?;
    if !subject.hello()?.deterministic {
        return absent("not claimed: `deterministic`");
    }
    for text in TEXTS {
        let Some(ids) = encoded(subject, text) else { return absent("the model has no tokenizer") };
        let from_text = outputs(&subject.generate(&json!({ "prompt": text, "max_new_tokens": 6 }))?);
        let from_ids = outputs(&subject.generate(&json!({ "prompt_ids": ids, "max_new_tokens": 6 }))?);
        if from_text != from_ids {
            return wrong(format!("got {} from ids, {} from the text", json!(from_ids), json!(from_text)));
        }
    }
    Ok(())
}

fn encoded(subject: &Subject, text: &str) -> Option<Vec<u32>> {
    subject.tokenizer.as_ref()?.encode(text).ok().filter(|ids| !ids.is_empty())
}

fn knows_the_empty_prompt(subject: &mut Subject) -> Result<(), Not> {
    let bos = subject.loaded()?.facts.bos_id;
    let line = json!({ "prompt": "", "max_new_tokens": 1 });
    if bos.is_none() {
        return subject.refused(&protocol::encode(&line), &[BadRequest]);
    }
    let answer = subject.verified(&line)?;
    let sequence = answer.generated.iterations.first().and_then(|iteration| iteration.sequences.first());
    match sequence.map_or(0, |sequence| sequence.prompt_tokens) {
        1 => Ok(()),
        found => wrong(format!("expected 1 `prompt_tokens` for BOS alone, got {found}")),
    }
}

fn refuses_unknown_ids(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("prompt_ids", |can| can.prompt_ids)?;
    let Some(size) = subject.loaded()?.facts.vocabulary_size else {
        return absent("`loaded` has no `vocabulary_size`");
    };
    let line = json!({ "prompt_ids": [size], "max_new_tokens": 1 });
    subject.refused(&protocol::encode(&line), &[BadRequest])
}

fn refuses_to_overflow(subject: &mut Subject) -> Result<(), Not> {
    let Some(context) = subject.loaded()?.facts.context_tokens else {
        return absent("`loaded` has no `context_tokens`");
    };
    let line = subject.line(json!({ "max_new_tokens": context }));
    subject.refused(&protocol::encode(&line), &[Context])
}

fn takes_batches(subject: &mut Subject) -> Result<(), Not> {
    let can = subject.claims("batch", |can| can.batch > 1)?;
    let ids = subject.prompt_ids();
    let mut line = match can.prompt_ids {
        true => json!({ "prompts_ids": [ids[..ids.len() - 1], ids], "max_new_tokens": 4 }),
        false => json!({ "prompts": ["Hello", "Hello, and good morning"], "max_new_tokens": 4 }),
    };
    // A side that it supports. An engine that packs sequences without padding has none.
    line["padding"] = json!(can.padding_sides.first().copied().unwrap_or_default());
    subject.verified(&line).map(|_| ())
}

fn refuses_large_batches(subject: &mut Subject) -> Result<(), Not> {
    let can = subject.hello()?.capabilities;
    let prompts = vec!["Hello"; can.batch as usize + 1];
    if prompts.len() > 4096 {
        return absent(format!("claims batches of {}; larger ones are not tested", can.batch));
    }
    let line = json!({ "prompts": prompts, "max_new_tokens": 1 });
    subject.refused(&protocol::encode(&line), &[Unsupported, BadRequest])
}
