//! Checks of `load`: a possible load follows the request, and an impossible one is refused.

use protocol::FailureKind::{BadRequest, Device, Model, Unavailable, Unsupported};
use protocol::{Facts, FailureKind};
use serde_json::{Value, json};

use super::asking::outputs;
use super::result::Not;
use super::subject::{Check, Subject, absent, wrong};

pub const CHECKS: &[Check] = &[
    Check { name: "load", property: "the engine loads, and `load_ns` fits the clock here", run: loads },
    Check {
        name: "in-effect",
        property: "`loaded` reports the requested device and threads",
        run: says_what_is_in_effect,
    },
    Check {
        name: "all-facts",
        property: "`loaded` reports every fact that tables show",
        run: says_every_fact,
    },
    Check {
        name: "unknown-option",
        property: "the engine refuses an unknown option",
        run: |subject| {
            refuses(subject, "options", json!({ "no-such-option": 1 }), &[BadRequest, Unsupported])
        },
    },
    Check {
        name: "no-such-model",
        property: "the engine refuses a missing model",
        run: |subject| refuses(subject, "model", json!("/no/such/model"), &[Model]),
    },
    Check {
        name: "no-such-device",
        property: "the engine refuses an unknown device",
        run: |subject| {
            refuses(subject, "device", json!("abacus"), &[BadRequest, Unsupported, Unavailable, Device])
        },
    },
    Check { name: "load-again", property: "a second load gives the same output", run: loads_again },
    Check {
        name: "load-in-passing",
        property: "`generate` before any load loads and reports it",
        run: loads_in_passing,
    },
];

fn loads(subject: &mut Subject) -> Result<(), Not> {
    subject.hello()?;
    subject.ready()?;
    let line = subject.load_line();
    let (loaded, elapsed_ns) = subject.load(&line)?;
    if loaded.load_ns == 0 || loaded.load_ns > elapsed_ns {
        return wrong(format!("`load_ns` is {}, but the load took {elapsed_ns} ns", loaded.load_ns));
    }
    match loaded.phases.iter().find(|phase| phase.name.is_empty() || phase.ns > loaded.load_ns) {
        Some(phase) => wrong(format!("phase `{}` took {} ns of {}", phase.name, phase.ns, loaded.load_ns)),
        None => Ok(()),
    }
}

fn says_what_is_in_effect(subject: &mut Subject) -> Result<(), Not> {
    subject.hello()?;
    let asked = subject.load_line();
    let mut line = asked.clone();
    // Any engine can run on one thread, so a larger number did not follow the request. Libraries size their pools once in
    // a process, so this needs a process of its own.
    line["threads"] = 1.into();
    subject.start_afresh()?;
    let facts = subject.load(&line)?.0.facts;
    subject.start_afresh()?;
    let device = asked["device"].as_str().unwrap_or_default();
    match (&facts.device, facts.threads) {
        (None, None) => absent("`loaded` has neither `device` nor `threads`"),
        (Some(found), _) if found.split(':').next() != device.split(':').next() => {
            wrong(format!("expected `device` `{device}`, got `{found}`"))
        }
        (_, Some(threads)) if threads != 1 => wrong(format!("expected 1 in `threads`, got {threads}")),
        _ => Ok(()),
    }
}

fn says_every_fact(subject: &mut Subject) -> Result<(), Not> {
    let missing = missing_facts(&subject.loaded()?.facts);
    if missing.is_empty() { Ok(()) } else { absent(format!("`loaded` has no {}", missing.join(", "))) }
}

fn missing_facts(facts: &Facts) -> Vec<&'static str> {
    let known = [
        ("`device`", facts.device.is_some()),
        ("`weights_dtype`", facts.weights_dtype.is_some()),
        ("`compute_dtype`", facts.compute_dtype.is_some()),
        ("`threads`", facts.threads.is_some()),
        ("`architecture`", facts.architecture.is_some()),
        ("`context_tokens`", facts.context_tokens.is_some()),
        ("`use_cache`", facts.use_cache.is_some()),
        ("`weights_bytes`", facts.weights_bytes.is_some()),
        ("`parameters`", facts.parameters.is_some()),
        ("`vocabulary_size`", facts.vocabulary_size.is_some()),
        ("`eos_ids`", facts.eos_ids.is_some()),
        ("`libraries`", !facts.libraries.is_empty()),
    ];
    known.into_iter().filter(|(_, known)| !known).map(|(name, _)| name).collect()
}

/// A load with one impossible field must fail. The next load must work.
fn refuses(subject: &mut Subject, field: &str, value: Value, kinds: &[FailureKind]) -> Result<(), Not> {
    subject.loaded()?;
    let good = subject.load_line();
    let mut line = good.clone();
    match (line[field].as_object_mut(), value.as_object()) {
        // The preset's other options stay.
        (Some(options), Some(more)) => options.extend(more.clone()),
        _ => line[field] = value,
    }
    subject.send_json(&line)?;
    let deadline = subject.deadlines.load;
    subject.failure(kinds, deadline)?;
    match subject.load(&good) {
        Err(Not::Wrong(what)) => wrong(format!("the next load: {what}")),
        loaded => loaded.map(|_| ()),
    }
}

fn loads_again(subject: &mut Subject) -> Result<(), Not> {
    subject.loaded()?;
    let (load, line) = (subject.load_line(), subject.line(json!({ "max_new_tokens": 8 })));
    let before = outputs(&subject.generate(&line)?);
    subject.load(&load)?;
    let after = outputs(&subject.generate(&line)?);
    let promised = subject.hello()?.deterministic;
    if promised && before != after { wrong("the output differs after a second load") } else { Ok(()) }
}

fn loads_in_passing(subject: &mut Subject) -> Result<(), Not> {
    subject.start_afresh()?;
    let line = subject.line(json!({ "max_new_tokens": 2 }));
    let sent = subject.send_json(&line)?;
    let answer = subject.generated(&line, sent, subject.deadlines.load)?;
    subject.verify(&line, &answer)?;
    match answer.generated.loaded {
        Some(_) => Ok(()),
        None if subject.is_minimal() => absent("the answer does not report its load"),
        None => wrong("the answer has no `loaded` with the facts of its load"),
    }
}
