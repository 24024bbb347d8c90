//! Checks of optional fields: they work if `hello` claims them. Otherwise the engine refuses them and does not ignore them.

use protocol::FailureKind::Unsupported;
use protocol::{Capabilities, IgnoreEos, Output};
use serde_json::{Value, json};

use super::checked_engine::{Check, CheckedEngine};
use super::requests::{first_sequence, outputs, with_fields};
use super::result::{Outcome, absent, require};
use crate::run::process::Answer;
use crate::text::plural;

pub const CHECKS: &[Check] = &[
    Check::new("ignore-eos", "with `ignore_eos` the output has the full length", ignores_eos),
    Check::new("use-cache", "without the KV cache the first token is the same", runs_without_cache),
    Check::new("prefix-cache", "only a request that allows it reuses a prompt", caches_prefixes),
    Check::new("stream", "streamed ids and times agree with the answer", streams),
    Check::new("speculation", "drafts change no token, and they are counted", drafts),
    Check::new("sampling", "equal seeds give equal tokens, other seeds differ", samples),
    Check::new("temperature-0", "a temperature of 0 gives the greedy tokens", is_greedy_at_temperature_0),
    Check::new("not-claimed", "the engine refuses features that it does not claim", refuses_unclaimed),
];

fn ignores_eos(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("ignore_eos", |it| it.ignore_eos != IgnoreEos::No)?;
    let line = subject.line(json!({ "max_new_tokens": 64, "ignore_eos": true }));
    subject.generate_verified(&line).map(drop)
}

fn runs_without_cache(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("use_cache_toggle", |it| it.use_cache_toggle)?;
    let without = subject.line(json!({ "max_new_tokens": 6, "use_cache": false }));
    let without = outputs(&subject.generate_verified(&without)?);
    let with = outputs(&subject.generate_verified(&subject.line(json!({ "max_new_tokens": 6 })))?);
    let first = |outputs: &[Value]| outputs.first().map(|output| output[0].clone());
    // Later tokens may differ by rounding. The first token comes from the same pass over the prompt.
    let agree = first(&with) == first(&without) || !subject.hello()?.deterministic;
    require(agree, format!("got {} without the cache, {} with it", json!(without), json!(with)))
}

fn caches_prefixes(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("prefix_cache_toggle", |it| it.prefix_cache_toggle)?;
    let without = subject.line_of_text(&"one two three four ".repeat(12), json!({ "max_new_tokens": 6 }));
    let with = with_fields(without.clone(), &json!({ "prefix_cache": true }));
    let mut answers = Vec::new();
    for line in [&without, &with, &with, &without] {
        answers.push(subject.generate_verified(line)?);
    }
    let tokens: Vec<_> = answers.iter().map(outputs).collect();
    // Fewer rows are computed together, so later tokens may differ by rounding.
    let first = |tokens: &Vec<Value>| tokens.first().map(|output| output[0].clone());
    let agree = tokens.iter().all(|it| first(it) == first(&tokens[0])) || !subject.hello()?.deterministic;
    require(agree, format!("got {} with the cache, {} without it", json!(tokens[2]), json!(tokens[0])))?;
    let cached = |answer: &Answer| first_sequence(answer).and_then(|it| it.cached_prompt_tokens);
    let from_cache = cached(&answers[3]).unwrap_or(0);
    require(
        from_cache == 0,
        format!("took {} from a cache that was not allowed", plural(from_cache, "token")),
    )?;
    require(cached(&answers[2]).is_some(), "has no `cached_prompt_tokens`")?;
    match cached(&answers[2]) {
        Some(0) => absent("no token of a repeated prompt came from the cache"),
        _ => Ok(()),
    }
}

fn streams(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("stream", |it| it.stream)?;
    let line = subject.line(json!({ "id": 1, "max_new_tokens": 12, "iterations": 2, "stream": true }));
    // Streamed text is not compared: the answer may cut the same text into other chunks.
    match subject.hello()?.output {
        Output::Ids => subject.generate_verified(&line).map(drop),
        Output::Text => subject.generate(&line).map(drop),
    }
}

