//! The weights of a model, as the network uses them.
//!
//! ```text
//! Plan::of                     decides for each weight its format, and whether it is used in place or read into owned memory.
//!                              Reads only headers; for a tied model also the output matrix, if its files have one
//! Plan::refuse_if_too_large    refuses a model that does not fit into memory, before its weights are read
//! Plan::read                   fills the owned memory, on all threads. It is one region, so that a sidecar can store it for
//!                              the next load
//! Plan::weights                the matrices over both kinds of memory
//! ```

mod files;
mod plan;
mod roles;

use model_files::{Dtype, blocks};

pub use plan::Plan;
pub use roles::RequestedFormat;

use crate::formats::Format;
use crate::kernels::panels;
use crate::matrix::{Matrix, Rows};
use crate::network::Norm;
use crate::region::Region;

#[derive(Debug)]
pub struct Weights {
    pub embedding: Embedding, // [vocabulary, hidden]
    /// Learned positions, if the model has them.
    pub positions: Option<Rows>, // [context, hidden]
    pub layers: Vec<Layer>,
    /// The norm before the output matrix.
    pub norm: Norm,
    output: Matrix, // [vocabulary, hidden]
}

#[derive(Debug)]
pub struct Layer {
    pub attention_norm: Norm,
    pub queries: Linear, // [heads * head_dim, hidden]
    pub keys: Linear,    // [kv_heads * head_dim, hidden]
    pub values: Linear,  // [kv_heads * head_dim, hidden]
    /// Norms of each head, if the model has them.
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub attention_output: Linear, // [hidden, heads * head_dim]
    pub feed_forward_norm: Norm,
    /// The result of `gate`, after the activation function, is multiplied with the result of `up`. Some models have no gate.
    pub gate: Option<Linear>, // [inner, hidden]
    pub up: Linear,   // [inner, hidden]
    pub down: Linear, // [hidden, inner]
}

#[derive(Debug)]
pub struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
}

impl Weights {
    /// The output matrix, which makes logits from the last norm's result; it may be the embedding.
    pub fn output_matrix(&self) -> &Matrix {
        &self.output
    }

    /// Bytes read for each token: each matrix once, the embedding only if it is also the output.
    pub fn matrix_bytes(&self) -> u64 {
        self.matrices().map(|matrix| matrix.bytes() as u64).sum()
    }

    /// The format with the most bytes. Some matrices may have another format: their rows do not fit the requested one, or no
    /// kernels read their dtype.
    pub fn format(&self) -> &'static Format {
        let bytes = |format: &Format| {
            self.matrices().filter(|it| it.format == format).map(Matrix::bytes).sum::<usize>()
        };
        let formats = self.matrices().map(|matrix| matrix.format);
        formats.max_by_key(|format| bytes(format)).unwrap_or(self.output.format)
    }

    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.layers.iter().flat_map(Layer::matrices).chain([&self.output])
    }
}

impl Layer {
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let Self { queries, keys, values, attention_output, gate, up, down, .. } = self;
        let linear = [Some(queries), Some(keys), Some(values), Some(attention_output), gate.as_ref()];
        linear.into_iter().flatten().chain([up, down]).map(|linear| &linear.matrix)
    }
}

impl Linear {
    pub fn add_bias(&self, row: &mut [f32]) {
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(bias).for_each(|(number, bias)| *number += bias);
        }
    }
}

/// The embedding. Rows are looked up in the output matrix's panels or in the mapped file, so memory has no second copy.
#[derive(Debug)]
pub enum Embedding {
    FileRows(FileRows),
    /// Panels that are also the output matrix.
    Panels(Matrix),
}

#[derive(Debug)]
pub struct FileRows {
    region: Region,
    stored_dtype: Dtype,
    /// The requested dtype, if it differs from the stored one: rows are rounded to it, as the rows of the output matrix are.
    rounding_dtype: Option<Dtype>,
    width: usize,
}

impl Embedding {
    pub fn width(&self) -> usize {
        match self {
            Self::FileRows(rows) => rows.width,
            Self::Panels(matrix) => matrix.inputs,
        }
    }

    /// Writes one existing row into `row`, which has the right width.
    pub fn row(&self, index: usize, row: &mut [f32]) {
        match self {
            Self::FileRows(rows) => rows.row(index, row),
            Self::Panels(matrix) => panels::row(matrix, index, row),
        }
    }
}

impl FileRows {
    pub fn new(region: Region, stored_dtype: Dtype, requested_dtype: Option<Dtype>, width: usize) -> Self {
        let rounding_dtype = requested_dtype.filter(|dtype| *dtype != stored_dtype);
        Self { region, stored_dtype, rounding_dtype, width }
    }

    fn row(&self, index: usize, row: &mut [f32]) {
        let bytes = self.stored_dtype.bytes(self.width as u64) as usize;
        let stored = &self.region.bytes()[index * bytes..][..bytes];
        // Widening fails only if lengths disagree, and these agree.
        blocks::widen(self.stored_dtype, stored, row).unwrap_or_default();
        let Some(dtype) = self.rounding_dtype else { return };
        let mut rounded = vec![0; dtype.bytes(self.width as u64) as usize];
        // A row with a number that the dtype cannot hold stays unchanged. If the matrix is also the output, the load has
        // refused such a number.
        if blocks::narrow(dtype, row, &mut rounded).is_ok() {
            blocks::widen(dtype, &rounded, row).unwrap_or_default();
        }
    }
}
