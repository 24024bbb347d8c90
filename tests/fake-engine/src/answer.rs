//! The engine's answers as JSON values, and the deliberate errors in them.
//!
//! This module reads no clock and writes nothing: the same script, environment and request give the same answer.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use crate::fault::has;
use crate::kept_prompts;
use crate::rounding::{self, NEAR_TIE_LOGPROB, Work};
use crate::script::{Script, merged};
use crate::text;

pub const EOS: u64 = 2;
pub const BOS: u64 = 1;
/// The smallest id in an output, apart from EOS.
pub const FIRST_ORDINARY_ID: u64 = 3;

pub fn failed(id: &Value, kind: &str, message: &str) -> Value {
    let mut failed = json!({ "type": "failed", "kind": kind, "message": message });
    // The protocol has no number above 2^53 - 1 as an id, so such an id is not repeated.
    if !id.is_null() && id.as_u64().is_none_or(|id| id < 1 << 53) {
        failed["id"] = id.clone();
    }
    failed
}

pub fn hello(script: &Script) -> Value {
    if has(script, "says_unavailable") {
        let mut failed = failed(&Value::Null, "unavailable", "the library `libfake.so.4` is not installed");
        failed["hint"] = "apt-get install libfake4".into();
        return failed;
    }
    let capabilities = json!({
        "devices": ["cpu", "cuda"], "dtypes": ["f32", "bf16", "f16", "q8_0", "q4_0", "q4_k"], "formats": ["safetensors"], "architectures": ["llama"],
        "stream": true, "prompt_ids": true, "batch": 8, "concurrency": 1, "use_cache_toggle": true,
        "prefix_cache_toggle": kept_prompts::has_cache(script),
        "padding_sides": ["left", "right"], "speculation": ["prompt_lookup"], "ignore_eos": "exact", "sampling": true, "score": true, "facts": true,
    });
    json!({
        "type": "hello",
        "protocol": if has(script, "wrong_version") { 999 } else { 1 },
        "engine": script.text("engine"),
        "version": script.text("version"),
        "output": script.text("output"),
        // The precision of token times.
        "stamp": script.text("stamp"),
        "deterministic": script.flag("deterministic"),
        "capabilities": merged(capabilities, script.value("capabilities")),
    })
}

/// The answer `loaded`, with the configuration that `load` requested or the environment gives.
pub fn loaded(script: &Script, load: &Value) -> Value {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let setting = |field: &str, variable: &str, default: &str| {
        let text = load[field].as_str().map(str::to_owned).or_else(|| environment(variable));
        text.unwrap_or_else(|| default.to_owned())
    };
    let threads = environment("ORCHESTRATE_THREADS").and_then(|text| text.parse().ok());
    let dtype = setting("dtype", "ORCHESTRATE_DTYPE", "f32");
    let loaded = json!({
        "type": "loaded",
        "load_ns": script.count("load_ns"),
        "phases": [{ "name": "pretend", "ns": script.count("load_ns") }],
        "device": setting("device", "ORCHESTRATE_DEVICE", "cpu"),
        "weights_dtype": dtype, "compute_dtype": dtype, "kv_dtype": dtype,
        "threads": load["threads"].as_u64().or(threads).unwrap_or(1),
        "architecture": "llama",
        "context_tokens": script.count("context_tokens"),
        "use_cache": true,
        "weights_bytes": 4_000_000, "parameters": 1_000_000, "hidden_size": 64,
        "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 128,
        "vocabulary_size": script.count("vocabulary_size"),
        "eos_ids": [EOS], "bos_id": BOS, "prefix_cache": false,
        "libraries": { "pretence": script.text("version") },
    });
    let mut loaded = merged(loaded, script.value("loaded"));
    if let Some(memory) = device_memory(script) {
        loaded["device_memory"] = memory;
    }
    loaded
}

pub fn device_memory(script: &Script) -> Option<Value> {
    let bytes = script.value("memory_bytes").as_u64()?;
    Some(json!({ "in_use_bytes": bytes, "peak_bytes": 2 * bytes }))
}

pub fn facts(script: &Script) -> Value {
    let mut facts = loaded(script, &Value::Null);
    facts["type"] = "facts".into();
    for field in ["load_ns", "phases"] {
        facts.as_object_mut().map(|facts| facts.remove(field));
    }
    merged(facts, script.value("facts"))
}