fn drafts(subject: &mut CheckedEngine) -> Outcome {
    let kinds = subject.claims("speculation", |it| !it.speculation.is_empty())?.speculation;
    // Repeated text, because a prompt lookup drafts nothing else.
    let line = subject.line_of_text(&"one two three four ".repeat(12), json!({ "max_new_tokens": 32 }));
    let plain = outputs(&subject.generate_verified(&line)?);
    for kind in kinds {
        let line = with_fields(line.clone(), &json!({ "speculation": kind }));
        let answer = subject.generate_verified(&line)?;
        let with_drafts = outputs(&answer);
        let agree = with_drafts == plain || !subject.hello()?.deterministic;
        require(agree, format!("got {} with drafts, {} without", json!(with_drafts), json!(plain)))?;
        let is_counted = first_sequence(&answer).is_some_and(|it| it.drafted_tokens.is_some());
        require(is_counted, "has no `drafted_tokens` and `accepted_tokens`")?;
        if first_sequence(&answer).is_none_or(|it| it.drafted_tokens == Some(0)) {
            return absent("no token was drafted after repeated text");
        }
    }
    Ok(())
}

fn samples(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("sampling", |it| it.sampling)?;
    let mut sampled = Vec::new();
    for seed in [1, 2, 3, 4, 1, protocol::MAX_INTEGER] {
        let sampling = json!({ "temperature": 1.5, "seed": seed });
        let line = subject.line(json!({ "max_new_tokens": 8, "sampling": sampling }));
        sampled.push(outputs(&subject.generate_verified(&line)?));
    }
    let repeats = sampled[4] == sampled[0] || !subject.hello()?.deterministic;
    require(repeats, "a repeated seed gave another output")?;
    let differ = sampled[..4].iter().any(|output| *output != sampled[0]);
    require(differ, "four seeds gave the same output at a temperature of 1.5")
}

fn is_greedy_at_temperature_0(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("sampling", |it| it.sampling)?;
    subject.claims_determinism()?;
    let line = subject.line(json!({ "max_new_tokens": 8, "sampling": { "temperature": 0, "seed": 5 } }));
    let at_temperature_0 = outputs(&subject.generate_verified(&line)?);
    let greedy = outputs(&subject.generate_verified(&subject.line(json!({ "max_new_tokens": 8 })))?);
    require(
        at_temperature_0 == greedy,
        format!("got {}, greedy gives {}", json!(at_temperature_0), json!(greedy)),
    )
}

fn refuses_unclaimed(subject: &mut CheckedEngine) -> Outcome {
    let capabilities = subject.hello()?.capabilities;
    let unclaimed = unclaimed(subject, &capabilities);
    if unclaimed.is_empty() {
        return absent("the engine claims all features");
    }
    for line in unclaimed {
        subject.expect_refusal(&protocol::encode(&line), &[Unsupported])?;
    }
    Ok(())
}

/// Requests for features that `hello` does not claim. `use_cache: false` is always allowed: an engine without a cache obeys it.
pub fn unclaimed(subject: &CheckedEngine, capabilities: &Capabilities) -> Vec<Value> {
    let claims_eos = capabilities.ignore_eos != IgnoreEos::No;
    let features = [
        (capabilities.prompt, json!({ "prompt": "Hello" })),
        (capabilities.prompt_ids, json!({ "prompt_ids": [3, 4] })),
        (capabilities.stream, subject.line(json!({ "stream": true }))),
        (claims_eos, subject.line(json!({ "ignore_eos": true }))),
        (capabilities.sampling, subject.line(json!({ "sampling": { "temperature": 1.0, "seed": 1 } }))),
    ];
    let unclaimed = features.into_iter().filter(|(claimed, _)| !claimed).map(|(_, line)| line);
    unclaimed.map(|line| with_fields(line, &json!({ "max_new_tokens": 2 }))).collect()
}
