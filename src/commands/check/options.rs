//! Checks of optional fields: they work where hello claims them, and are refused, not ignored, elsewhere.

use protocol::FailureKind::{BadRequest, Unsupported};
use protocol::{Capabilities, IgnoreEos, Output};
use serde_json::{Value, json};

use super::asking::outputs;
use super::result::Not;
use super::subject::{Check, Subject, absent, wrong};

pub const CHECKS: &[Check] = &[
    Check {
        name: "ignore-eos",
        property: "with `ignore_eos` the output has the full length",
        run: ignores_eos,
    },
    Check {
        name: "use-cache",
        property: "without its cache the engine gives as many tokens",
        run: does_without_cache,
    },
    Check { name: "stream", property: "streamed ids and times agree with the answer", run: streams },
    Check { name: "sampling", property: "equal seeds give equal tokens, other seeds differ", run: samples },
    Check {
        name: "temperature-0",
        property: "a temperature of 0 gives the greedy tokens",
        run: is_greedy_at_temperature_0,
    },
    Check {
        name: "not-claimed",
        property: "the engine refuses features that it does not claim",
        run: refuses_what_it_cannot_do,
    },
];

fn ignores_eos(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("ignore_eos", |can| can.ignore_eos != IgnoreEos::No)?;
    let line = subject.line(json!({ "max_new_tokens": 64, "ignore_eos": true }));
    subject.verified(&line).map(|_| ())
}

fn does_without_cache(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("use_cache_toggle", |can| can.use_cache_toggle)?;
    let line = subject.line(json!({ "max_new_tokens": 6, "use_cache": false }));
    let without = outputs(&subject.verified(&line)?);
    let line = subject.line(json!({ "max_new_tokens": 6 }));
    let with = outputs(&subject.verified(&line)?);
    let first = |outputs: &[Value]| outputs.first().map(|output| output[0].clone());
    // Later tokens may differ by rounding. The first token comes from the same pass over the prompt.
    match first(&with) == first(&without) || !subject.hello()?.deterministic {
        true => Ok(()),
        false => wrong(format!("got {} without the cache, {} with it", json!(without), json!(with))),
    }
}

fn streams(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("stream", |can| can.stream)?;
    let line = subject.line(json!({ "id": 1, "max_new_tokens": 12, "iterations": 2, "stream": true }));
    // Streamed text is not compared: the final chunks may be cut elsewhere.
    match subject.hello()?.output {
        Output::Ids => subject.verified(&line).map(|_| ()),
        Output::Text => subject.generate(&line).map(|_| ()),
    }
}

fn samples(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("sampling", |can| can.sampling)?;
    let line = |subject: &Subject, seed: u32| {
        let sampling = json!({ "temperature": 1.5, "seed": seed });
        subject.line(json!({ "max_new_tokens": 8, "sampling": sampling }))
    };
    let mut seen = Vec::new();
    for seed in [1, 2, 3, 4] {
        let line = line(subject, seed);
        seen.push(outputs(&subject.verified(&line)?));
    }
    let again = line(subject, 1);
    let again = outputs(&subject.verified(&again)?);
    if subject.hello()?.deterministic && again != seen[0] {
        return wrong("a repeated seed gave another output");
    }
    let differ = seen.iter().any(|output| *output != seen[0]);
    if differ { Ok(()) } else { wrong("four seeds gave the same output at a temperature of 1.5") }
}

fn is_greedy_at_temperature_0(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("sampling", |can| can.sampling)?;
    if !subject.hello()?.deterministic {
        return absent("not claimed: `deterministic`");
    }
    let line = subject.line(json!({ "max_new_tokens": 8, "sampling": { "temperature": 0, "seed": 5 } }));
    let cold = outputs(&subject.verified(&line)?);
    let line = subject.line(json!({ "max_new_tokens": 8 }));
    let greedy = outputs(&subject.verified(&line)?);
    if cold == greedy {
        Ok(())
    } else {
        wrong(format!("got {}, greedy gives {}", json!(cold), json!(greedy)))
    }
}

fn refuses_what_it_cannot_do(subject: &mut Subject) -> Result<(), Not> {
    let can = subject.hello()?.capabilities;
    let unclaimed = unclaimed(&can);
    if unclaimed.is_empty() {
        return absent("the engine claims all features");
    }
    for fields in unclaimed {
        let line = subject.line(fields);
        subject.refused(&protocol::encode(&line), &[Unsupported, BadRequest])?;
    }
    Ok(())
}

/// Requests for features that hello does not claim. `use_cache: false` is always allowed: an engine without a cache obeys it.
fn unclaimed(can: &Capabilities) -> Vec<Value> {
    let asked = [
        (can.stream, json!({ "max_new_tokens": 2, "stream": true })),
        (can.ignore_eos != IgnoreEos::No, json!({ "max_new_tokens": 2, "ignore_eos": true })),
        (can.sampling, json!({ "max_new_tokens": 2, "sampling": { "temperature": 1.0, "seed": 1 } })),
    ];
    asked.into_iter().filter(|(claimed, _)| !claimed).map(|(_, fields)| fields).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unclaimed_features_are_requested_to_be_refused() {
        assert_eq!(unclaimed(&Capabilities::default()).len(), 3);
        let can = Capabilities { stream: true, ignore_eos: IgnoreEos::Masked, ..Capabilities::default() };
        assert_eq!(
            unclaimed(&can),
            [json!({ "max_new_tokens": 2, "sampling": { "temperature": 1.0, "seed": 1 } })]
        );
    }
}
