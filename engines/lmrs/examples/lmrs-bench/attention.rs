//! Attention of all heads of a layer: one token at several depths, or a whole prompt. Keys and values fill so many layers that no
//! processor cache holds them, as in a model, where weights are read in between.

use std::rc::Rc;

use anyhow::Result;
use lmrs::attention::{Attention, Heads, Scratch, Segment, attend};
use lmrs::cache::Cache;
use lmrs::kernels::Level;
use lmrs::kernels::attention::{BLOCK_POSITIONS, KvDtype};
use lmrs::matrix::Rows;
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::shape::{Activation, Shape};

use crate::Case;
use crate::arguments::Arguments;

/// `(tokens, depth)`: the last `tokens` of `depth` positions.
const POSITIONS: [(usize, usize); 4] = [(1, 128), (1, 1024), (1, 8192), (512, 512)];
/// `(heads, heads of keys, dimensions)` of llama-3.2-1b and qwen2.5-0.5b.
const HEADS: [(usize, usize, usize); 2] = [(32, 8, 64), (14, 2, 64)];
/// Bytes of the keys and values of all layers: more than the processor caches of every machine that was tried.
const CACHE_BYTES: usize = 128 << 20;
/// A case of one token repeats its work in each `Case::run_turn` until it has read at least this many bytes of keys and values.
const MIN_TURN_BYTES: usize = 16 << 20;

pub fn cases(arguments: &Arguments) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (heads, kv_heads, head_dim) in HEADS {
        for (tokens, depth) in POSITIONS {
            let heads = Heads { heads, kv_heads, head_dim };
            let layers = CACHE_BYTES / layer_bytes(heads, depth);
            let cache = Rc::new(filled_cache(&shape(heads, layers, depth), depth)?);
            for &level in &arguments.levels {
                cases.push(case(
                    heads,
                    (tokens, depth),
                    (Rc::clone(&cache), layers),
                    level,
                    arguments.threads,
                ));
            }
        }
    }
    Ok(cases)
}

fn layer_bytes(heads: Heads, depth: usize) -> usize {
    2 * depth * heads.kv_heads * heads.head_dim * KvDtype::F16.bytes()
}

fn case(
    heads: Heads,
    (tokens, depth): (usize, usize),
    (cache, layers): (Rc<Cache>, usize),
    level: Level,
    threads: usize,
) -> Case {
    let Heads { heads: query_heads, kv_heads, head_dim } = heads;
    let bytes = layer_bytes(heads, depth);
    let mut queries = Rows::new(tokens, query_heads * head_dim);
    for (at, number) in queries.all_mut().iter_mut().enumerate() {
        *number = (at % 11) as f32 / 11.0;
    }
    let ops = Ops::new(Pool::new(threads), level);
    let (mut out, mut scratch, mut layer) = (Rows::default(), Scratch::default(), 0);
    let work = move || {
        let segment = Segment { cache: &cache, rows: 0..tokens, start: depth - tokens };
        let attention = Attention { ops: &ops, heads, layer, window: None, queries: &queries };
        attend(&attention, &mut scratch, &[segment], &mut out);
        layer = (layer + 1) % layers;
    };
    // A pair is a token and a position that it attends to: itself or earlier. In each dimension of a pair, the key takes 2
    // operations and the value takes 2.
    let pairs = tokens * (2 * depth - tokens + 1) / 2;
    Case {
        labels: [format!("attention at {depth}"), format!("{query_heads}/{kv_heads}x{head_dim}")],
        tokens,
        level,
        units: &["f32_fma"],
        bytes: bytes as f64,
        operations: 4.0 * (pairs * query_heads * head_dim) as f64,
        pieces: if tokens > 1 { 1 } else { MIN_TURN_BYTES.div_ceil(bytes) },
        work: Box::new(work),
        piece_seconds: Vec::new(),
    }
}

fn filled_cache(shape: &Shape, depth: usize) -> Result<Cache> {
    let mut cache = Cache::new(shape, depth, KvDtype::F16)?;
    let numbers: Vec<f32> = (0..shape.head_dim).map(|dim| (dim * 7 % 5) as f32 - 2.0).collect();
    for layer in 0..shape.layers {
        for (_, _, mut tile) in cache.tiles_mut(layer, 0..depth.div_ceil(BLOCK_POSITIONS)) {
            (0..BLOCK_POSITIONS).for_each(|position| tile.write(position, &numbers, &numbers));
        }
    }
    cache.grow(depth);
    Ok(cache)
}

fn shape(heads: Heads, layers: usize, context: usize) -> Shape {
    Shape {
        vocabulary: 1,
        hidden: 1,
        inner: 1,
        layers,
        heads: heads.heads,
        kv_heads: heads.kv_heads,
        head_dim: heads.head_dim,
        context,
        layer_norm: false,
        norm_epsilon: 0.0,
        rotation: None,
        activation: Activation::Silu,
        windows: vec![None; layers],
        embedding_scale: 1.0,
        tied: true,
    }
}
