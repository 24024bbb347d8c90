//! The decoder: Burn's modules, and the order in which they run. One network computes all supported architectures; optional
//! weights (biases, norms of the heads) make the differences.

use burn::module::Module;
use burn::nn::{Embedding, Linear, RmsNorm, RotaryEncoding, SwiGlu};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

#[derive(Module, Debug)]
pub struct Network {
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub norm: RmsNorm,
    pub output: Linear,
    pub rotary: RotaryEncoding,
}

#[derive(Module, Debug)]
pub struct Layer {
    pub attention_norm: RmsNorm,
    pub attention: Attention,
    pub feed_forward_norm: RmsNorm,
    pub gate_and_up: SwiGlu,
    pub down: Linear,
}

/// The rows of `query` and `key` (and their biases and norms) have the order of Burn's rotary encoding: both dimensions of a
/// rotated pair are adjacent. `weights` reorders them.
#[derive(Module, Debug)]
pub struct Attention {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    /// Norms of each head, in Qwen3.
    pub query_norm: Option<RmsNorm>,
    pub key_norm: Option<RmsNorm>,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether the backend's attention has fewer heads of keys and values than of queries. If not, they are repeated.
    pub is_grouped: bool,
}

/// The ids of a forward pass: rows of equal length, padded on the left.
pub struct Input<'a> {
    /// Row by row.
    pub ids: Vec<u32>,
    pub rows: usize,
    /// The number of pads at the beginning of each row's sequence.
    pub pads: &'a [usize],
}

impl Network {
    /// The hidden states of these columns, [rows * columns, hidden]. With a cache, the columns follow those in the cache.
    ///
    /// They have two dimensions, because `Linear` copies its whole matrix for an input of three dimensions: it reshapes the matrix,
    /// and a transposed view cannot be reshaped without a copy.
    pub fn forward(&self, input: Input, cache: Option<&mut Cache>) -> Tensor<2> {
        let (rows, columns) = (input.rows, input.ids.len() / input.rows);
        let device = self.embedding.weight.device();
        let data = TensorData::new(input.ids.iter().map(|&id| i64::from(id)).collect(), [rows, columns]);
        let ids = Tensor::<2, Int>::from_data(data, &device);
        let mut no_cache = Cache::off(self);
        let cache = cache.unwrap_or(&mut no_cache);
        let start = cache.columns;
        let mask = pad_mask(input.pads, columns, start + columns, &device);
        let mut hidden: Tensor<2> = self.embedding.forward(ids).flatten(0, 1); // [rows * columns, hidden]
        let step = Step { rows, columns, start, rotary: &self.rotary, mask };
        for (layer, cached) in self.layers.iter().zip(&mut cache.layers) {
            hidden = layer.forward(hidden, &step, cached);
        }
        cache.columns += columns;
        hidden
    }

    /// The logits after each of these hidden states in f32, [states, vocabulary].
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.norm.forward(hidden)).cast(DType::F32)
    }

    /// The logits after the last column, [rows, vocabulary].
    pub fn last_logits(&self, hidden: Tensor<2>, rows: usize) -> Tensor<2> {
        let [states, width] = hidden.dims();
        let columns = states / rows;
        let last = hidden.reshape([rows, columns, width]).slice([0..rows, columns - 1..columns, 0..width]);
        self.logits(last.squeeze_dim(1))
    }
}

/// The inputs that all layers of a forward pass share.
struct Step<'a> {
    rows: usize,
    columns: usize,
    /// The position of the first column.
    start: usize,
    rotary: &'a RotaryEncoding,
    mask: Option<Tensor<4, Bool>>,
}

impl Layer {
    fn forward(&self, hidden: Tensor<2>, step: &Step, cached: &mut LayerCache) -> Tensor<2> {
        let normed = self.attention_norm.forward(hidden.clone());
        let hidden = hidden + self.attention.forward(normed, step, cached);
        let normed = self.feed_forward_norm.forward(hidden.clone());
        hidden + self.down.forward(self.gate_and_up.forward(normed))
    }
}

