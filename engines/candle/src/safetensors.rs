//! A folder of safetensors as a decoder, the way candle's examples load it: mapped, and widened tensor by tensor while
//! the layers are built.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use engine_kit::{OrFail, Phases};
use model_files::{ModelFolder, Part};
use protocol::{Facts, Failed, FailureKind, Load};

use crate::architectures::Architecture;
use crate::config::Fields;
use crate::failure::{first_line, model, unsupported};
use crate::network::{Built, Decoder};
use crate::sizes::Longest;

/// The dtypes that weights can be loaded in, the default first.
pub const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)];

/// How candle loads a model whose config has been found to be computed right.
pub struct Recipe {
    pub longest_context: Longest,
    /// candle counts positions in the dtype of the weights, and 257 is no bf16 and 2049 is no f16.
    pub rounds_positions: bool,
    /// Builds the layers, and position tables for so many tokens.
    pub build: Box<dyn FnOnce(VarBuilder<'static>, usize) -> Built>,
}

pub fn load(
    architecture: &Architecture,
    folder: &ModelFolder,
    load: &Load,
    device: &Device,
    phases: &mut Phases,
    facts: &mut Facts,
) -> Result<Box<dyn Decoder>, Failed> {
    let recipe = (architecture.safetensors)(&Fields { folder })?;
    let (name, dtype) = dtype(load.dtype.as_deref(), architecture, &recipe)?;
    let context_tokens = recipe.longest_context.context(folder, load.context_tokens)?;
    let parts = folder.parts().or_fail(FailureKind::Model)?;
    expect_floats(folder)?;

    phases.begin("weights");
    let fault = |error: candle_core::Error| model(&folder.path, first_line(&error));
    let tensors = map(folder, dtype, device).map_err(fault)?;
    let decoder = (recipe.build)(tensors, context_tokens as usize).map_err(fault)?;

    let parameters: u64 = parts.iter().map(Part::elements).sum();
    facts.context_tokens = Some(context_tokens);
    facts.parameters = Some(parameters);
    facts.weights_bytes = Some(parameters * dtype.size_in_bytes() as u64);
    for fact in [&mut facts.weights_dtype, &mut facts.compute_dtype, &mut facts.kv_dtype] {
        *fact = Some(name.into());
    }
    Ok(decoder)
}

/// The dtype of this name, if candle computes the model in it.
fn dtype(
    name: Option<&str>,
    architecture: &Architecture,
    recipe: &Recipe,
) -> Result<(&'static str, DType), Failed> {
    let name = name.unwrap_or(DTYPES[0].0);
    let Some(&(name, dtype)) = DTYPES.iter().find(|(known, _)| *known == name) else {
        let known = DTYPES.map(|(known, _)| known).join("`, `");
        return Err(unsupported(format!(
            "dtype `{}`: safetensors are loaded as `{known}`",
            name.escape_debug()
        )));
    };
    if recipe.rounds_positions && dtype != DType::F32 {
        let what = format!("dtype `{name}`: candle rounds the positions of {} in it", architecture.name);
        return Err(unsupported(what).hint("load it as `f32`"));
    }
    Ok((name, dtype))
}

/// Eight-bit floats come with scales in tensors of their own, which candle would read over.
fn expect_floats(folder: &ModelFolder) -> Result<(), Failed> {
    let plain = |dtype: &str| ["F64", "F32", "F16", "BF16"].contains(&dtype);
    match folder.tensors.iter().find(|tensor| !plain(tensor.dtype)) {
        Some(tensor) => {
            let what = format!("tensor `{}` of `{}` is {}", tensor.name, folder.name, tensor.dtype);
            Err(unsupported(format!("{what}, which candle would take for plain numbers")))
        }
        None => Ok(()),
    }
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
