//! The forward pass of a transformer: shapes, weights and the order of operations. `ops` computes the products.

mod pass;
mod row_ops;

use std::fmt;

use anyhow::{Result, ensure};
use engine_kit::OrFail;
use protocol::{Failed, FailureKind};

use crate::attention::{self, Attention, Heads};
use crate::cache::Cache;
use crate::kernels::attention::KvDtype;
use crate::kernels::lanes::all_finite;
use crate::kernels::rows::MAX_DECODE_TOKENS;
use crate::matrix::Rows;
use crate::model::MAX_PASS_ROWS;
use crate::model::decoder::{self, Decoder, MAX_DECODE_ROWS};
pub use crate::model::decoder::{Predictions, Wanted};
use crate::ops::{self, Ops};
use crate::pool::{MIN_SHARED_ROWS, Pool};
use crate::shape::Shape;
use crate::weights::{Layer, Linear, Weights};
use pass::Pass;
use row_ops::activate;
pub use row_ops::{Angles, Norm, Rotation};

pub type Span<'a> = decoder::Span<'a, Cache>;

/// The most tokens in one pass: longer prompts go in pieces, so that activations stay small.
pub const MAX_PASS_TOKENS: usize = 256;

#[derive(Debug)]
pub struct Network {
    pub shape: Shape,
    pub weights: Weights,
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Buffers {
    hidden: Rows,   // [tokens, hidden]
    normed: Rows,   // [tokens, hidden]
    queries: Rows,  // [tokens, heads * head_dim]
    keys: Rows,     // [tokens, kv_heads * head_dim]
    values: Rows,   // [tokens, kv_heads * head_dim]
    attended: Rows, // [tokens, heads * head_dim]
    gate: Rows,     // [tokens, inner]
    up: Rows,       // [tokens, inner]
    added: Rows,    // [tokens, hidden]
    angles: Angles,
    attention: attention::Scratch,
}

/// The error for logits that are NaN or infinite: an id from them would mean nothing.
#[derive(Debug)]
pub struct NotFinite;

impl fmt::Display for NotFinite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the model's weights lead to logits that are NaN or infinite")
    }
}

impl std::error::Error for NotFinite {}

impl Network {
    pub fn new(shape: Shape, weights: Weights) -> Self {
        Self { shape, weights, buffers: Buffers::default() }
    }

