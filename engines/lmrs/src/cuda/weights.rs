//! The weights in device memory, in the layout that the kernels read: matrices in bf16, norms in f32.

use std::rc::Rc;

use half::bf16;
use protocol::{Failed, FailureKind};

use super::driver::{Address, Gpu, Memory};
use crate::formats::BF16;
use crate::matrix::Matrix;
use crate::network::Norm;
use crate::shape::Shape;
use crate::weights::{Embedding, Layer, Linear, Weights};

/// The alignment of a matrix. Every matrix has a multiple of these bytes, except for tiny ones, so gate and up are adjacent.
const ALIGNMENT: usize = 128;
/// The rows of an embedding that are converted at a time.
const CONVERTED_ROWS: usize = 1024;

/// Addresses of a layer's weights. `decode.cu` has the same struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerAddresses {
    pub qkv: Address,
    pub attention_output: Address,
    pub gate: Address,
    pub up: Address,
    pub down: Address,
    pub attention_norm: Address,
    pub feed_forward_norm: Address,
}

impl LayerAddresses {
    fn in_order(&self) -> [Address; 7] {
        let Self { qkv, attention_output, gate, up, down, attention_norm, feed_forward_norm } = *self;
        [qkv, attention_output, gate, up, down, attention_norm, feed_forward_norm]
    }
}

pub struct DeviceWeights {
    pub layers: Vec<LayerAddresses>,
    /// The addresses of all layers as the kernel reads them.
    layer_table: Memory,
    pub embedding: Address,
    /// The output matrix, which may be the embedding.
    pub output: Address,
    pub norm: Address,
    /// The memory of all matrices and norms.
    _memory: Memory,
}

impl DeviceWeights {
    /// The bytes that these weights need in device memory.
    pub fn bytes_of(shape: &Shape) -> u64 {
        let Shape { vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, .. } = *shape;
        let attention = (2 * heads + 2 * kv_heads) * head_dim * hidden;
        let tables = if shape.tied { 1 } else { 2 };
        let numbers =
            layers as u64 * (attention + 3 * inner * hidden) as u64 + (tables * vocabulary * hidden) as u64;
        let norms = (2 * layers + 1) as u64 * (4 * hidden) as u64;
        let padding = (8 * layers + 8) as u64 * ALIGNMENT as u64;
        2 * numbers + norms + padding
    }

    /// Copies the weights to the device. `on_progress` gets the finished share.
    pub fn upload(
        gpu: &Rc<Gpu>,
        shape: &Shape,
        weights: &Weights,
        on_progress: &mut dyn FnMut(f64),
    ) -> Result<Self, Failed> {
        let bytes = Self::bytes_of(shape);
        let memory = gpu.allocate(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let mut upload = Upload { memory, used: 0, reported: 0.0, on_progress };
        let layers: Vec<LayerAddresses> =
            weights.layers.iter().map(|layer| upload.layer(layer)).collect::<Result<_, Failed>>()?;
        let output = upload.matrix(weights.output_matrix())?;
        let embedding = if shape.tied { output } else { upload.embedding(&weights.embedding, shape)? };
        let norm = upload.norm(&weights.norm)?;
        let table: Vec<u8> =
            layers.iter().flat_map(LayerAddresses::in_order).flat_map(Address::to_le_bytes).collect();
        let layer_table = gpu.allocate(table.len())?;
        layer_table.write(0, &table)?;
        Ok(Self { layers, layer_table, embedding, output, norm, _memory: upload.memory })
    }

    pub fn layer_table(&self) -> Address {
        self.layer_table.address()
    }
}

/// Device memory that is filled from its start.
struct Upload<'a> {
    memory: Memory,
    used: usize,
    reported: f64,
    on_progress: &'a mut dyn FnMut(f64),
}

