//! A folder of safetensors as a network, the way candle's examples load it: mapped, and widened tensor by tensor while
//! the layers are built.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen2};
use model_files::ModelFolder;
use protocol::Failed;

use crate::failure::{first_line, model, unsupported};
use crate::network::{Kind, Network};
use crate::shape::Shape;

/// The dtypes that weights can be loaded in, the default first.
pub const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)];

/// The dtype of this name, if candle computes this architecture in it.
pub fn dtype(name: Option<&str>, architecture: &str) -> Result<(&'static str, DType), Failed> {
    let name = name.unwrap_or(DTYPES[0].0);
    let Some(&(name, dtype)) = DTYPES.iter().find(|(known, _)| *known == name) else {
        let known = DTYPES.map(|(known, _)| known).join("`, `");
        return Err(unsupported(format!(
            "dtype `{}`: safetensors are loaded as `{known}`",
            name.escape_debug()
        )));
    };
    if architecture == "qwen2" && dtype != DType::F32 {
        // 257 is no bf16 and 2049 is no f16, and candle counts qwen2's positions in the dtype of the weights.
        return Err(unsupported(format!("dtype `{name}`: candle rounds the positions of qwen2 in it"))
            .hint("load it as `f32`"));
    }
    Ok((name, dtype))
}

/// Maps the files and builds the layers. The tensors have been checked.
pub fn weights(
    folder: &ModelFolder,
    shape: &Shape,
    dtype: DType,
    device: &Device,
) -> Result<Network, Failed> {
    let fault = |error: candle_core::Error| model(&folder.path, first_line(&error));
    let tensors = map(folder, dtype, device).map_err(fault)?;
    let kind = match shape {
        Shape::Llama(config) => {
            // candle cuts its keys by this number, but compares it with the number of key-value heads.
            let longest = config.max_position_embeddings.max(config.num_key_value_heads);
            let uncut = llama::Config { max_position_embeddings: longest, ..config.clone() };
            let weights = Box::new(llama::Llama::load(tensors, &uncut).map_err(fault)?);
            let cache = |use_cache| llama::Cache::new(use_cache, dtype, config, device).map_err(fault);
            Kind::Llama { weights, cache: cache(true)?, no_cache: cache(false)? }
        }
        Shape::Qwen2(config) => {
            Kind::Qwen2(Box::new(qwen2::ModelForCausalLM::new(config, tensors).map_err(fault)?))
        }
    };
    Ok(Network { device: device.clone(), kind, own_pool: false })
}

#[expect(
    unsafe_code,
    reason = "candle's examples map their weights, and reading them first would be another load"
)]
fn map(folder: &ModelFolder, dtype: DType, device: &Device) -> candle_core::Result<VarBuilder<'static>> {
    // SAFETY: a mapped file must not change. The map lives until the layers are built, in which time each tensor is
    // copied out of it; a model whose files are written to meanwhile is broken for every engine.
    unsafe { VarBuilder::from_mmaped_safetensors(&folder.weights, dtype, device) }
}
