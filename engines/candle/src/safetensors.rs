//! Loads a folder of safetensors like candle's examples: mapped, and converted to the dtype of the load, tensor by tensor,
//! while the layers are built.

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use engine_kit::{OrFail, Phases};
use model_files::{ModelFolder, TensorSpec};
use protocol::{Facts, Failed, FailureKind, Load};

use crate::architectures::Architecture;
use crate::config::{Fields, LongestContext};
use crate::device;
use crate::failure::{build_decoder, first_line, model_failure, unsupported};
use crate::model::{Built, Decoder};

/// The dtypes for loaded weights.
const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)];

/// The names of the dtypes for hello. The first is the default on the first device, except for architectures with
/// `rounds_positions`.
pub fn dtypes() -> Vec<String> {
    let (on_gpu, rounds_positions) = (device::NAMES[0] == "cuda", false);
    let default = default_dtype(on_gpu, rounds_positions);
    let others = DTYPES.map(|(name, _)| name).into_iter().filter(|name| *name != default);
    std::iter::once(default).chain(others).map(String::from).collect()
}

/// The default dtype. A GPU multiplies bf16 at full speed; candle on the CPU widens it and is faster in f32.
fn default_dtype(on_gpu: bool, rounds_positions: bool) -> &'static str {
    if on_gpu && !rounds_positions { "bf16" } else { "f32" }
}

/// A loader for a model whose config was checked.
pub struct Loader {
    pub longest_context: LongestContext,
    /// Whether candle counts positions in the dtype of the weights: bf16 cannot hold 257, and f16 cannot hold 2049.
    pub rounds_positions: bool,
    /// Builds the layers, and position tables for this many tokens.
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
    let loader = (architecture.safetensors)(&Fields { folder })?;
    let (name, dtype) = dtype(load.dtype.as_deref(), device.is_cuda(), architecture, &loader)?;
    let context_tokens = loader.longest_context.context(folder, load.context_tokens)?;
    let specs = folder.tensor_specs().or_fail(FailureKind::Model)?;
    expect_floats(folder)?;
    folder.refuse_second_output_matrix().or_fail(FailureKind::Model)?;

    phases.begin("weights");
    let to_failed = |error: candle_core::Error| model_failure(&folder.path, first_line(&error));
    let tensors = map_weights(folder, dtype, device).map_err(to_failed)?;
    let parameters: u64 = specs.iter().map(TensorSpec::elements).sum();
    let weights_bytes = parameters * dtype.size_in_bytes() as u64;
    device::expect_free_memory(device, weights_bytes)?;
    let decoder = build_decoder(&folder.path, device, || (loader.build)(tensors, context_tokens as usize))?;

    facts.context_tokens = Some(context_tokens);
    facts.parameters = Some(parameters);
    facts.weights_bytes = Some(weights_bytes);
    for fact in [&mut facts.weights_dtype, &mut facts.compute_dtype, &mut facts.kv_dtype] {
        *fact = Some(name.into());
    }
    Ok(decoder)
}

/// The dtype of this name, or the default without a name, if candle computes the model in it.
fn dtype(
    name: Option<&str>,
    on_gpu: bool,
    architecture: &Architecture,
    loader: &Loader,
) -> Result<(&'static str, DType), Failed> {
    let name = name.unwrap_or(default_dtype(on_gpu, loader.rounds_positions));
    let Some(&(name, dtype)) = DTYPES.iter().find(|(known, _)| *known == name) else {
        let known = DTYPES.map(|(known, _)| known).join("`, `");
        return Err(unsupported(format!(
            "dtype `{}`: safetensors are loaded as `{known}`",
            name.escape_debug()
        )));
    };
    if loader.rounds_positions && dtype != DType::F32 {
        let message =
            format!("dtype `{name}`: candle rounds the positions of {} in this dtype", architecture.name);
        return Err(unsupported(message).hint("--dtype f32"));
    }
    Ok((name, dtype))
}

/// Refuses tensors whose dtype is not a plain float. Eight-bit floats have scales in separate tensors, which candle would ignore.
fn expect_floats(folder: &ModelFolder) -> Result<(), Failed> {
    let is_plain = |dtype: &str| ["F64", "F32", "F16", "BF16"].contains(&dtype);
    match folder.tensors.iter().find(|tensor| !is_plain(tensor.dtype)) {
        Some(tensor) => {
            let problem = format!("tensor `{}` of `{}` is {}", tensor.name, folder.name, tensor.dtype);
            Err(unsupported(format!("{problem}, which candle would read as plain numbers")))
        }
        None => Ok(()),
    }
}

#[expect(
    unsafe_code,
    reason = "candle's examples map their weights, and reading them first would change the measured load"
)]
fn map_weights(
    folder: &ModelFolder,
    dtype: DType,
    device: &Device,
) -> candle_core::Result<VarBuilder<'static>> {
    // SAFETY: a mapped file must not change. The map lives until the layers are built, and each tensor is copied out of it.
    // A model whose files change meanwhile is broken for every engine.
    unsafe { VarBuilder::from_mmaped_safetensors(&folder.weights, dtype, device) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_defaults_to_bf16_unless_candle_rounds_positions() {
        let (on_gpu, rounds_positions) = (true, true);
        assert_eq!(default_dtype(on_gpu, !rounds_positions), "bf16");
        assert_eq!(default_dtype(on_gpu, rounds_positions), "f32");
        assert_eq!(default_dtype(!on_gpu, !rounds_positions), "f32");
        assert_eq!(default_dtype(!on_gpu, rounds_positions), "f32");
    }

    #[test]
    fn hello_names_every_dtype_once_and_the_default_first() {
        let mut names = dtypes();
        assert_eq!(names[0], if cfg!(feature = "cuda") { "bf16" } else { "f32" });
        names.sort();
        assert_eq!(names, ["bf16", "f16", "f32"]);
    }
}
