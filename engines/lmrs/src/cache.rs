//! Keys and values of one sequence (KV cache).
//!
//! They are stored in blocks of 64 positions. So the touched memory is a prefix of the reserved memory, and each block has one
//! long range for each head of a layer. Within a block, layer by layer and head by head:
//!
//! ```text
//! keys    [head_dim][64 positions]                   a vector holds one dimension of many positions: no sums across lanes
//! values  [head_dim / 64][64 positions][64]          strips of 64 dimensions; the last one may be narrower
//! ```

use std::ops::Range;

use anyhow::{Context, Result};
use memmap2::{MmapMut, MmapOptions};

use crate::kernels::attention::{BLOCK_POSITIONS, KvDtype};
use crate::region::{LARGE_PAGE_BYTES, request_large_pages};
use crate::shape::Shape;

/// Dimensions side by side in a strip of values.
pub const STRIP_DIMS: usize = 64;
/// The dimensions of values are padded to a multiple of this number, which fills whole vectors at every level.
const DIM_PADDING: usize = 16;

/// The number of values of a head at one position, padded to whole vectors.
pub fn value_dims(head_dim: usize) -> usize {
    head_dim.next_multiple_of(DIM_PADDING)
}

#[derive(Debug)]
pub struct Cache {
    sizes: Sizes,
    memory: MmapMut,
    /// Positions stored so far.
    tokens: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// The most positions.
    context: usize,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    kv_dtype: KvDtype,
}

/// Keys and values of one head in one block.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    pub keys: &'a [u8],
    pub values: &'a [u8],
}

#[derive(Debug)]
pub struct TileMut<'a> {
    bytes: &'a mut [u8],
    sizes: Sizes,
}

impl Sizes {
    fn key_bytes(self) -> usize {
        BLOCK_POSITIONS * self.head_dim * self.kv_dtype.bytes()
    }

    fn tile_bytes(self) -> usize {
        self.key_bytes() + BLOCK_POSITIONS * value_dims(self.head_dim) * self.kv_dtype.bytes()
    }

    fn layer_bytes(self) -> usize {
        self.tile_bytes() * self.kv_heads
    }

    fn block_bytes(self) -> usize {
        self.layer_bytes() * self.layers
    }
}

impl Cache {
    /// Reserves memory for `context` tokens, at most the context of the model. No page is touched before it is used.
    pub fn new(shape: &Shape, context: usize, kv_dtype: KvDtype) -> Result<Self> {
        let (layers, kv_heads, head_dim) = (shape.layers, shape.kv_heads, shape.head_dim);
        let context = context.min(shape.context);
        let sizes = Sizes { context, layers, kv_heads, head_dim, kv_dtype };
        let bytes = context.div_ceil(BLOCK_POSITIONS).checked_mul(sizes.block_bytes());
        let reserve = |bytes: usize| MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon().ok();
        let memory = bytes.and_then(reserve);
        let memory = memory.with_context(|| {
            format!("cannot allocate the keys and values of {context} tokens\nhint: request fewer `max_new_tokens`")
        })?;
        // With blocks smaller than a large page, a large page would bring in many blocks that stay unused for long.
        if sizes.block_bytes() >= LARGE_PAGE_BYTES {
            request_large_pages(&memory);
        }
        Ok(Self { sizes, memory, tokens: 0 })
    }

    pub fn bytes_for(shape: &Shape, tokens: usize, kv_dtype: KvDtype) -> usize {
        let (layers, kv_heads, head_dim) = (shape.layers, shape.kv_heads, shape.head_dim);
        let sizes = Sizes { context: tokens, layers, kv_heads, head_dim, kv_dtype };
        tokens.div_ceil(BLOCK_POSITIONS).saturating_mul(sizes.block_bytes())
    }

    pub fn context(&self) -> usize {
        self.sizes.context
    }

    pub fn kv_dtype(&self) -> KvDtype {
        self.sizes.kv_dtype
    }

    /// Bytes between a head's tiles in two consecutive blocks.
    pub fn block_bytes(&self) -> usize {
        self.sizes.block_bytes()
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    /// Counts this many more tokens as stored. The caller has written them in every layer.
    pub fn grow(&mut self, tokens: usize) {
        assert!(self.tokens + tokens <= self.sizes.context, "a write beyond the end of the cache");
        self.tokens += tokens;
    }

    pub fn tile(&self, layer: usize, head: usize, block: usize) -> Tile<'_> {
        let sizes = self.sizes;
        let at = block * sizes.block_bytes() + layer * sizes.layer_bytes() + head * sizes.tile_bytes();
        let (keys, values) = self.memory[at..at + sizes.tile_bytes()].split_at(sizes.key_bytes());
        Tile { keys, values }
    }

