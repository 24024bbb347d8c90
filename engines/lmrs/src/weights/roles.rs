//! Where the parts of a model stand in the network. GGUF's names are the same for all architectures, so they are asked for,
//! whatever the format; matrices that a file has fused are taken apart.

use std::collections::HashMap;
use std::ops::Range;

use model_files::{Layout, Part};
use protocol::{Failed, FailureKind};

use crate::shape::Shape;

/// The parts of a model by the names that GGUF has for them.
pub struct Roles<'a> {
    shape: &'a Shape,
    parts: HashMap<&'a str, &'a Part>,
}

/// Some outputs of a matrix, or all of them: rows as GGUF has them.
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

    pub fn find(&self, name: &str) -> Option<&'a Part> {
        self.parts.get(name).copied()
    }

    pub fn need(&self, name: &str) -> Result<&'a Part, Failed> {
        let missing = || Failed::new(FailureKind::Model, format!("tensor `{name}` is missing"));
        self.find(name).ok_or_else(missing)
    }

    pub fn of_layer(&self, layer: usize, name: &str) -> Option<&'a Part> {
        self.find(&format!("blk.{layer}.{name}"))
    }

    /// `None` where the network goes without.
    pub fn stand(&self, layer: usize, role: Role) -> Result<Option<Stand<'a>>, Failed> {
        let Shape { heads, kv_heads, head_dim, inner, .. } = *self.shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let fused = |name, range| self.some_of(layer, name, range);
        let whole = |name| self.whole(layer, name);
        let has = |name: &str| self.of_layer(layer, &format!("{name}.weight")).is_some();
        let gated = has("ffn_gate");
        let both = self.of_layer(layer, "ffn_up.weight").is_some_and(|up| outputs(up) == 2 * inner as u64);
        let found = match role {
            Role::Queries if has("attn_q") => whole("attn_q"),
            Role::Queries => fused("attn_qkv", 0..queries),
            Role::Keys if has("attn_k") => whole("attn_k"),
            Role::Keys => fused("attn_qkv", queries..queries + keys),
            Role::Values if has("attn_v") => whole("attn_v"),
            Role::Values => fused("attn_qkv", queries + keys..queries + 2 * keys),
            Role::AttentionOutput => whole("attn_output"),
            Role::Gate if gated => whole("ffn_gate"),
            Role::Gate if both => fused("ffn_up", 0..inner),
            Role::Gate => return Ok(None),
            Role::Up if both && !gated => fused("ffn_up", inner..2 * inner),
            Role::Up => whole("ffn_up"),
            Role::Down => whole("ffn_down"),
        };
        found.map(Some)
    }

    pub fn output(&self) -> Result<Stand<'a>, Failed> {
        let matrix = match self.find("output.weight") {
            Some(own) => own,
            None => self.need("token_embd.weight")?,
        };
        Ok(Stand { matrix, rows: 0..outputs(matrix), bias: None })
    }

    fn whole(&self, layer: usize, name: &str) -> Result<Stand<'a>, Failed> {
        let matrix = self.need(&format!("blk.{layer}.{name}.weight"))?;
        let bias = self.of_layer(layer, &format!("{name}.bias"));
        Ok(Stand { matrix, rows: 0..outputs(matrix), bias })
    }

    fn some_of(&self, layer: usize, name: &str, rows: Range<usize>) -> Result<Stand<'a>, Failed> {
        let whole = self.whole(layer, name)?;
        let rows = rows.start as u64..rows.end as u64;
        if rows.end > whole.rows.end {
            let what =
                format!("tensor `blk.{layer}.{name}.weight` has {} rows of {}", whole.rows.end, rows.end);
            return Err(Failed::new(FailureKind::Model, what));
        }
        Ok(Stand { rows, ..whole })
    }
}

fn outputs(part: &Part) -> u64 {
    part.rows_in(Layout::Gguf).0
}
