//! Reads the tensors of a model folder into Burn's modules.

use burn::module::{Module, Param, Quantizer};
use burn::nn::{Embedding, Linear, RmsNorm, RotaryEncoding, RotaryEncodingConfig, SwiGlu};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, Tensor, TensorData};
use engine_kit::OrFail;
use model_files::{
    Component, Dtype, FileWeights, Format, GgufLayout, Kind, ModelFolder, TensorSpec, Weights,
};
use protocol::{Failed, FailureKind};

use crate::config::Shape;
use crate::network::{Attention, Layer, Network};

/// The dtype of the loaded weights: its name, and its types in Burn and in `model_files`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precision {
    pub name: &'static str,
    pub burn: DType,
    files: Dtype,
}

/// The first is the default.
pub const PRECISIONS: [Precision; 3] = [
    Precision { name: "f32", burn: DType::F32, files: Dtype::F32 },
    Precision { name: "bf16", burn: DType::BF16, files: Dtype::BF16 },
    Precision { name: "f16", burn: DType::F16, files: Dtype::F16 },
];

/// The source of the weights, and the form in which they are read.
pub struct Reader<'a> {
    pub folder: &'a ModelFolder,
    pub shape: &'a Shape,
    pub specs: &'a [TensorSpec],
    pub precision: Precision,
    pub device: &'a Device,
    /// The format of the matrices, if they are quantized.
    pub quantized: Option<QuantValue>,
    pub context_tokens: usize,
}