/// The output ids for one prompt. Each id depends on `salt` (0 for greedy decoding) and on all earlier ids, apart from
/// `ignored_ids`. So a prompt that ends with the first ids of its output gets the other ids of that output.
pub fn output_ids(
    script: &Script,
    prompt: &[u64],
    max_new_tokens: u64,
    ignore_eos: bool,
    salt: u64,
) -> Vec<u64> {
    let vocabulary = script.count("vocabulary_size").max(FIRST_ORDINARY_ID + 1);
    let eos_position = match max_new_tokens / 2 {
        half if has(script, "ends_at_early_eos") || has(script, "continues_after_eos") => Some(half),
        _ => script.value("eos_at").as_u64(),
    };
    let wrong_from = script.value("wrong_from").as_u64().unwrap_or(u64::MAX);
    let mut state = state_after(script, salt, prompt);
    let mut all_ids = prompt.to_vec();
    let mut id = |position: u64| {
        let likeliest = greedy(script, Work::Generate, seen(script, state, &all_ids), vocabulary);
        let id = match script.value("token_ids").get(position as usize).and_then(Value::as_u64) {
            _ if eos_position == Some(position) => EOS,
            Some(id) => id,
            None if position >= wrong_from => other_id(script, likeliest),
            None => likeliest,
        };
        state = mix(state ^ id);
        all_ids.push(id);
        id
    };
    let mut ids: Vec<u64> = (0..max_new_tokens).map(&mut id).collect();
    let stops = has(script, "ends_at_early_eos") || (!ignore_eos && !has(script, "continues_after_eos"));
    if let Some(position) = ids.iter().position(|&id| id == EOS).filter(|_| stops) {
        ids.truncate(position + 1);
    }
    if has(script, "wrong_token_count") {
        ids.pop();
    }
    if let (true, Some(last)) = (has(script, "id_beyond_vocabulary"), ids.last_mut()) {
        *last = vocabulary;
    }
    ids
}

/// One sequence of an answer. `finish` is the reason why the sequence ends.
pub fn sequence(script: &Script, prompt: &[u64], ids: &[u64], times: &[u64], finish: &str) -> Value {
    let prompt_tokens = prompt.len() + usize::from(has(script, "wrong_prompt_tokens"));
    let mut parts = text::parts(script, ids);
    if has(script, "half_of_text") {
        parts.truncate(ids.len() / 2);
        parts.resize(ids.len(), String::new());
    }
    let text = parts.concat();
    if script.text("output") == "text" {
        let chunk = |(text, ns): (&String, &u64)| json!({ "ns": ns, "text": text, "tokens": 1 });
        let chunks: Vec<Value> = parts.iter().zip(times).map(chunk).collect();
        return json!({
            "prompt_tokens": prompt_tokens, "chunks": chunks, "output_tokens": ids.len(),
            "count_source": "scripted", "finish": finish, "text": text,
        });
    }
    let times = if has(script, "missing_time") { &times[..times.len().saturating_sub(1)] } else { times };
    json!({
        "prompt_tokens": prompt_tokens, "output_ids": ids, "token_ns": times, "finish": finish, "text": text,
    })
}

/// Makes times of an iteration wrong, if the script has such a fault. An iteration is one pass over the prompts.
pub fn make_times_wrong(script: &Script, iteration: &mut Value) {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let (start_ns, end_ns) = (iteration["start_ns"].as_u64(), iteration["end_ns"].as_u64());
    for sequence in iteration["sequences"].as_array_mut().into_iter().flatten() {
        let last = sequence["token_ns"].as_array_mut().and_then(|times| times.last_mut());
        let Some(last) = last else { continue };
        if has(script, "times_backwards") {
            *last = start_ns.unwrap_or(1).saturating_sub(1).into();
        }
        if has(script, "times_in_the_future") {
            *last = (last.as_u64().unwrap_or(0) + HOUR_NS).into();
        }
    }
    if has(script, "times_in_the_future") {
        iteration["end_ns"] = (end_ns.unwrap_or(0) + HOUR_NS).into();
    }
    if has(script, "negative_end_ns") {
        iteration["end_ns"] = (-1).into();
    }
    if has(script, "missing_end_ns") {
        iteration.as_object_mut().map(|iteration| iteration.remove("end_ns"));
    }
}

/// The log-probability of the greedy id.
const LIKELIEST_LOGPROB: f64 = -0.05;
/// The highest log-probability of an id that is neither the likeliest nor, at a near tie, the second. The lowest is twice this
/// number. With the default vocabulary, the sum of all probabilities is below 1.
const OTHER_LOGPROB: f64 = -8.0;

/// Another id of the vocabulary.
pub fn other_id(script: &Script, id: u64) -> u64 {
    let ordinary_ids = script.count("vocabulary_size").max(FIRST_ORDINARY_ID + 1) - FIRST_ORDINARY_ID;
    FIRST_ORDINARY_ID + (id.saturating_sub(FIRST_ORDINARY_ID) + 1) % ordinary_ids
}

