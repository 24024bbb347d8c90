//! The common interface of candle's models: start a sequence, feed it ids, get the logits of the last one.
//!
//! Every model runs as in candle's own examples: the prompt in one call, then one id at a time with its position.

use candle_core::{DType, Device, Result, Tensor};

/// One of candle's models with its weights, and the KV cache of one sequence.
pub trait Decoder: Send {
    /// The logits after the last id. `input` is [1, length]; its first id has the index `position`.
    fn forward(&mut self, input: &Tensor, position: usize) -> Result<Tensor>;

    /// Resets the model to the state before the first id.
    fn forget(&mut self);

    /// Whether candle keeps a mask for every length that the model has seen. Without a cache such a model would keep the
    /// sum of all squares up to the sequence's length.
    fn keeps_masks(&self) -> bool {
        false
    }
}

/// The result of building a decoder.
pub type Built = Result<Box<dyn Decoder>>;

/// A decoder on its device.
pub struct Network {
    pub device: Device,
    pub decoder: Box<dyn Decoder>,
    /// Forward passes run inside candle's own thread pool; its examples run them outside.
    pub own_pool: bool,
}

impl Network {
    /// Begins a new sequence, independent of earlier ones.
    pub fn start(&mut self, use_cache: bool) -> Sequence<'_> {
        self.decoder.forget();
        Sequence { network: self, position: 0, without_cache: (!use_cache).then(Vec::new) }
    }
}

/// One sequence: its length, or all its ids if there is no cache.
pub struct Sequence<'a> {
    network: &'a mut Network,
    position: usize,
    without_cache: Option<Vec<u32>>,
}

impl Sequence<'_> {
    /// Adds `ids` to the sequence and returns the logits after the last one, [vocabulary] in f32.
    pub fn feed(&mut self, ids: &[u32]) -> Result<Tensor> {
        let Network { device, decoder, own_pool } = &mut *self.network;
        let (input, position) = match &mut self.without_cache {
            Some(all) => {
                all.extend_from_slice(ids);
                decoder.forget();
                (Tensor::new(all.as_slice(), device)?, 0)
            }
            None => (Tensor::new(ids, device)?, self.position),
        };
        let input = input.unsqueeze(0)?; // [1, length]
        let logits = match own_pool {
            true => device.with_context(|| decoder.forward(&input, position))?,
            false => decoder.forward(&input, position)?,
        };
        self.position += ids.len();
        logits.flatten_all()?.to_dtype(DType::F32) // from [1, vocabulary] or [1, 1, vocabulary]
    }
}
