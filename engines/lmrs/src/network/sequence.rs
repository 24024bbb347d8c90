//! The network's memory of a growing text.

use anyhow::Result;

use crate::cache::Cache;
use crate::kernels::attention::Stored;
use crate::model::decoder;
use crate::shape::Shape;

#[derive(Debug)]
pub struct Sequence {
    pub(super) cache: Cache,
}

/// Ids that continue a sequence.
pub type Span<'a> = decoder::Span<'a, Sequence>;

impl Sequence {
    /// An empty sequence with room for `context` tokens. No page is touched before it is used.
    pub fn new(shape: &Shape, context: usize, stored: Stored) -> Result<Self> {
        Ok(Self { cache: Cache::new(shape, context.min(shape.context), stored)? })
    }

    /// Tokens that the sequence holds.
    pub fn tokens(&self) -> usize {
        self.cache.tokens()
    }

    pub fn context(&self) -> usize {
        self.cache.context()
    }

    pub fn truncate(&mut self, tokens: usize) {
        self.cache.truncate(tokens);
    }
}
