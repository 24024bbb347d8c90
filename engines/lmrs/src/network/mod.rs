//! The transformer, as its paper has it. It knows shapes, weights and the order of things; how a product is computed is
//! `ops`' business, and whose model it is nobody's.

mod pass;
mod sequence;

use std::fmt;

use anyhow::{Result, ensure};

use crate::activation::apply;
use crate::attention::{self, Heads};
use crate::kernels::lanes::all_finite;
use crate::ops::Ops;
use crate::pool::Pool;
use crate::products;
use crate::rope::Angles;
use crate::rows::Rows;
use crate::shape::Shape;
use crate::share::{SHARED, share_if};
use crate::weights::{Layer, Linear, Weights};
use pass::Pass;
pub use sequence::{Sequence, Span};

/// Tokens that go through the network together: a longer prompt goes in pieces, so that activations stay small.
pub const CHUNK: usize = 256;

/// Which logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: a prompt that goes on.
    Nothing,
    /// Those after the last token of each span.
    Last,
    /// Those after every token.
    All,
    /// After the last token of each span the id whose logit is the largest, the lowest of equals.
    Largest,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// `[wanted tokens, vocabulary]`, span after span.
    Logits(Rows),
    Ids(Vec<u32>),
}

#[derive(Debug)]
pub struct Network {
    pub shape: Shape,
    pub weights: Weights,
    room: Room,
}

/// What a pass computes in.
#[derive(Debug, Default)]
struct Room {
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
    attention: attention::Space,
}

/// Weights with a number that is none in them would give ids all the same.
#[derive(Debug)]
pub struct NoNumbers;

impl fmt::Display for NoNumbers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("its weights lead to logits that are no numbers")
    }
}

impl std::error::Error for NoNumbers {}

impl Network {
    pub fn new(shape: Shape, weights: Weights) -> Self {
        Self { shape, weights, room: Room::default() }
    }

    /// Takes the ids of each span into its sequence, and answers what is wanted. Ids beyond the vocabulary, and more of them
    /// than a sequence has room for, are refused before anything is computed.
    pub fn forward(&mut self, ops: &mut Ops, spans: &mut [Span], wanted: Wanted) -> Result<Answer> {
        let (mut logits, mut ids) = (Rows::new(0, self.shape.vocabulary), Vec::new());
        self.run(ops, spans, wanted, &mut |_, rows, largest| {
            logits.append(rows.all());
            ids.extend_from_slice(largest);
        })?;
        Ok(if wanted == Wanted::Largest { Answer::Ids(ids) } else { Answer::Logits(logits) })
    }

