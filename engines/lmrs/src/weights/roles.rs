//! The roles of a model's parts in the network. The parts are looked up by their GGUF names, which are the same for all
//! architectures, in any file format. Fused matrices are split.

use std::collections::HashMap;
use std::ops::Range;

use model_files::{Format, Part};
use protocol::Failed;

use super::files::model;
use crate::shape::Shape;

/// The parts of a model by GGUF name.
pub struct Roles<'a> {
    shape: &'a Shape,
    parts: HashMap<&'a str, &'a Part>,
}

/// Some or all outputs of a matrix, as rows in the layout of GGUF.
#[derive(Debug, Clone)]
pub struct Stand<'a> {
    pub matrix: &'a Part,
    pub rows: Range<u64>,
    pub bias: Option<&'a Part>,
}

/// The matrices of a layer, in the order of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Queries,
    Keys,
    Values,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

impl Role {
    pub const ALL: [Self; 7] =
        [Self::Queries, Self::Keys, Self::Values, Self::AttentionOutput, Self::Gate, Self::Up, Self::Down];
}

impl<'a> Roles<'a> {
    pub fn new(shape: &'a Shape, parts: &'a [Part]) -> Self {
        Self { shape, parts: parts.iter().map(|part| (part.gguf.as_str(), part)).collect() }
    }

    /// A part with this number of rows and columns; a vector has one row. A part of another size is an error.
    pub fn find(&self, name: &str, rows: usize, columns: usize) -> Result<Option<&'a Part>, Failed> {
        let Some(part) = self.parts.get(name) else { return Ok(None) };
        let (found, size) = (part.rows_in(Format::Gguf), (rows as u64, columns as u64));
        if found == size {
            return Ok(Some(part));
        }
        let what = format!(
            "tensor `{name}` has {} rows of {}, and the sizes of its config lead to {rows} of {columns}",
            found.0, found.1
        );
        Err(model(what))
    }

    pub fn need(&self, name: &str, rows: usize, columns: usize) -> Result<&'a Part, Failed> {
        self.find(name, rows, columns)?.ok_or_else(|| model(format!("tensor `{name}` is missing")))
    }

    /// The matrix of a role; `None` if the network does without.
    pub fn stand(&self, layer: usize, role: Role) -> Result<Option<Stand<'a>>, Failed> {
        let Shape { hidden, inner, heads, kv_heads, head_dim, .. } = *self.shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let whole = |name, outputs, inputs| self.whole(layer, name, outputs, inputs);
        let of_three = |rows| self.some_of(layer, "attn_qkv", queries + 2 * keys, rows);
        let of_two = |rows| self.some_of(layer, "ffn_up", 2 * inner, rows);
        let part = |name: &str| self.parts.get(format!("blk.{layer}.{name}.weight").as_str());
        let gated = part("ffn_gate").is_some();
        let both = part("ffn_up").is_some_and(|up| up.rows_in(Format::Gguf).0 == 2 * inner as u64);
        let found = match role {
            Role::Queries if part("attn_q").is_some() => whole("attn_q", queries, hidden),
            Role::Queries => of_three(0..queries),
            Role::Keys if part("attn_k").is_some() => whole("attn_k", keys, hidden),
            Role::Keys => of_three(queries..queries + keys),
            Role::Values if part("attn_v").is_some() => whole("attn_v", keys, hidden),
            Role::Values => of_three(queries + keys..queries + 2 * keys),
            Role::AttentionOutput => whole("attn_output", hidden, queries),
            Role::Gate if gated => whole("ffn_gate", inner, hidden),
            Role::Gate if both => of_two(0..inner),
            Role::Gate => return Ok(None),
            Role::Up if both && !gated => of_two(inner..2 * inner),
            Role::Up => whole("ffn_up", inner, hidden),
            Role::Down => whole("ffn_down", hidden, inner),
        };
        found.map(Some)
    }

    pub fn output(&self) -> Result<Stand<'a>, Failed> {
        let Shape { vocabulary, hidden, .. } = *self.shape;
        let matrix = match self.find("output.weight", vocabulary, hidden)? {
            Some(own) => own,
            None => self.need("token_embd.weight", vocabulary, hidden)?,
        };
        Ok(Stand { matrix, rows: 0..vocabulary as u64, bias: None })
    }

    fn whole(&self, layer: usize, name: &str, outputs: usize, inputs: usize) -> Result<Stand<'a>, Failed> {
        let matrix = self.need(&format!("blk.{layer}.{name}.weight"), outputs, inputs)?;
        let bias = self.find(&format!("blk.{layer}.{name}.bias"), 1, outputs)?;
        Ok(Stand { matrix, rows: 0..outputs as u64, bias })
    }

    /// Some rows of a matrix whose input is the hidden state.
    fn some_of(&self, layer: usize, name: &str, all: usize, rows: Range<usize>) -> Result<Stand<'a>, Failed> {
        let whole = self.whole(layer, name, all, self.shape.hidden)?;
        Ok(Stand { rows: rows.start as u64..rows.end as u64, ..whole })
    }
}