    /// The tiles of every head in these blocks, each as `(block, head, tile)`.
    pub fn tiles_mut(
        &mut self,
        layer: usize,
        blocks: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, TileMut<'_>)> {
        let sizes = self.sizes;
        let all = self.memory.chunks_exact_mut(sizes.block_bytes()).enumerate();
        let blocks = all.skip(blocks.start).take(blocks.len());
        blocks.flat_map(move |(block, bytes)| {
            let layer = &mut bytes[layer * sizes.layer_bytes()..][..sizes.layer_bytes()];
            let tiles = layer.chunks_exact_mut(sizes.tile_bytes()).enumerate();
            tiles.map(move |(head, bytes)| (block, head, TileMut { bytes, sizes }))
        })
    }
}

impl TileMut<'_> {
    pub fn head_dim(&self) -> usize {
        self.sizes.head_dim
    }

    /// Writes one position of the block: `key` and `value` of one head.
    pub fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let number_bytes = self.sizes.kv_dtype.bytes();
        let mut buffer = [0; 4 * STRIP_DIMS];
        let (keys, values) = self.bytes.split_at_mut(self.sizes.key_bytes());
        for (dims, columns) in
            key.chunks(STRIP_DIMS).zip(keys.chunks_mut(STRIP_DIMS * BLOCK_POSITIONS * number_bytes))
        {
            let narrowed = self.sizes.kv_dtype.narrow(dims, &mut buffer);
            for (number, column) in narrowed
                .chunks_exact(number_bytes)
                .zip(columns.chunks_exact_mut(BLOCK_POSITIONS * number_bytes))
            {
                column[position * number_bytes..][..number_bytes].copy_from_slice(number);
            }
        }
        let mut dims_left = value_dims(self.sizes.head_dim);
        let mut strips = values;
        for dims in value.chunks(STRIP_DIMS) {
            let width = dims_left.min(STRIP_DIMS);
            let (strip, rest) = strips.split_at_mut(BLOCK_POSITIONS * width * number_bytes);
            let narrowed = self.sizes.kv_dtype.narrow(dims, &mut buffer);
            strip[position * width * number_bytes..][..narrowed.len()].copy_from_slice(narrowed);
            (strips, dims_left) = (rest, dims_left - width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::tiny;

    #[test]
    fn a_write_changes_only_the_cell_of_its_position() {
        let shape = Shape { layers: 2, kv_heads: 3, head_dim: 72, ..tiny() };
        let mut cache = Cache::new(&shape, 200, KvDtype::F32).unwrap();
        let key: Vec<f32> = (0..72).map(|dim| dim as f32 + 1.0).collect();
        let value: Vec<f32> = key.iter().map(|x| -x).collect();
        for (block, head, mut tile) in cache.tiles_mut(1, 1..2) {
            assert_eq!(block, 1);
            if head == 2 {
                tile.write(5, &key, &value);
            }
        }
        let number = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap());
        let tile = cache.tile(1, 2, 1);
        for dim in 0..72 {
            assert_eq!(number(tile.keys, dim * BLOCK_POSITIONS + 5), key[dim]);
            // 80 padded dimensions: a strip of 64 and one of 16.
            let at = if dim < 64 { 5 * 64 + dim } else { 64 * BLOCK_POSITIONS + 5 * 16 + dim - 64 };
            assert_eq!(number(tile.values, at), value[dim]);
        }
        let other_cells = [(0, 2, 1), (1, 1, 1), (1, 2, 0), (1, 2, 2)];
        for (layer, head, block) in other_cells {
            let tile = cache.tile(layer, head, block);
            assert!(tile.keys.iter().chain(tile.values).all(|byte| *byte == 0));
        }
        assert_eq!(nonzero_numbers(tile), 2 * 72); // a key and a value
    }

    fn nonzero_numbers(tile: Tile) -> usize {
        tile.keys.chunks_exact(4).chain(tile.values.chunks_exact(4)).filter(|bytes| *bytes != [0; 4]).count()
    }

    #[test]
    fn truncation_removes_the_last_tokens_and_no_others() {
        let mut cache = Cache::new(&tiny(), 100, KvDtype::F16).unwrap();
        cache.grow(70);
        cache.truncate(80);
        assert_eq!(cache.tokens(), 70);
        cache.truncate(3);
        assert_eq!(cache.tokens(), 3);
    }
}