/// The log-probability of every id after the first, by the model that `output_ids` uses.
pub fn logprobs(script: &Script, ids: &[u64]) -> Vec<f64> {
    let offset = script.value("score_offset").as_f64().unwrap_or(0.0);
    let noise = script.value("score_noise").as_f64().unwrap_or(0.0);
    let vocabulary = script.count("vocabulary_size").max(FIRST_ORDINARY_ID + 1);
    let mut state = state_after(script, 0, &ids[..ids.len().min(1)]);
    let mut logprobs: Vec<f64> = Vec::new();
    for (index, &id) in ids.iter().enumerate().skip(1) {
        let before = seen(script, state, &ids[..index]);
        let likely = if id == likeliest(before, vocabulary) {
            Some(likeliest_logprob(script, before))
        } else {
            let gap = rounding::gap(script, before).filter(|_| id == second(before, vocabulary));
            gap.map(|gap| NEAR_TIE_LOGPROB - gap)
        };
        state = next_state(script, state, index, id);
        let logprob = likely.unwrap_or_else(|| OTHER_LOGPROB * (1.0 + uniform(state)));
        // The noise depends only on the ids, as the error of a narrow dtype does. Noise raises no probability above 1.
        let error = rounding::error(script, Work::Score, state);
        let error = if noise == 0.0 { error } else { error + noise * normal(mix(state)) };
        let noisy = if error == 0.0 { logprob } else { (logprob + error).min(0.0) };
        logprobs.push(noisy + offset);
    }
    if has(script, "wrong_scores") {
        logprobs.pop();
    }
    // In JSON this is null.
    if let Some(last) = logprobs.last_mut().filter(|_| has(script, "impossible_tokens")) {
        *last = f64::NEG_INFINITY;
    }
    logprobs
}

/// The most likely id at the position of every id after the first, and its log-probability.
pub fn most_likely(script: &Script, ids: &[u64]) -> (Vec<u64>, Vec<f64>) {
    let vocabulary = script.count("vocabulary_size").max(FIRST_ORDINARY_ID + 1);
    let states = ids.iter().enumerate().scan(mix(0), |state, (index, &id)| {
        *state = next_state(script, *state, index, id);
        Some(seen(script, *state, &ids[..=index]))
    });
    let states = states.take(ids.len().saturating_sub(1));
    let likeliest =
        |state| (greedy(script, Work::Score, state, vocabulary), likeliest_logprob(script, state));
    states.map(likeliest).unzip()
}

/// The model's state after these ids. The next id depends only on this state and on the script, so fake engines with the same
/// settings agree.
fn state_after(script: &Script, salt: u64, ids: &[u64]) -> u64 {
    ids.iter().enumerate().fold(mix(salt), |state, (index, &id)| next_state(script, state, index, id))
}

/// The state on which the next id depends. `state` is the state after all of these ids. On text, a model with `looks_back` uses
/// only the last ids.
fn seen(script: &Script, state: u64, ids: &[u64]) -> u64 {
    match script.count("looks_back") as usize {
        0 => state,
        _ if repeats_an_id(ids) => state,
        last => ids[ids.len().saturating_sub(last)..].iter().fold(mix(1), |state, id| mix(state ^ id)),
    }
}

/// Whether one id is repeated after the middle of these ids. Text has no such repetition.
pub fn repeats_an_id(ids: &[u64]) -> bool {
    let middle = ids.len() * 9 / 16;
    ids.len() >= 32 && ids[middle..middle + 3].iter().all(|id| *id == ids[middle])
}

fn next_state(script: &Script, state: u64, index: usize, id: u64) -> u64 {
    let is_ignored = (1..=script.count("ignored_ids")).contains(&(index as u64));
    if is_ignored { state } else { mix(state ^ id) }
}

/// The greedy next id with the rounding of this work.
fn greedy(script: &Script, work: Work, state: u64, vocabulary: u64) -> u64 {
    match rounding::is_second_likelier(script, work, state) {
        true => second(state, vocabulary),
        false => likeliest(state, vocabulary),
    }
}

fn likeliest_logprob(script: &Script, state: u64) -> f64 {
    if rounding::gap(script, state).is_some() { NEAR_TIE_LOGPROB } else { LIKELIEST_LOGPROB }
}

/// The second likeliest id at a near tie.
fn second(state: u64, vocabulary: u64) -> u64 {
    FIRST_ORDINARY_ID
        + (likeliest(state, vocabulary) - FIRST_ORDINARY_ID + 1) % (vocabulary - FIRST_ORDINARY_ID)
}

/// The greedy next id without rounding.
fn likeliest(state: u64, vocabulary: u64) -> u64 {
    FIRST_ORDINARY_ID + mix(state) % (vocabulary - FIRST_ORDINARY_ID)
}

/// A number between 0 and 1.
pub fn uniform(seed: u64) -> f64 {
    ((mix(seed) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// A number of the standard normal distribution (Box and Muller, 1958).
pub fn normal(seed: u64) -> f64 {
    (-2.0 * uniform(seed).ln()).sqrt() * (TAU * uniform(mix(seed))).cos()
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