    /// Appends the ids of each span to its cache, and computes the requested results. An id outside of the vocabulary, or
    /// more ids than a cache can hold, are an error before any computation.
    pub fn forward(
        &mut self,
        ops: &mut Ops,
        spans: &mut [Span],
        predictions: &mut Predictions,
    ) -> Result<()> {
        self.check(spans)?;
        predictions.ids.clear();
        predictions.logits.reshape(0, self.shape.vocabulary);
        let mut logits = Rows::default();
        for pass in Pass::cut(spans, MAX_PASS_TOKENS) {
            self.run_layers(ops, spans, &pass);
            let wanted_rows = pass.wanted(spans);
            if let [(row, Wanted::Largest)] = wanted_rows[..] {
                predictions.ids.push(self.largest(ops, row)?);
                continue;
            }
            for rows in wanted_rows.chunks(MAX_LOGIT_ROWS) {
                self.logits(ops, rows.iter().map(|(row, _)| *row), &mut logits);
                for (at, (_, wanted)) in rows.iter().enumerate() {
                    let logits = logits.row(at);
                    if *wanted == Wanted::Logits {
                        ensure!(all_finite(logits), NotFinite);
                        predictions.logits.append(logits);
                    } else {
                        predictions.ids.push(ops::largest(logits).ok_or(NotFinite)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes the logits after every token of a long text in bounded memory. `on_logits` gets the logits of a few tokens at
    /// a time.
    pub fn forward_each(
        &mut self,
        ops: &mut Ops,
        cache: &mut Cache,
        ids: &[u32],
        on_logits: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<()> {
        let spans = &mut [Span { cache, ids, wanted: Wanted::Nothing }];
        self.check(spans)?;
        let mut logits = Rows::default();
        for pass in Pass::cut(spans, MAX_PASS_TOKENS) {
            self.run_layers(ops, spans, &pass);
            for first in (0..pass.tokens()).step_by(MAX_LOGIT_ROWS) {
                self.logits(ops, first..pass.tokens().min(first + MAX_LOGIT_ROWS), &mut logits);
                ensure!(all_finite(logits.all()), NotFinite);
                on_logits(&ops.pool, &logits);
            }
        }
        Ok(())
    }

    /// Runs all layers for the tokens of one pass. Their keys and values are in the caches afterwards.
    fn run_layers(&mut self, ops: &mut Ops, spans: &mut [Span], pass: &Pass) {
        let Self { shape, weights, buffers } = self;
        let Shape { head_dim, heads, kv_heads, .. } = *shape;
        pass.embed(spans, weights, shape.embedding_scale, &mut buffers.hidden);
        if let Some(rotation) = &shape.rotation {
            rotation.angles(pass.positions().into_iter(), &mut buffers.angles);
        }
        for (number, layer) in weights.layers.iter().enumerate() {
            let Buffers {
                hidden,
                normed,
                queries,
                keys,
                values,
                attended,
                gate,
                up,
                added,
                angles,
                attention,
            } = &mut *buffers;

            layer.attention_norm.apply_rows(ops, hidden, normed);
            ops.multiply(
                normed,
                &mut [
                    (&layer.queries.matrix, queries),
                    (&layer.keys.matrix, keys),
                    (&layer.values.matrix, values),
                ],
            );
            prepare_heads(ops, shape, layer, angles, Projected { queries, keys, values });
            pass.store(ops, spans, number, keys, values);
            let heads = Heads { heads, kv_heads, head_dim };
            let segments = pass.segments(spans);
            let window = shape.windows[number];
            let layer_attention = Attention { ops, heads, layer: number, window, queries };
            attention::attend(&layer_attention, attention, &segments, attended);
            ops.multiply(attended, &mut [(&layer.attention_output.matrix, added)]);
            add(ops, hidden, added, &layer.attention_output);

            layer.feed_forward_norm.apply_rows(ops, hidden, normed);
            match &layer.gate {
                Some(gate_linear) => {
                    ops.multiply(normed, &mut [(&gate_linear.matrix, gate), (&layer.up.matrix, up)]);
                    activate(ops, shape.activation, (gate, gate_linear), Some((up, &layer.up)));
                }
                None => {
                    // The result of `up` goes into the buffer `gate`, which `down` reads.
                    ops.multiply(normed, &mut [(&layer.up.matrix, gate)]);
                    activate(ops, shape.activation, (gate, &layer.up), None);
                }
            }
            ops.multiply(gate, &mut [(&layer.down.matrix, added)]);
            add(ops, hidden, added, &layer.down);
        }
        pass.commit(spans);
    }

    /// Computes the logits after these rows of the pass, `[rows, vocabulary]`.
    fn logits(&mut self, ops: &mut Ops, rows: impl ExactSizeIterator<Item = usize>, logits: &mut Rows) {
        let Self { weights, buffers, .. } = self;
        buffers.normed.reshape(rows.len(), buffers.hidden.width);
        for (to, from) in rows.enumerate() {
            weights.norm.apply(buffers.hidden.row(from), buffers.normed.row_mut(to));
        }
        ops.multiply(&buffers.normed, &mut [(weights.output_matrix(), logits)]);
    }

    /// The id with the largest logit after this row; among equals, the lowest id.
    fn largest(&mut self, ops: &mut Ops, row: usize) -> Result<u32, NotFinite> {
        let Self { weights, buffers, .. } = self;
        buffers.normed.reshape(1, buffers.hidden.width);
        weights.norm.apply(buffers.hidden.row(row), buffers.normed.row_mut(0));
        ops.largest(buffers.normed.row(0), weights.output_matrix()).ok_or(NotFinite)
    }

    fn check(&self, spans: &[Span]) -> Result<()> {
        for span in spans {
            let (cached, capacity) = (span.cache.tokens(), span.cache.context());
            ensure!(
                span.ids.len() <= capacity - cached,
                "{} tokens after {cached} exceed the context of {capacity}",
                span.ids.len()
            );
            let invalid = span.ids.iter().find(|id| **id as usize >= self.shape.vocabulary);
            ensure!(
                invalid.is_none(),
                "id {} is outside of the vocabulary of {}",
                invalid.copied().unwrap_or_default(),
                self.shape.vocabulary
            );
        }
        Ok(())
    }
}

/// The most rows of logits that are computed at once: 32 rows of a vocabulary of 128,256 take 16 MB.
const MAX_LOGIT_ROWS: usize = 32;

/// A layer's queries, keys and values of the hidden state.
struct Projected<'a> {
    queries: &'a mut Rows,
    keys: &'a mut Rows,
    values: &'a mut Rows,
}

/// Applies biases, head norms and rotary positions.
fn prepare_heads(ops: &Ops, shape: &Shape, layer: &Layer, angles: &Angles, projected: Projected) {
    let Projected { queries, keys, values } = projected;
    let count = queries.tokens();
    let (query_width, key_width) = (queries.width, keys.width);
    let rows =
        queries.all_mut().chunks_exact_mut(query_width).zip(keys.all_mut().chunks_exact_mut(key_width));
    let rows = rows.zip(values.all_mut().chunks_exact_mut(key_width)).enumerate();
    ops.pool.share_if(count >= MIN_SHARED_ROWS, rows, |_, (token, ((query, key), value))| {
        layer.values.add_bias(value);
        let parts = [(query, &layer.queries, &layer.query_norm), (key, &layer.keys, &layer.key_norm)];
        for (heads, linear, norm) in parts {
            linear.add_bias(heads);
            if let Some(norm) = norm {
                heads.chunks_exact_mut(shape.head_dim).for_each(|head| norm.apply_in_place(head));
            }
            if shape.rotation.is_some() {
                angles.rotate(token, heads, shape.head_dim);
            }
        }
    });
}

/// `hidden += added + bias`, with the bias of the matrix that computed `added`.
fn add(ops: &Ops, hidden: &mut Rows, added: &Rows, linear: &Linear) {
    let (count, width) = (hidden.tokens(), hidden.width);
    let rows = hidden.all_mut().chunks_exact_mut(width).zip(added.all().chunks_exact(width));
    ops.pool.share_if(count >= MIN_SHARED_ROWS, rows, |_, (hidden, added)| {
        hidden.iter_mut().zip(added).for_each(|(hidden, added)| *hidden += added);
        linear.add_bias(hidden);
    });
}

const _: () = assert!(
    MAX_DECODE_ROWS == MAX_DECODE_TOKENS,
    "`MAX_DECODE_ROWS` is the number of rows that kernels decode at once"
);
const _: () = assert!(
    MAX_PASS_ROWS <= MAX_PASS_TOKENS,
    "a chunk of a prompt must be one pass: other cuts could leave a pass of a few rows"
);

/// The smallest capacity of a cache, in tokens, unless the context is shorter. Untouched memory costs almost nothing, and with
/// this capacity most requests can reuse the same memory.
pub const MIN_CACHE_TOKENS: usize = 4096;

/// A network with its weights and its threads.
pub struct NetworkDecoder {
    pub network: Network,
    pub ops: Ops,
    /// The most tokens of a cache.
    pub context: usize,
    /// The number type of keys and values.
    pub kv_dtype: KvDtype,
}

impl Decoder for NetworkDecoder {
    type Cache = Cache;

    fn new_cache(&mut self, ids: usize) -> Result<Cache, Failed> {
        let capacity = ids.next_power_of_two().max(MIN_CACHE_TOKENS).min(self.context);
        Cache::new(&self.network.shape, capacity, self.kv_dtype).or_fail(FailureKind::OutOfMemory)
    }

    fn capacity(&self, cache: &Cache) -> usize {
        cache.context()
    }

    fn forward(&mut self, spans: &mut [Span<'_>], predictions: &mut Predictions) -> Result<(), Failed> {
        self.network.forward(&mut self.ops, spans, predictions).map_err(to_failed)
    }

    fn forward_each(
        &mut self,
        cache: &mut Cache,
        ids: &[u32],
        on_logits: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed> {
        self.network.forward_each(&mut self.ops, cache, ids, on_logits).map_err(to_failed)
    }

    fn truncate(&mut self, cache: &mut Cache, ids: usize) {
        cache.truncate(ids);
    }
}

/// `NotFinite` is an error of the model's weights. Other errors are internal, because the kit checks requests.
fn to_failed(error: anyhow::Error) -> Failed {
    let kind = if error.is::<NotFinite>() { FailureKind::Model } else { FailureKind::Internal };
    Failed::new(kind, format!("{error:#}"))
}
