//! The description and the capabilities of the engine, from constants.

use crate::formats::Format;
use crate::shape::architectures::ARCHITECTURES;
use protocol::{Capabilities, HelloFacts, Padding};

pub const CONCURRENCY: u32 = 8;
/// The most sequences of one request, each with its own cache.
const BATCH: u32 = 64;
pub fn hello() -> HelloFacts {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    let hello = engine_kit::hello("lmrs", env!("CARGO_PKG_VERSION"));
    let capabilities = Capabilities {
        dtypes: Format::names().map(str::to_string).collect(),
        formats: words(&["safetensors", "gguf"]),
        architectures: ARCHITECTURES.iter().map(|architecture| architecture.name.to_string()).collect(),
        batch: BATCH,
        concurrency: CONCURRENCY,
        use_cache_toggle: true,
        padding_sides: vec![Padding::Left, Padding::Right, Padding::Packed],
        sampling: true,
        score: true,
        ..hello.capabilities
    };
    HelloFacts { capabilities, ..hello }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_that_model_files_knows_is_offered_and_no_other() {
        let known = model_files::ARCHITECTURES.iter().map(|architecture| architecture.name);
        let mut known: Vec<&str> = known.collect();
        let mut offered: Vec<&str> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
        known.sort_unstable();
        offered.sort_unstable();
        assert_eq!(offered, known);
    }
}
