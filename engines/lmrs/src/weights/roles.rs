//! The matrices of the network among a model's tensors: their names, and the format of each.

use std::collections::HashMap;
use std::ops::Range;

use model_files::{Dtype, TensorSpec};
use protocol::{Failed, FailureKind};

use super::files::invalid;
use crate::formats::{F16, Format};
use crate::shape::Shape;

/// The tensors of a model by GGUF name. These names are the same for all architectures and both file formats. Fused matrices are
/// split.
pub struct Roles<'a> {
    shape: &'a Shape,
    specs: HashMap<&'a str, &'a TensorSpec>,
}

/// Some or all outputs of a matrix, as rows in the layout of GGUF.
#[derive(Debug, Clone)]
pub struct MatrixRows<'a> {
    pub matrix: &'a TensorSpec,
    pub rows: Range<u64>,
    pub bias: Option<&'a TensorSpec>,
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
    pub fn new(shape: &'a Shape, specs: &'a [TensorSpec]) -> Self {
        Self { shape, specs: specs.iter().map(|spec| (spec.gguf.as_str(), spec)).collect() }
    }

    /// Finds a tensor by its GGUF name. A tensor with another number of rows or columns is an error. A vector has one row.
    pub fn find(&self, name: &str, rows: usize, columns: usize) -> Result<Option<&'a TensorSpec>, Failed> {
        let Some(spec) = self.specs.get(name) else { return Ok(None) };
        let (actual, size) = (spec.rows_in(model_files::Format::Gguf), (rows as u64, columns as u64));
        if actual == size {
            return Ok(Some(spec));
        }
        let message = format!(
            "tensor `{name}` has {} rows of {}, but the config requires {rows} of {columns}",
            actual.0, actual.1
        );
        Err(invalid(message))
    }

    pub fn require(&self, name: &str, rows: usize, columns: usize) -> Result<&'a TensorSpec, Failed> {
        self.find(name, rows, columns)?.ok_or_else(|| invalid(format!("tensor `{name}` is missing")))
    }

    /// The matrix of a role; `None` if the network has no such matrix.
    pub fn rows_of(&self, layer: usize, role: Role) -> Result<Option<MatrixRows<'a>>, Failed> {
        let Shape { hidden, inner, heads, kv_heads, head_dim, .. } = *self.shape;
        let (query_rows, key_rows) = (heads * head_dim, kv_heads * head_dim);
        let matrix = |name, outputs, inputs| self.matrix(layer, name, outputs, inputs);
        let fused_attention = |rows| self.matrix_part(layer, "attn_qkv", query_rows + 2 * key_rows, rows);
        let fused_feed_forward = |rows| self.matrix_part(layer, "ffn_up", 2 * inner, rows);
        let tensor = |name: &str| self.specs.get(format!("blk.{layer}.{name}.weight").as_str());
        let has_gate_tensor = tensor("ffn_gate").is_some();
        let up_includes_gate =
            tensor("ffn_up").is_some_and(|up| up.rows_in(model_files::Format::Gguf).0 == 2 * inner as u64);
        let matrix_rows = match role {
            Role::Queries if tensor("attn_q").is_some() => matrix("attn_q", query_rows, hidden),
            Role::Queries => fused_attention(0..query_rows),
            Role::Keys if tensor("attn_k").is_some() => matrix("attn_k", key_rows, hidden),
            Role::Keys => fused_attention(query_rows..query_rows + key_rows),
            Role::Values if tensor("attn_v").is_some() => matrix("attn_v", key_rows, hidden),
            Role::Values => fused_attention(query_rows + key_rows..query_rows + 2 * key_rows),
            Role::AttentionOutput => matrix("attn_output", hidden, query_rows),
            Role::Gate if has_gate_tensor => matrix("ffn_gate", inner, hidden),
            Role::Gate if up_includes_gate => fused_feed_forward(0..inner),
            Role::Gate => return Ok(None),
            Role::Up if up_includes_gate && !has_gate_tensor => fused_feed_forward(inner..2 * inner),
            Role::Up => matrix("ffn_up", inner, hidden),
            Role::Down => matrix("ffn_down", hidden, inner),
        };
        matrix_rows.map(Some)
    }

    pub fn output(&self) -> Result<MatrixRows<'a>, Failed> {
        let Shape { vocabulary, hidden, .. } = *self.shape;
        let matrix = match self.find("output.weight", vocabulary, hidden)? {
            Some(output) => output,
            None => self.require("token_embd.weight", vocabulary, hidden)?,
        };
        Ok(MatrixRows { matrix, rows: 0..vocabulary as u64, bias: None })
    }

    fn matrix(
        &self,
        layer: usize,
        name: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<MatrixRows<'a>, Failed> {
        let matrix = self.require(&format!("blk.{layer}.{name}.weight"), outputs, inputs)?;
        let bias = self.find(&format!("blk.{layer}.{name}.bias"), 1, outputs)?;
        Ok(MatrixRows { matrix, rows: 0..outputs as u64, bias })
    }

    /// Some rows of a matrix whose input is the hidden state.
    fn matrix_part(
        &self,
        layer: usize,
        name: &str,
        all_rows: usize,
        rows: Range<usize>,
    ) -> Result<MatrixRows<'a>, Failed> {
        let matrix = self.matrix(layer, name, all_rows, self.shape.hidden)?;
        Ok(MatrixRows { rows: rows.start as u64..rows.end as u64, ..matrix })
    }
}

