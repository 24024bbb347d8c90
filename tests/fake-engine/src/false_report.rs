//! False reports: work that differs from the reported work, and answers that break one rule each.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::answer::repeats_an_id;
use crate::fault::has;
use crate::script::Script;

/// Allocates and touches memory, and keeps it until the process ends.
pub fn hold_memory(script: &Script) {
    static MEMORY: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    memory.resize(script.count("resident_bytes") as usize, 1);
}

/// Allocates and touches memory that is never freed.
pub fn leak_memory(script: &Script) {
    std::hint::black_box(vec![1_u8; script.count("leaked_bytes") as usize].leak());
}

/// Threads in a busy loop. Dropping this value ends them.
pub struct BusyThreads(Arc<AtomicBool>);

impl BusyThreads {
    pub fn start(script: &Script) -> Self {
        let should_end = Arc::new(AtomicBool::new(false));
        for _ in 0..script.count("busy_threads") {
            let should_end = Arc::clone(&should_end);
            std::thread::spawn(move || {
                while !should_end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(should_end)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The factor on the times of a request with these prompts, for the fault `repeats_at_once`.
pub fn factor_of_repeated_prompts(script: &Script, prompts: &[Vec<u64>]) -> f64 {
    static KNOWN_PROMPTS: Mutex<BTreeSet<Vec<u64>>> = Mutex::new(BTreeSet::new());
    if !has(script, "repeats_at_once") {
        return 1.0;
    }
    let mut known = KNOWN_PROMPTS.lock().unwrap_or_else(PoisonError::into_inner);
    let new = prompts.iter().filter(|prompt| known.insert((*prompt).clone())).count();
    if new == 0 { 0.05 } else { 1.0 }
}

/// The part of a prompt that the engine computes in place of all of it.
pub fn computed_part(script: &Script, prompt: &[u64]) -> Vec<u64> {
    let computes_all = match script.text("partial_prompts") {
        "text" => repeats_an_id(prompt),
        "patterns" => !repeats_an_id(prompt),
        _ => false,
    };
    if computes_all {
        return prompt.to_vec();
    }
    let last = |ids: usize| prompt[prompt.len().saturating_sub(ids)..].to_vec();
    match script.text("computed_part") {
        "half" => last(prompt.len() / 2),
        "start_and_half" => [prompt[..prompt.len().min(4)].to_vec(), last(prompt.len() / 2)].concat(),
        "last_200" => last(200),
        "last_64" => last(64),
        _ => prompt.to_vec(),
    }
}

/// Adds an id, for the fault `too_many_tokens`.
pub fn add_id(script: &Script, ids: &mut Vec<u64>) {
    if has(script, "too_many_tokens") {
        ids.push(3);
    }
}

/// The reported time for the true time `ns`.
pub fn reported_ns(script: &Script, start_ns: u64, ns: u64) -> u64 {
    let early = has(script, "early_times") || has(script, "early_tokens");
    if early { start_ns + ns.saturating_sub(start_ns) / 2 } else { ns }
}

/// Moves the times of all tokens to the time of the last token, with almost no time between them.
pub fn bunch_times(times: &mut [u64]) {
    const STEP_NS: u64 = 1000;
    let last = times.last().copied().unwrap_or(0);
    for (index_from_end, time) in times.iter_mut().rev().enumerate() {
        *time = (*time).max(last.saturating_sub(index_from_end as u64 * STEP_NS));
    }
}

/// The faults of short requests affect requests that take less than this.
const SHORT_NS: u64 = 40_000_000;
/// The shift of `times_10_ms_early`.
const SHIFT_NS: u64 = 10_000_000;
/// The number of tokens that `grouped_times` stamps together.
const GROUP_TOKENS: usize = 4;

/// Makes the times of an answer without a stream early. These faults leave streamed answers true, because the orchestrator sees
/// each of their tokens arrive.
pub fn make_times_early(script: &Script, generated: &mut Value) {
    for iteration in generated["iterations"].as_array_mut().into_iter().flatten() {
        let (start_ns, end_ns) = (iteration["start_ns"].as_u64(), iteration["end_ns"].as_u64());
        let (Some(start_ns), Some(end_ns)) = (start_ns, end_ns) else { continue };
        let is_short = end_ns.saturating_sub(start_ns) < SHORT_NS;
        let after_start = |ns: u64, percent: u64| start_ns + ns.saturating_sub(start_ns) * percent / 100;
        let mut new_end_ns = end_ns;
        for sequence in iteration["sequences"].as_array_mut().into_iter().flatten() {
            let Some(times) = sequence["token_ns"].as_array_mut() else { continue };
            let mut ns: Vec<u64> = times.iter().filter_map(Value::as_u64).collect();
            if has(script, "halved_short_times") && is_short {
                ns.iter_mut().for_each(|ns| *ns = after_start(*ns, 50));
                new_end_ns = after_start(end_ns, 50);
            }
            let is_early = has(script, "early_first_token") || has(script, "early_first_token_and_end");
            if let (true, true, Some(first)) = (is_early, is_short, ns.first_mut()) {
                *first = after_start(*first, 75);
            }
            if has(script, "early_first_token_and_end") && is_short && ns.len() == 1 {
                new_end_ns = after_start(end_ns, 75);
            }
            if has(script, "times_10_ms_early") {
                ns.iter_mut().for_each(|ns| *ns = ns.saturating_sub(SHIFT_NS).max(start_ns));
                new_end_ns = end_ns.saturating_sub(SHIFT_NS).max(start_ns);
            }
            if has(script, "grouped_times") {
                for group in ns.chunks_mut(GROUP_TOKENS) {
                    let first = group[0];
                    group.iter_mut().for_each(|ns| *ns = first);
                }
            }
            *times = ns.into_iter().map(Value::from).collect();
        }
        iteration["end_ns"] = new_end_ns.into();
    }
}

/// Changes a `token` message, so that it differs from the final answer.
pub fn change_token(script: &Script, token: &mut Value) {
    if has(script, "streams_unknown_sequence") {
        token["sequence"] = 7.into();
    }
    if has(script, "streams_other_times") {
        token["ns"] = (token["ns"].as_u64().unwrap_or(0) + 50_000_000).into();
    }
}

/// Whether the stream leaves out the token with this index.
pub fn omits_token(script: &Script, index: usize) -> bool {
    has(script, "streams_half") && index % 2 == 1
}

/// Changes one iteration of a correct answer, if the script has such a fault.
pub fn change_iteration(script: &Script, iteration: &mut Value) {
    let start_ns = iteration["start_ns"].as_u64().unwrap_or(0);
    if has(script, "early_times") {
        iteration["end_ns"] = reported_ns(script, start_ns, iteration["end_ns"].as_u64().unwrap_or(0)).into();
    }
    if has(script, "ends_before_start") {
        iteration["end_ns"] = start_ns.saturating_sub(1).into();
    }
    if has(script, "no_sequence") {
        iteration["sequences"] = json!([]);
    }
    let mut last_ns = None;
    for sequence in iteration["sequences"].as_array_mut().into_iter().flatten() {
        change_sequence(script, start_ns, sequence);
        last_ns = sequence["token_ns"].as_array().and_then(|times| times.last()?.as_u64());
    }
    if has(script, "ends_before_last_token") {
        iteration["end_ns"] = last_ns.unwrap_or(1).saturating_sub(1).into();
    }
}

fn change_sequence(script: &Script, start_ns: u64, sequence: &mut Value) {
    for time in sequence["token_ns"].as_array_mut().into_iter().flatten() {
        *time = reported_ns(script, start_ns, time.as_u64().unwrap_or(0)).into();
    }
    if let Some(times) = sequence["token_ns"].as_array_mut() {
        match times.as_mut_slice() {
            [first, ..] if has(script, "first_token_at_start") => *first = start_ns.into(),
            [first, _, third, ..] if has(script, "times_out_of_order") => *third = first.clone(),
            _ => {}
        }
        if has(script, "extra_time") {
            times.extend(times.last().cloned());
        }
    }
    if let Some(count) = sequence["output_tokens"].as_u64().filter(|_| has(script, "miscounted_chunks")) {
        let first = &mut sequence["chunks"][0]["tokens"];
        *first = (first.as_u64().unwrap_or(0) + count).into();
    }
    if has(script, "no_output") {
        sequence.as_object_mut().map(|sequence| (sequence.remove("output_ids"), sequence.remove("token_ns")));
    }
    if has(script, "more_cached_than_sent") {
        sequence["cached_prompt_tokens"] = (sequence["prompt_tokens"].as_u64().unwrap_or(0) + 1).into();
    }
    for (fault, finish) in [("says_eos", "eos"), ("says_cancelled", "cancelled")] {
        if has(script, fault) {
            sequence["finish"] = finish.into();
        }
    }
}

/// Changes a correct answer, if the script has such a fault.
pub fn change_answer(script: &Script, generated: &mut Value) {
    let Some(iterations) = generated["iterations"].as_array_mut() else { return };
    iterations.iter_mut().for_each(|iteration| change_iteration(script, iteration));
    if has(script, "two_iterations") {
        iterations.extend_from_within(..1);
    }
    if has(script, "unrequested_warmup") {
        let warmup = iterations.clone();
        generated["warmup_iterations"] = warmup.into();
    }
    if has(script, "rate_without_facts") {
        generated["iterations"] = json!([]);
        generated["summary"] = json!({ "tokens_per_second": 123_456.7, "first_token_ms": 0.01 });
    }
    if has(script, "no_id") {
        generated.as_object_mut().map(|generated| generated.remove("id"));
    }
}