impl Attention {
    fn forward(&self, input: Tensor<2>, step: &Step, cached: &mut LayerCache) -> Tensor<2> {
        let Step { rows, columns, start, rotary, .. } = *step;
        let split = |projected: Tensor<2>, heads: usize, norm: Option<&RmsNorm>| {
            let by_head = projected.reshape([rows, columns, heads, self.head_dim]);
            let normed = match norm {
                Some(norm) => norm.forward(by_head),
                None => by_head,
            };
            normed.swap_dims(1, 2) // [rows, heads, columns, head_dim]
        };
        let queries = split(self.query.forward(input.clone()), self.heads, self.query_norm.as_ref());
        let keys = split(self.key.forward(input.clone()), self.kv_heads, self.key_norm.as_ref());
        let values = split(self.value.forward(input), self.kv_heads, None);
        let queries = rotate(rotary, queries, start);
        let (keys, values) = cached.extend(rotate(rotary, keys, start), values);
        let (keys, values) = (self.for_each_query_head(keys), self.for_each_query_head(values));
        let mask = step.mask.as_ref().map(|mask| self.mask_of_heads(mask));
        // The mask of the future is aligned with the last column, so it is right for a prompt after cached columns too.
        let options = AttentionModuleOptions { is_causal: columns > 1, ..AttentionModuleOptions::default() };
        let mixed = attention(queries, keys, values, mask, None, options); // [rows, heads, columns, head_dim]
        self.output.forward(mixed.swap_dims(1, 2).reshape([rows * columns, self.heads * self.head_dim]))
    }

    /// Repeats each head of keys or values for all of its query heads, if the backend requires it.
    fn for_each_query_head(&self, tensor: Tensor<4>) -> Tensor<4> {
        if self.is_grouped || self.heads == self.kv_heads {
            return tensor;
        }
        let [rows, kv_heads, columns, head_dim] = tensor.dims();
        let group = self.heads / kv_heads;
        let repeated = tensor.unsqueeze_dim::<5>(2).expand([rows, kv_heads, group, columns, head_dim]);
        repeated.reshape([rows, self.heads, columns, head_dim])
    }

    fn mask_of_heads(&self, mask: &Tensor<4, Bool>) -> Tensor<4, Bool> {
        let [rows, _, columns, keys] = mask.dims();
        match self.is_grouped {
            true => mask.clone(),
            false => mask.clone().expand([rows, self.heads, columns, keys]),
        }
    }
}

/// Rotates in f32, because bf16 cannot hold the positions.
fn rotate(rotary: &RotaryEncoding, heads: Tensor<4>, start: usize) -> Tensor<4> {
    let dtype = heads.dtype();
    rotary.apply(heads.cast(DType::F32), start).cast(dtype)
}

/// True where a key is a pad, [rows, 1, columns, keys]. `None` without pads.
fn pad_mask(pads: &[usize], columns: usize, keys: usize, device: &Device) -> Option<Tensor<4, Bool>> {
    if pads.iter().all(|&pads| pads == 0) {
        return None;
    }
    let of_row = |&pads: &usize| (0..columns * keys).map(move |index| index % keys < pads);
    let values: Vec<bool> = pads.iter().flat_map(of_row).collect();
    Some(Tensor::from_data(TensorData::new(values, [pads.len(), 1, columns, keys]), device))
}

/// The keys and values of a batch.
pub struct Cache {
    layers: Vec<LayerCache>,
    /// The number of columns in the cache.
    columns: usize,
}

struct LayerCache {
    /// Without a cache, a forward pass has only its own keys and values.
    keeps: bool,
    /// The keys and values of earlier columns, [rows, kv_heads, columns, head_dim].
    filled: Option<[Tensor<4>; 2]>,
}

impl Cache {
    pub fn new(network: &Network) -> Self {
        Self::of(network, true)
    }

    fn off(network: &Network) -> Self {
        Self::of(network, false)
    }

    fn of(network: &Network, keeps: bool) -> Self {
        let layers = network.layers.iter().map(|_| LayerCache { keeps, filled: None }).collect();
        Self { layers, columns: 0 }
    }
}

impl LayerCache {
    /// Adds new columns, and returns all. They are joined by concatenation, as in Burn's own cache: its attention on the CPU reads
    /// only contiguous tensors, so it would copy a part of a larger tensor at every step, and more slowly.
    fn extend(&mut self, keys: Tensor<4>, values: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let (keys, values) = match self.filled.take() {
            None => (keys, values),
            Some([old_keys, old_values]) => {
                (Tensor::cat(vec![old_keys, keys], 2), Tensor::cat(vec![old_values, values], 2))
            }
        };
        self.filled = self.keeps.then(|| [keys.clone(), values.clone()]);
        (keys, values)
    }
}