/// The requested format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedFormat {
    /// The formats of the file.
    File,
    /// One format for all matrices with rows that fit it.
    Format(&'static Format),
}

impl RequestedFormat {
    /// Resolves a dtype's name in the protocol; `file_dtype` is the format with most of the file's bytes.
    pub fn from_name(name: Option<&str>, file_dtype: &str) -> Result<Self, Failed> {
        let Some(name) = name.filter(|name| !name.eq_ignore_ascii_case(file_dtype)) else {
            return Ok(Self::File);
        };
        match Format::from_name(name).filter(|format| format.is_requestable) {
            Some(format) => Ok(Self::Format(format)),
            None => {
                let known: Vec<_> = Format::names().collect();
                let message = format!("dtype `{}`: not one of `{}`", name.escape_debug(), known.join("`, `"));
                Err(Failed::new(FailureKind::Unsupported, message))
            }
        }
    }

    /// Refuses a format of quantization blocks if no matrix has rows that divide into them: the load would round nothing.
    pub fn refuse_if_no_row_fits(self, shape: &Shape) -> Result<(), Failed> {
        let Some(dtype) = self.dtype().filter(|dtype| !dtype.is_float()) else { return Ok(()) };
        let block_numbers = dtype.block().0;
        let rows = [shape.hidden, shape.heads * shape.head_dim, shape.inner];
        if rows.iter().any(|inputs| inputs.is_multiple_of(block_numbers)) {
            return Ok(());
        }
        let [hidden, heads, inner] = rows;
        let message = format!(
            "no matrix can be rounded to blocks of {block_numbers}: rows have {hidden}, {heads} and {inner} numbers"
        );
        let failed = Failed::new(FailureKind::Unsupported, message);
        Err(failed.hint("--dtype bf16    # or f32, or f16"))
    }

    /// The number type that a matrix's rows are rounded to, and the format that holds them in memory.
    pub fn resolve(
        self,
        spec: &TensorSpec,
        stored: Dtype,
        inputs: u64,
    ) -> Result<(Dtype, &'static Format), Failed> {
        let dtype = self.dtype().unwrap_or(stored);
        if !stored.is_float() && !dtype.is_float() && dtype != stored {
            let (stored, dtype) = (stored.as_str(), dtype.as_str());
            let message =
                format!("tensor `{}` is {stored}, and would be rounded a second time as {dtype}", spec.gguf);
            let failed = Failed::new(FailureKind::Unsupported, message);
            return Err(failed.hint("omit `dtype`, to load the dtype of the file"));
        }
        if let Self::Format(format) = self
            && format.can_hold(inputs as usize)
        {
            return Ok((dtype, format));
        }
        // Rows that do not divide into blocks keep the dtype of the file.
        let fits = inputs.is_multiple_of(dtype.block().0 as u64);
        let dtype = if fits { dtype } else { stored };
        // Quantization blocks without kernels are widened to f16, which holds their numbers nearly exactly.
        Ok(Format::of(dtype).map_or((Dtype::F16, &F16), |format| (dtype, format)))
    }

    /// The number type that embedding rows are rounded to. Formats of quantization blocks give `None`: rows are looked up in
    /// the output matrix if it is also the embedding, and otherwise stay as stored.
    pub fn embedding_dtype(self) -> Option<Dtype> {
        self.dtype().filter(|dtype| dtype.is_float())
    }

    fn dtype(self) -> Option<Dtype> {
        match self {
            Self::File => None,
            Self::Format(format) => Some(format.dtype),
        }
    }
}