    /// The logits after every token of a long text, in memory that does not grow with it: `each` gets those of the next tokens.
    pub fn forward_each(
        &mut self,
        ops: &mut Ops,
        span: Span,
        each: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<()> {
        self.run(ops, &mut [span], Wanted::All, &mut |pool, rows, _| each(pool, rows))
    }

    fn run(
        &mut self,
        ops: &mut Ops,
        spans: &mut [Span],
        wanted: Wanted,
        take: &mut dyn FnMut(&Pool, &Rows, &[u32]),
    ) -> Result<()> {
        self.check(spans)?;
        let mut answer = Rows::default();
        for pass in Pass::cut(spans, CHUNK) {
            self.layers(ops, spans, &pass);
            let rows = pass.wanted_rows(spans, wanted);
            let Self { weights, room, .. } = self;
            if wanted == Wanted::Largest && rows.len() == 1 {
                room.normed.reshape(1, room.hidden.width);
                weights.norm.apply(room.hidden.row(rows[0]), room.normed.row_mut(0));
                let largest = ops.largest(room.normed.row(0), weights.head()).ok_or(NoNumbers)?;
                take(&ops.pool, &Rows::default(), &[largest]);
                continue;
            }
            for rows in rows.chunks(LOGIT_ROWS) {
                room.normed.reshape(rows.len(), room.hidden.width);
                for (to, from) in rows.iter().enumerate() {
                    weights.norm.apply(room.hidden.row(*from), room.normed.row_mut(to));
                }
                ops.multiply(&room.normed, &mut [(weights.head(), &mut answer)]);
                match wanted {
                    Wanted::Largest => take(&ops.pool, &Rows::default(), &largest(&answer)?),
                    _ => {
                        ensure!(all_finite(answer.all()), NoNumbers);
                        take(&ops.pool, &answer, &[]);
                    }
                }
            }
        }
        Ok(())
    }

    /// All layers, for the tokens of one pass, whose keys and values are in their caches afterwards.
    fn layers(&mut self, ops: &mut Ops, spans: &mut [Span], pass: &Pass) {
        let Self { shape, weights, room } = self;
        let Shape { head_dim, heads, kv_heads, .. } = *shape;
        pass.embed(spans, weights, shape.embedding_scale, &mut room.hidden);
        if let Some(rotation) = &shape.rotation {
            rotation.angles(pass.positions().into_iter(), &mut room.angles);
        }
        for (number, layer) in weights.layers.iter().enumerate() {
            let Room { hidden, normed, queries, keys, values, attended, gate, up, added, angles, attention } =
                &mut *room;

            layer.attention_norm.apply_rows(ops, hidden, normed);
            ops.multiply(
                normed,
                &mut [
                    (&layer.queries.matrix, queries),
                    (&layer.keys.matrix, keys),
                    (&layer.values.matrix, values),
                ],
            );
            place_heads(ops, shape, layer, angles, queries, keys, values);
            pass.remember(ops, spans, number, keys, values);
            let heads = Heads { heads, kv_heads, head_dim };
            let parts = pass.parts(spans);
            attention::attend(
                ops,
                attention,
                heads,
                (number, shape.windows[number]),
                &parts,
                queries,
                attended,
            );
            ops.multiply(attended, &mut [(&layer.attention_output.matrix, added)]);
            add(ops, hidden, added, &layer.attention_output);

            layer.feed_forward_norm.apply_rows(ops, hidden, normed);
            match &layer.gate {
                Some(gate_) => {
                    ops.multiply(normed, &mut [(&gate_.matrix, gate), (&layer.up.matrix, up)]);
                    apply(ops, shape.activation, (gate, gate_), Some((up, &layer.up)));
                }
                None => {
                    ops.multiply(normed, &mut [(&layer.up.matrix, gate)]);
                    apply(ops, shape.activation, (gate, &layer.up), None);
                }
            }
            ops.multiply(gate, &mut [(&layer.down.matrix, added)]);
            add(ops, hidden, added, &layer.down);
        }
        pass.keep(spans);
    }

    fn check(&self, spans: &[Span]) -> Result<()> {
        for span in spans {
            let (held, room) = (span.sequence.tokens(), span.sequence.context());
            ensure!(
                span.ids.len() <= room - held,
                "{} tokens after {held} do not fit a context of {room}",
                span.ids.len()
            );
            let beyond = span.ids.iter().find(|id| **id as usize >= self.shape.vocabulary);
            ensure!(
                beyond.is_none(),
                "id {} is outside of the vocabulary of {}",
                beyond.copied().unwrap_or_default(),
                self.shape.vocabulary
            );
        }
        Ok(())
    }
}

/// Logits that are held at once while a text is scored: 32 rows of 128,256 are 16 MB.
const LOGIT_ROWS: usize = 32;

/// Biases, norms of heads, and the turn that tells their positions.
fn place_heads(
    ops: &Ops,
    shape: &Shape,
    layer: &Layer,
    angles: &Angles,
    queries: &mut Rows,
    keys: &mut Rows,
    values: &mut Rows,
) {
    let count = queries.tokens();
    let (query_width, key_width) = (queries.width, keys.width);
    let rows =
        queries.all_mut().chunks_exact_mut(query_width).zip(keys.all_mut().chunks_exact_mut(key_width));
    let rows = rows.zip(values.all_mut().chunks_exact_mut(key_width)).enumerate();
    share_if(count >= SHARED, &ops.pool, rows, |_, (token, ((query, key), value))| {
        layer.values.add_bias(value);
        let both = [(query, &layer.queries, &layer.query_norm), (key, &layer.keys, &layer.key_norm)];
        for (heads, linear, norm) in both {
            linear.add_bias(heads);
            if let Some(norm) = norm {
                heads.chunks_exact_mut(shape.head_dim).for_each(|head| norm.apply_in_place(head));
            }
            if shape.rotation.is_some() {
                angles.turn(token, heads, shape.head_dim);
            }
        }
    });
}

/// `hidden += added`, and the bias of the matrix that made it.
fn add(ops: &Ops, hidden: &mut Rows, added: &Rows, linear: &Linear) {
    let (count, width) = (hidden.tokens(), hidden.width);
    let rows = hidden.all_mut().chunks_exact_mut(width).zip(added.all().chunks_exact(width));
    share_if(count >= SHARED, &ops.pool, rows, |_, (hidden, added)| {
        hidden.iter_mut().zip(added).for_each(|(hidden, added)| *hidden += added);
        linear.add_bias(hidden);
    });
}

/// After each token.
fn largest(logits: &Rows) -> Result<Vec<u32>, NoNumbers> {
    (0..logits.tokens()).map(|row| products::largest(logits.row(row)).ok_or(NoNumbers)).collect()
}
