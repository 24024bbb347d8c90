//! The engine's facts, and its `load`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use burn::tensor::DType;
use burn::tensor::quantization::QuantValue;
use engine_kit::{Engine, Options, OrFail, Phases};
use model_files::{ModelFolder, TensorSpec};
use protocol::{Capabilities, Facts, Failed, FailureKind, HelloFacts, Load, Padding};

use crate::config::{ARCHITECTURES, Shape};
use crate::device;
use crate::model::LoadedModel;
use crate::weights::{PRECISIONS, Precision, Reader};

/// The releases of Burn, and of gemm, its multiplication of matrices on the CPU. A test compares them with Cargo.lock.
pub const BURN_VERSION: &str = "0.22.1";
pub const GEMM_VERSION: &str = "0.19.0";

/// The most sequences of a batch. Burn has no limit but the memory.
const LARGEST_BATCH: u32 = 64;

pub struct BurnEngine;

impl Engine for BurnEngine {
    type Model = LoadedModel;

    fn hello(&self) -> Result<HelloFacts, Failed> {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let mut hello = engine_kit::hello("burn", BURN_VERSION);
        if let Some(build) = &mut hello.build {
            build.features.extend(cfg!(target_arch = "x86_64").then(|| "gemm/x86-v4".to_string()));
            build.features.extend(cfg!(feature = "cuda").then(|| "cuda".to_string()));
        }
        hello.capabilities = Capabilities {
            devices: names(device::NAMES),
            dtypes: PRECISIONS.iter().map(|precision| precision.name.into()).collect(),
            options: Some(names(&["quantize"])),
            formats: names(&["safetensors"]),
            architectures: names(&ARCHITECTURES),
            batch: LARGEST_BATCH,
            use_cache_toggle: true,
            padding_sides: vec![Padding::Left],
            sampling: true,
            score: true,
            ..hello.capabilities
        };
        Ok(hello)
    }

    fn load(
        &mut self,
        folder: &ModelFolder,
        load: &Load,
        phases: &mut Phases,
    ) -> Result<LoadedModel, Failed> {
        let options = Options::new(&load.options);
        let quantization = Quantization::parse(options.text("quantize")?)?;
        options.finish()?;
        phases.begin("config");
        let precision = precision(load.dtype.as_deref(), quantization)?;
        let opened = device::open(load.device.as_deref())?;
        let shape = Shape::of(folder)?;
        let context_tokens = shape.context_tokens(folder, load.context_tokens)?;
        let specs = folder.tensor_specs().or_fail(FailureKind::Model)?;
        expect_floats(folder)?;
        folder.refuse_second_output_matrix().or_fail(FailureKind::Model)?;
        let threads = set_threads(load.threads)?;

        phases.begin("weights");
        let reader = Reader {
            folder,
            shape: &shape,
            specs: &specs,
            precision,
            device: &opened.device,
            quantized: quantization.map(|quantization| quantization.value),
            context_tokens: context_tokens as usize,
        };
        let network = reader.network(|fraction| phases.progress(fraction, None))?;
        // A GPU copies asynchronously. That time belongs to this load, not to the first request.
        opened.device.sync().or_fail(FailureKind::Device)?;
        let parameters = specs.iter().map(TensorSpec::elements).sum();
        // Hidden states have the dtype of the embedding, and keys and values that of the hidden states.
        let hidden_dtype = name_of(network.embedding.weight.dtype());
        let facts = Facts {
            device: Some(opened.name.clone()),
            threads: Some(threads),
            use_cache: Some(true),
            prefix_cache: Some(false),
            context_tokens: Some(context_tokens),
            parameters: Some(parameters),
            weights_dtype: Some(name_of(network.output.weight.dtype())),
            weights_bytes: Some(reader.weights_bytes()),
            compute_dtype: Some(hidden_dtype.clone()),
            kv_dtype: Some(hidden_dtype),
            libraries: libraries(),
            ..Facts::default()
        };
        Ok(LoadedModel { network, opened, facts })
    }
}

