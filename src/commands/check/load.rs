//! Checks of `load`: the engine loads with the requested settings, and refuses a load that is impossible.

use protocol::FailureKind::{BadRequest, Device, Model, Unavailable, Unsupported};
use protocol::{Facts, FailureKind};
use serde_json::{Value, json};

use super::checked_engine::{Check, CheckedEngine};
use super::requests::outputs;
use super::result::{Finding, Outcome, absent, require, wrong};

pub const CHECKS: &[Check] = &[
    Check::new("load", "the engine loads; `load_ns` is at most the wall time", loads),
    Check::new("in-effect", "`loaded` reports the requested device and threads", reports_its_settings),
    Check::new("main-facts", "`loaded` reports the main optional facts", reports_main_facts),
    Check::new("unknown-option", "an unknown option is a `bad_request`", |it| {
        refuses(it, "options", json!({ "no-such-option": 1 }), &[BadRequest])
    }),
    Check::new("no-such-model", "the engine refuses a missing model", |it| {
        refuses(it, "model", json!("/no/such/model"), &[Model])
    }),
    Check::new("no-such-device", "the engine refuses an unknown device", |it| {
        refuses(it, "device", json!("no-such-device"), &[BadRequest, Unsupported, Unavailable, Device])
    }),
    Check::new("load-again", "a second load gives the same output", loads_again),
    Check::new("load-by-generate", "a `generate` without a `load` loads, and reports it", loads_by_generate),
];

fn loads(subject: &mut CheckedEngine) -> Outcome {
    subject.hello()?;
    subject.ensure_loaded()?;
    let (loaded, elapsed_ns) = subject.load(&subject.load_line())?;
    let load_ns = loaded.load_ns;
    if load_ns == 0 || load_ns > elapsed_ns {
        return wrong(format!("`load_ns` is {load_ns}, but the load took {elapsed_ns} ns"));
    }
    match loaded.phases.iter().find(|phase| phase.name.is_empty() || phase.ns > load_ns) {
        Some(phase) => wrong(format!("phase `{}` took {} ns of {load_ns}", phase.name, phase.ns)),
        None => Ok(()),
    }
}

fn reports_its_settings(subject: &mut CheckedEngine) -> Outcome {
    subject.hello()?;
    let mut line = subject.load_line();
    // Any engine can run on one thread, so a larger number means that the engine ignored the request. Libraries create
    // their thread pools once in a process, so this check needs a new process.
    line["threads"] = 1.into();
    subject.restart()?;
    let facts = subject.load(&line)?.0.facts;
    subject.restart()?;
    let device = line["device"].as_str().unwrap_or_default();
    if let Some(reported) = &facts.device
        && reported.split(':').next() != device.split(':').next()
    {
        return wrong(format!("expected `device` `{device}`, got `{reported}`"));
    }
    if let Some(threads) = facts.threads.filter(|&threads| threads != 1) {
        return wrong(format!("expected 1 in `threads`, got {threads}"));
    }
    // A fact that is not reported is not checked, so the engine does not pass.
    match (facts.device.is_some(), facts.threads.is_some()) {
        (true, true) => Ok(()),
        (true, false) => absent("`threads` is not reported, so it is not checked"),
        (false, true) => absent("`device` is not reported, so it is not checked"),
        (false, false) => absent("`device` and `threads` are not reported, so they are not checked"),
    }
}

fn reports_main_facts(subject: &mut CheckedEngine) -> Outcome {
    let missing = missing_facts(&subject.load_answer()?.facts);
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
    known.into_iter().filter(|(_, is_known)| !is_known).map(|(name, _)| name).collect()
}

/// A load with one impossible field must fail. The next load must work.
fn refuses(subject: &mut CheckedEngine, field: &str, value: Value, kinds: &[FailureKind]) -> Outcome {
    subject.load_answer()?;
    let valid_line = subject.load_line();
    let mut line = valid_line.clone();
    match (line[field].as_object_mut(), value.as_object()) {
        // The options of the preset stay.
        (Some(options), Some(more)) => options.extend(more.clone()),
        _ => line[field] = value,
    }
    subject.send_json(&line)?;
    subject.expect_failure(kinds, subject.deadlines.load)?;
    match subject.load(&valid_line) {
        Err(Finding::Wrong(fault)) => wrong(format!("the next load: {fault}")),
        loaded => loaded.map(drop),
    }
}

fn loads_again(subject: &mut CheckedEngine) -> Outcome {
    subject.load_answer()?;
    let (load, line) = (subject.load_line(), subject.line(json!({ "max_new_tokens": 8 })));
    let before = outputs(&subject.generate(&line)?);
    subject.load(&load)?;
    let after = outputs(&subject.generate(&line)?);
    let is_deterministic = subject.hello()?.deterministic;
    require(!is_deterministic || before == after, "the output differs after a second load")
}

fn loads_by_generate(subject: &mut CheckedEngine) -> Outcome {
    subject.loads_without_option()?;
    subject.restart()?;
    let line = subject.line(json!({ "max_new_tokens": 2 }));
    let sent = subject.send_json(&line)?;
    let answer = subject.receive_generated(&line, sent, true)?;
    subject.verify(&line, &answer)?;
    match answer.generated.loaded {
        Some(_) => Ok(()),
        None if subject.is_minimal() => absent("the answer does not report its load"),
        None => wrong("the answer has no `loaded` with the facts of its load"),
    }
}