impl Upload<'_> {
    fn layer(&mut self, layer: &Layer) -> Result<LayerAddresses, Failed> {
        let Layer {
            attention_norm,
            queries,
            keys,
            values,
            attention_output,
            feed_forward_norm,
            up,
            down,
            ..
        } = layer;
        let gate = layer.gate.as_ref().ok_or_else(|| super::only_on_cpu("a feed-forward without a gate"))?;
        Ok(LayerAddresses {
            qkv: self.linears(&[queries, keys, values])?,
            attention_output: self.linears(&[attention_output])?,
            gate: self.linears(&[gate])?,
            up: self.linears(&[up])?,
            down: self.linears(&[down])?,
            attention_norm: self.norm(attention_norm)?,
            feed_forward_norm: self.norm(feed_forward_norm)?,
        })
    }

    /// Copies matrices with equal rows, one after the other.
    fn linears(&mut self, linears: &[&Linear]) -> Result<Address, Failed> {
        let address = self.begin();
        linears.iter().try_for_each(|linear| self.append(rows_of(&linear.matrix)?))?;
        Ok(address)
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<Address, Failed> {
        let address = self.begin();
        self.append(rows_of(matrix)?)?;
        Ok(address)
    }

    /// Copies the embedding, rounded to bf16 as a CPU rounds each row that it looks up.
    fn embedding(&mut self, embedding: &Embedding, shape: &Shape) -> Result<Address, Failed> {
        let address = self.begin();
        let mut row = vec![0.0; shape.hidden];
        let mut converted = Vec::with_capacity(CONVERTED_ROWS * shape.hidden * 2);
        for index in 0..shape.vocabulary {
            embedding.row(index, &mut row);
            converted.extend(row.iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()));
            if converted.len() == converted.capacity() || index + 1 == shape.vocabulary {
                self.append(&converted)?;
                converted.clear();
            }
        }
        Ok(address)
    }

    fn norm(&mut self, norm: &Norm) -> Result<Address, Failed> {
        let address = self.begin();
        let bytes: Vec<u8> = norm.weight.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.append(&bytes)?;
        Ok(address)
    }

    /// The address of the next part.
    fn begin(&mut self) -> Address {
        self.used = self.used.next_multiple_of(ALIGNMENT);
        self.memory.address() + self.used as u64
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        if self.used + bytes.len() > self.memory.bytes() {
            let message = "the model's matrices are larger than its config states";
            return Err(Failed::new(FailureKind::Internal, message));
        }
        self.memory.write(self.used, bytes)?;
        self.used += bytes.len();
        let share = self.used as f64 / self.memory.bytes() as f64;
        // At most twenty progress lines.
        if share >= self.reported + 0.05 {
            self.reported = share;
            (self.on_progress)(share);
        }
        Ok(())
    }
}

fn rows_of(matrix: &Matrix) -> Result<&[u8], Failed> {
    if *matrix.format != BF16 {
        return Err(super::only_on_cpu(&format!("{} weights", matrix.format.name))
            .hint("--dtype bf16, or --device cpu"));
    }
    Ok(matrix.region().bytes())
}

/// Refuses weights that the kernels do not read.
pub fn refuse_unsupported(weights: &Weights) -> Result<(), Failed> {
    weights.matrices().try_for_each(|matrix| rows_of(matrix).map(|_| ()))?;
    for layer in &weights.layers {
        let Layer { queries, keys, values, attention_output, gate, up, down, .. } = layer;
        let linears = [
            Some(queries),
            Some(keys),
            Some(values),
            Some(attention_output),
            gate.as_ref(),
            Some(up),
            Some(down),
        ];
        if linears.into_iter().flatten().any(|linear| linear.bias.is_some()) {
            return Err(super::only_on_cpu("biases"));
        }
        if layer.query_norm.is_some() || layer.key_norm.is_some() {
            return Err(super::only_on_cpu("norms of heads"));
        }
        if layer.gate.is_none() {
            return Err(super::only_on_cpu("a feed-forward without a gate"));
        }
    }
    Ok(())
}
