//! Models of real shapes with random weights: the same work for an engine as with the real ones, without a download.

mod random;
mod shape;

use anyhow::{Context, Result};

use crate::Config;
use crate::architecture::{Architecture, Layout};
use crate::tokenizer;
use crate::write::Watch;
use crate::write::model::{self, Content, Goal, Written};
pub use random::RandomWeights;
pub use shape::{SHAPES, Shape};

/// Writes the model of this shape and seed.
pub fn synthesise(shape: &Shape, seed: u64, goal: &Goal, watch: Watch) -> Result<Written> {
    model::check(goal.format, goal.dtype)?;
    // Errors before this line come from the command; errors after it come from the config.
    let told = || format!("`{}`", shape.source.display());
    let config = Config::from_json(shape.config.clone(), &shape.generation).with_context(told)?;
    let architecture = Architecture::of(&config, Layout::HuggingFace).with_context(told)?;
    let parts = architecture.parts(&config).with_context(told)?;
    let dtypes = model::dtypes(&parts, goal).with_context(told)?;
    let vocabulary = &shape.tokenizer;
    let tables = tokenizer::synthesise(vocabulary.tokens, vocabulary.pre, &vocabulary.specials);
    let mut tables = tables.with_context(told)?;
    (tables.bos, tables.eos) = (config.bos_id, config.eos_ids.first().copied());
    tables.add_bos = config.bos_id.filter(|_| vocabulary.add_bos);
    let content = Content {
        name: shape.name.clone(),
        architecture,
        config,
        generation: Some(shape.generation.clone()).filter(|generation| !generation.is_null()),
        tokenizer: Some(tables),
        beside: Vec::new(),
    };
    model::write(&content, &parts, &dtypes, &RandomWeights { seed }, goal, watch)
}