impl Reader<'_> {
    pub fn network(&self, mut progress: impl FnMut(f64)) -> Result<Network, Failed> {
        let files = FileWeights::open(self.folder).or_fail(FailureKind::Model)?;
        let embedding = self.matrix(&files, "model.embed_tokens.weight", None)?;
        let layers = (0..self.shape.layers).map(|index| {
            progress(index as f64 / self.shape.layers as f64);
            self.layer(&files, &format!("model.layers.{index}."))
        });
        let layers = layers.collect::<Result<Vec<_>, Failed>>()?;
        let output = match self.shape.tied {
            true => self.tied_output(embedding.clone()),
            false => self.linear(&files, "lm_head", None)?,
        };
        Ok(Network {
            embedding: Embedding { weight: Param::from_tensor(embedding) },
            layers,
            norm: self.norm(&files, "model.norm.weight", false)?,
            output,
            rotary: self.rotary(),
        })
    }

    /// The bytes of the loaded weights. In a quantized matrix, each weight has a byte, and the matrix has one scale.
    pub fn weights_bytes(&self) -> u64 {
        let quantized_bytes = |spec: &TensorSpec| spec.elements() + 4;
        let bytes = |spec: &TensorSpec| {
            let is_embedding = spec.component == Component::Embedding;
            let stored = self.precision.files.bytes(spec.elements());
            match (self.quantized, is_embedding) {
                // The embedding stays as it is. If it is also the output matrix, this can have weights of its own.
                (Some(_), true) if self.shape.tied => stored + quantized_bytes(spec),
                (None, true) if self.shape.tied && self.precision.burn == DType::BF16 => 2 * stored,
                (_, true) => stored,
                (Some(_), false) if spec.kind == Kind::Matrix => quantized_bytes(spec),
                _ => stored,
            }
        };
        self.specs.iter().map(bytes).sum()
    }

    fn layer(&self, files: &FileWeights, prefix: &str) -> Result<Layer, Failed> {
        let name = |name: &str| format!("{prefix}{name}");
        let linear = |it: &str, heads| self.linear(files, &name(it), heads);
        let Shape { heads, kv_heads, head_dim, .. } = *self.shape;
        let head_norm = |it: &str| {
            let name = name(it);
            self.spec(&name).map(|_| self.norm(files, &name, true)).transpose()
        };
        Ok(Layer {
            attention_norm: self.norm(files, &name("input_layernorm.weight"), false)?,
            attention: Attention {
                query: linear("self_attn.q_proj", Some(heads))?,
                key: linear("self_attn.k_proj", Some(kv_heads))?,
                value: linear("self_attn.v_proj", None)?,
                output: linear("self_attn.o_proj", None)?,
                query_norm: head_norm("self_attn.q_norm.weight")?,
                key_norm: head_norm("self_attn.k_norm.weight")?,
                heads,
                kv_heads,
                head_dim,
                is_grouped: *self.device == Device::flex(),
            },
            feed_forward_norm: self.norm(files, &name("post_attention_layernorm.weight"), false)?,
            gate_and_up: SwiGlu {
                linear_inner: linear("mlp.gate_proj", None)?,
                linear_outer: linear("mlp.up_proj", None)?,
            },
            down: linear("mlp.down_proj", None)?,
        })
    }

    /// A linear layer, with a bias if the model has one. `rotated_heads` is the number of heads of queries or keys.
    fn linear(
        &self,
        files: &FileWeights,
        name: &str,
        rotated_heads: Option<usize>,
    ) -> Result<Linear, Failed> {
        let weight = self.matrix(files, &format!("{name}.weight"), rotated_heads)?;
        let bias_name = format!("{name}.bias");
        let bias = self.spec(&bias_name).map(|spec| {
            let data = self.read(files, spec, rotated_heads)?;
            Ok(Param::from_tensor(Tensor::from_data(data, (self.device, self.precision.burn))))
        });
        Ok(self.linear_of(weight, bias.transpose()?))
    }

    /// The layer of a matrix [outputs, inputs], as the files store it. Burn multiplies by [inputs, outputs], by default contiguous
    /// (`LinearLayout::Row`). perf showed a fifth less time in the products of a decode than with a transposed view.
    fn linear_of(&self, weight: Tensor<2>, bias: Option<Param<Tensor<1>>>) -> Linear {
        let contiguous =
            Tensor::from_data(weight.transpose().into_data(), (self.device, self.precision.burn));
        self.linear_of_transposed(contiguous, bias)
    }

    /// The output layer that shares the numbers of the embedding: a view. Only in bf16 it has numbers of its own, because Burn's
    /// product in bf16 would copy a view at every step.
    fn tied_output(&self, embedding: Tensor<2>) -> Linear {
        match self.precision.burn {
            DType::BF16 => self.linear_of(embedding, None),
            _ => self.linear_of_transposed(embedding.transpose(), None),
        }
    }

    fn linear_of_transposed(&self, weight: Tensor<2>, bias: Option<Param<Tensor<1>>>) -> Linear {
        let linear = Linear { weight: Param::from_tensor(weight), bias };
        match self.quantized {
            None => linear,
            Some(value) => {
                let scheme = QuantScheme::default().with_value(value).per_tensor(ScaleDtype::F32);
                let Linear { weight, bias } = linear;
                let quantized = Linear { weight, bias: None }
                    .quantize_weights(&mut Quantizer::new(Calibration::MinMax, scheme));
                Linear { bias, ..quantized }
            }
        }
    }

    fn matrix(
        &self,
        files: &FileWeights,
        name: &str,
        rotated_heads: Option<usize>,
    ) -> Result<Tensor<2>, Failed> {
        let data = self.read(files, self.expected(name)?, rotated_heads)?;
        Ok(Tensor::from_data(data, (self.device, self.precision.burn)))
    }

    fn norm(&self, files: &FileWeights, name: &str, is_of_heads: bool) -> Result<RmsNorm, Failed> {
        let data = self.read(files, self.expected(name)?, is_of_heads.then_some(1))?;
        let gamma = Tensor::from_data(data, (self.device, self.precision.burn));
        Ok(RmsNorm { gamma: Param::from_tensor(gamma), epsilon: self.shape.norm_epsilon })
    }

    /// The numbers of a tensor. Rows of `rotated_heads` heads are reordered: the files store the halves of a head one after the other,
    /// and Burn rotates adjacent pairs, as GGUF does.
    fn read(
        &self,
        files: &FileWeights,
        spec: &TensorSpec,
        rotated_heads: Option<usize>,
    ) -> Result<TensorData, Failed> {
        let layout =
            rotated_heads.map_or(GgufLayout::Same, |heads| GgufLayout::Pairs { heads: heads as u64 });
        let spec = TensorSpec { gguf_layout: layout, ..spec.clone() };
        let dtype = self.precision.files;
        let mut bytes = vec![0; dtype.bytes(spec.elements()) as usize];
        let (rows, _) = spec.rows_in(Format::Gguf);
        files.encode(&spec, Format::Gguf, 0..rows, dtype, &mut bytes).or_fail(FailureKind::Model)?;
        let shape: Vec<usize> = spec.shape.iter().map(|&size| size as usize).collect();
        Ok(TensorData::from_bytes_vec(bytes, shape, self.precision.burn))
    }

    fn spec(&self, name: &str) -> Option<&TensorSpec> {
        self.specs.iter().find(|spec| spec.name == name)
    }

    fn expected(&self, name: &str) -> Result<&TensorSpec, Failed> {
        let missing =
            || Failed::new(FailureKind::Internal, format!("no tensor `{name}` in the architecture"));
        self.spec(name).ok_or_else(missing)
    }

    /// Burn's table of the positions of the whole context, in f32.
    fn rotary(&self) -> RotaryEncoding {
        let Shape { head_dim, rope_theta, ref llama3, .. } = *self.shape;
        let config = RotaryEncodingConfig::new(self.context_tokens, head_dim).with_theta(rope_theta as f32);
        match llama3 {
            None => config.init(self.device),
            Some(llama3) => {
                let factors = llama3.factors(rope_theta, head_dim);
                let factors = Tensor::<1>::from_floats(factors.as_slice(), self.device);
                config.init_with_frequency_scaling(|frequencies| frequencies * factors.clone(), self.device)
            }
        }
    }
}