/// A format for quantized matrices, with one scale for each matrix.
#[derive(Debug, Clone, Copy)]
struct Quantization {
    name: &'static str,
    value: QuantValue,
}

/// The only format: eight bits, symmetric around 0.
const INT8: Quantization = Quantization { name: "int8", value: QuantValue::Q8S };

impl Quantization {
    fn parse(name: Option<&str>) -> Result<Option<Self>, Failed> {
        match name {
            None | Some("none") => Ok(None),
            Some(name) if name == INT8.name => Ok(Some(INT8)),
            Some(other) => Err(unsupported(format!(
                "`quantize`: expected `none` or `int8`, found `{}`",
                other.escape_debug()
            ))),
        }
    }
}

/// The name of the dtype that a tensor has in Burn.
fn name_of(dtype: DType) -> String {
    match dtype {
        DType::QFloat(scheme) if scheme.value == INT8.value => INT8.name.into(),
        _ => match PRECISIONS.iter().find(|precision| precision.burn == dtype) {
            Some(precision) => precision.name.into(),
            None => format!("{dtype:?}"),
        },
    }
}

fn precision(name: Option<&str>, quantization: Option<Quantization>) -> Result<Precision, Failed> {
    let name = name.unwrap_or(PRECISIONS[0].name);
    let known = PRECISIONS.into_iter().find(|precision| precision.name == name);
    match known {
        Some(precision) if quantization.is_some() && precision != PRECISIONS[0] => {
            Err(unsupported(format!("dtype `{name}`: quantized matrices are multiplied in f32"))
                .hint("--dtype f32"))
        }
        Some(precision) => Ok(precision),
        None => {
            let known = PRECISIONS.map(|precision| precision.name).join("`, `");
            Err(unsupported(format!("dtype `{}`: expected one of `{known}`", name.escape_debug())))
        }
    }
}

pub fn unsupported(message: impl Into<String>) -> Failed {
    Failed::new(FailureKind::Unsupported, message)
}

/// Refuses tensors whose dtype is not a plain float. Eight-bit floats have scales in separate tensors.
fn expect_floats(folder: &ModelFolder) -> Result<(), Failed> {
    let is_plain = |dtype: &str| ["F32", "F16", "BF16"].contains(&dtype);
    match folder.tensors.iter().find(|tensor| !is_plain(tensor.dtype)) {
        Some(tensor) => Err(unsupported(format!(
            "tensor `{}` of `{}` is {}: expected F32, F16 or BF16",
            tensor.name.escape_debug(),
            folder.name,
            tensor.dtype
        ))),
        None => Ok(()),
    }
}

fn libraries() -> BTreeMap<String, String> {
    let versions = [("burn", BURN_VERSION), ("burn-flex", BURN_VERSION), ("gemm", GEMM_VERSION)];
    versions.map(|(name, version)| (name.to_string(), version.to_string())).into()
}

/// The size of rayon's pool, which the first load sets.
static POOL_THREADS: OnceLock<u32> = OnceLock::new();

/// Sizes rayon's pool, in which Burn's CPU backend computes, at the first load. Returns the number in effect. A pool keeps its size,
/// so a later load with another number is refused.
pub fn set_threads(requested: Option<u32>) -> Result<u32, Failed> {
    let in_effect = *POOL_THREADS.get_or_init(|| {
        let builder = rayon::ThreadPoolBuilder::new();
        let builder =
            requested.iter().fold(builder, |builder, &threads| builder.num_threads(threads as usize));
        // An error means that the pool exists already; its size is read below.
        let _ = builder.build_global();
        u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX)
    });
    match requested {
        Some(threads) if threads != in_effect => {
            let message = format!("{threads} threads: this process has {in_effect} since its first load");
            Err(unsupported(message)
                .hint("the thread pool keeps its size: start another process for another number of threads"))
        }
        _ => Ok(in_effect),
    }
}
