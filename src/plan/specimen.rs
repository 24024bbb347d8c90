//! A workload for the tests of this module and of the modules that use it.

use super::scenario::Kind;
use super::{Prompt, Workload};

pub fn workload(prompt: Prompt) -> Workload {
    Workload {
        scenario: "decode".into(),
        label: "decode".into(),
        kind: Kind::Warm,
        headline: crate::plan::MetricId::DECODE_RATE,
        prompt,
        max_new_tokens: 8,
        ignore_eos: true,
        sampling: None,
        warmup: Some(1),
        rounds: 2,
    }
}
