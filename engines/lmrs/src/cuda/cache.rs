//! Keys and values of one sequence in device memory: `[layer][keys, values][kv_head][capacity][head_dim]` in f16.

use std::rc::Rc;

use protocol::Failed;

use super::driver::{Address, Gpu, Memory};
use crate::shape::Shape;

pub struct CudaCache {
    memory: Memory,
    /// The most positions.
    capacity: usize,
    /// Positions stored so far.
    tokens: usize,
}

impl CudaCache {
    /// Allocates memory for all positions, unlike memory of a CPU, which is touched only as it fills.
    pub fn new(gpu: &Rc<Gpu>, shape: &Shape, capacity: usize) -> Result<Self, Failed> {
        // Zeros, so that no position is ever read as NaN.
        let memory = gpu.allocate_zeros(bytes_for(shape, capacity))?;
        Ok(Self { memory, capacity, tokens: 0 })
    }

    pub fn address(&self) -> Address {
        self.memory.address()
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    /// Counts this many more tokens as stored.
    pub fn grow(&mut self, tokens: usize) {
        assert!(self.tokens + tokens <= self.capacity, "a write beyond the end of the cache");
        self.tokens += tokens;
    }
}

/// The bytes of a cache for this number of tokens.
pub fn bytes_for(shape: &Shape, tokens: usize) -> usize {
    let Shape { layers, kv_heads, head_dim, .. } = *shape;
    (2 * layers * kv_heads * head_dim * size_of::<half::f16>()).saturating_mul(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::cuda::kernels::tests::llama_1b;
    use crate::kernels::attention::KvDtype;

    #[test]
    fn a_cache_has_as_many_bytes_as_that_of_a_cpu() {
        assert_eq!(bytes_for(&llama_1b(), 4096), 134_217_728);
        assert_eq!(bytes_for(&llama_1b(), 4096), Cache::bytes_for(&llama_1b(), 4096, KvDtype::F16));
    }
}
