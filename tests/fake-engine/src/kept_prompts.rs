//! A prefix cache: the ids of earlier requests, whose keys and values an engine would keep.

use std::sync::{Mutex, PoisonError};

use crate::fault::has;
use crate::script::Script;

static KEPT: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

pub fn has_cache(script: &Script) -> bool {
    script.flag("prefix_cache") || has(script, "uses_prefixes_always")
}

/// The ids at the start of a prompt that need no computation; at least the last one needs it. `None` if the engine has no prefix cache.
pub fn cached(script: &Script, prompt: &[u64], is_allowed: bool) -> Option<usize> {
    let shared = |kept: &Vec<u64>| kept.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    let longest =
        || KEPT.lock().unwrap_or_else(PoisonError::into_inner).iter().map(shared).max().unwrap_or(0);
    let cached = if is_allowed { longest().min(prompt.len() - 1) } else { 0 };
    has_cache(script).then_some(cached)
}

/// Keeps a prompt with its output, if the request allows it.
pub fn keep(prompt: &[u64], output: &[u64], is_allowed: bool) {
    if is_allowed {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push([prompt, output].concat());
    }
}
