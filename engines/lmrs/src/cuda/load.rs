//! A load on a GPU: from a model folder and a request to a decoder with its facts.

use std::collections::BTreeMap;

use engine_kit::{OrFail, Phases};
use model_files::ModelFolder;
use protocol::{Facts, Failed, FailureKind, Load};

use super::decoder::CudaDecoder;
use super::driver::Gpu;
use super::kernels::Ring;
use super::only_on_cpu;
use super::prefill::{self, Prefill};
use super::step::Step;
use super::weights::{self, DeviceWeights};
use crate::context::choose_context;
use crate::formats::BF16;
use crate::kernels::attention::KvDtype;
use crate::pool::Pool;
use crate::shape::{Activation, Shape};
use crate::weights::{Plan, RequestedFormat};

/// The load options that only a CPU obeys.
const CPU_OPTIONS: [&str; 3] = ["kernels", "pin", "sidecar"];

/// Device memory that a load leaves for others: the driver's own for kernels, and small buffers.
const RESERVED_BYTES: u64 = 256 << 20;

/// Changes of a load for experiments.
#[derive(Debug, Clone, Copy, Default)]
pub struct Experiment {
    /// The warps, the slots and the bytes of a slot of the ring.
    pub ring: Option<[usize; 3]>,
    /// Computes every row of a prompt as a step, without cuBLAS.
    pub without_prefill: bool,
}

/// A decoder, with the facts of its load. `number` is the number of the GPU.
pub fn load(
    folder: &ModelFolder,
    load: &Load,
    number: u32,
    experiment: Experiment,
    phases: &mut Phases,
) -> Result<(CudaDecoder, Facts), Failed> {
    refuse_cpu_options(load)?;
    let shape = Shape::of(folder)?;
    refuse_unsupported(&shape, load.context_tokens)?;
    let requested = requested_format(folder, load.dtype.as_deref())?;
    phases.begin("device");
    let gpu = Gpu::open(number)?;
    let too_long = || only_on_cpu("rows of weights that are so long");
    let shared_bytes = gpu.max_shared_bytes as usize;
    let ring = match experiment.ring {
        Some(sizes) => Ring::with_sizes(&shape, shared_bytes, sizes),
        None => Ring::new(&shape, shared_bytes),
    };
    let ring = ring.ok_or_else(too_long)?;
    let (free_bytes, total_bytes) = gpu.memory_info()?;
    expect_free(&gpu.name, DeviceWeights::bytes_of(&shape), free_bytes, total_bytes)?;
    phases.begin("weights");
    let plan = Plan::of(folder, &shape, requested)?;
    // `choose_context` subtracts the plan's own bytes. The rest of the weights is an embedding that is not the output too.
    let buffer_bytes = prefill::bytes_for(&shape) + RESERVED_BYTES;
    let rest_bytes = DeviceWeights::bytes_of(&shape).saturating_sub(plan.bytes()) + buffer_bytes;
    let available = free_bytes.saturating_sub(rest_bytes).max(plan.bytes());
    let (context, note) = choose_context(&shape, KvDtype::F16, &plan, load.context_tokens, Some(available))?;
    if note.is_some() {
        phases.progress(0.0, note);
    }
    let threads = load.threads.unwrap_or_else(engine_kit::facts::default_threads) as usize;
    let pool = Pool::new(threads);
    let owned = plan.read(&pool, &|_| {})?;
    let host_weights = plan.weights(&shape, &owned)?;
    weights::refuse_unsupported(&host_weights)?;
    phases.begin("upload");
    let reporter = &*phases;
    let on_progress = &mut |share| reporter.progress(share, None);
    let weights = DeviceWeights::upload(&gpu, &shape, &host_weights, on_progress)?;
    phases.begin("kernels");
    let step = Step::new(&gpu, &shape, &weights, ring)?;
    let prefill = if experiment.without_prefill { None } else { Some(Prefill::new(&gpu, &shape)?) };
    let libraries = BTreeMap::from([
        ("cuda-driver".to_string(), gpu.driver_version()?),
        ("nvrtc".to_string(), step.nvrtc_version.clone()),
    ]);
    let facts = Facts {
        device: Some(gpu.name.clone()),
        weights_bytes: Some(host_weights.matrix_bytes()),
        weights_dtype: Some(BF16.name.into()),
        // Prefill rounds activations to bf16. Steps do not round them.
        compute_dtype: Some(if prefill.is_some() { "bf16" } else { "f32" }.into()),
        kv_dtype: Some("f16".into()),
        threads: Some(u32::try_from(pool.started_threads()).unwrap_or(u32::MAX)),
        context_tokens: Some(u32::try_from(context).unwrap_or(u32::MAX)),
        use_cache: Some(true),
        prefix_cache: Some(false),
        libraries,
        device_memory: Some(gpu.device_memory()),
        ..Facts::default()
    };
    Ok((CudaDecoder::new(gpu, shape, weights, (step, prefill), (context, pool)), facts))
}

fn refuse_cpu_options(load: &Load) -> Result<(), Failed> {
    match CPU_OPTIONS.into_iter().find(|name| load.options.contains_key(*name)) {
        Some(name) => {
            let message = format!("option `{name}`: only the device `cpu` has it");
            Err(Failed::new(FailureKind::Unsupported, message)
                .hint(format!("omit `{name}`, or --device cpu")))
        }
        None => Ok(()),
    }
}

/// Refuses every model that the kernels do not compute.
fn refuse_unsupported(shape: &Shape, requested_context: Option<u32>) -> Result<(), Failed> {
    let Shape { hidden, inner, heads, kv_heads, head_dim, .. } = *shape;
    let context = requested_context.map_or(shape.context, |tokens| shape.context.min(tokens as usize));
    let rotated = shape.rotation.as_ref().map(|rotation| 2 * rotation.frequencies.len());
    let refused = if shape.layer_norm {
        Some("LayerNorm".to_string())
    } else if rotated.is_none() {
        Some("learned positions".into())
    } else if rotated != Some(head_dim) {
        Some("rotations of a part of each head".into())
    } else if shape.activation != Activation::Silu {
        Some("activations other than silu".into())
    } else if shape.windows.iter().flatten().any(|window| *window < context) {
        Some("windows of attention".into())
    } else if shape.embedding_scale != 1.0 {
        Some("scaled embeddings".into())
    } else if ![32, 64, 128].contains(&head_dim) {
        Some(format!("heads of {head_dim} dimensions"))
    } else if ![hidden, inner, heads * head_dim].iter().all(|size| size.is_multiple_of(8)) {
        Some("rows whose length is no multiple of 8".into())
    } else if !heads.is_multiple_of(kv_heads) {
        Some("heads that do not share keys evenly".into())
    } else {
        None
    };
    refused.map_or(Ok(()), |feature| Err(only_on_cpu(&feature)))
}

/// The format that a load requests, which is bf16: that of the files, or by `dtype`.
fn requested_format(folder: &ModelFolder, dtype: Option<&str>) -> Result<RequestedFormat, Failed> {
    let file_dtype = model_files::own_dtype(folder).or_fail(FailureKind::Model)?;
    let file_dtype = file_dtype.as_str().to_ascii_lowercase();
    let requested = RequestedFormat::from_name(dtype, &file_dtype)?;
    match dtype.unwrap_or(&file_dtype) {
        name if name.eq_ignore_ascii_case(BF16.name) => Ok(requested),
        name => Err(only_on_cpu(&format!("{name} weights")).hint("--dtype bf16, or --device cpu")),
    }
}

/// Refuses weights that do not fit, before any is copied.
fn expect_free(device: &str, weights_bytes: u64, free_bytes: u64, total_bytes: u64) -> Result<(), Failed> {
    if weights_bytes <= free_bytes {
        return Ok(());
    }
    let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    let message = format!(
        "the weights need {}, and `{device}` has {} free of {}",
        gigabytes(weights_bytes),
        gigabytes(free_bytes),
        gigabytes(total_bytes)
    );
    Err(Failed::new(FailureKind::OutOfMemory, message)
        .hint("nvidia-smi    # lists the programs that hold memory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::kernels::tests::llama_1b;
    use crate::network::Rotation;

    fn refusal(shape: &Shape) -> String {
        refuse_unsupported(shape, None).unwrap_err().message
    }

    #[test]
    fn a_llama_is_accepted_and_other_networks_are_refused_by_name() {
        let llama = llama_1b();
        assert_eq!(refuse_unsupported(&llama, None), Ok(()));
        let refused = [
            (Shape { layer_norm: true, ..llama.clone() }, "LayerNorm"),
            (Shape { rotation: None, ..llama.clone() }, "learned positions"),
            (
                Shape { rotation: Some(Rotation::new(1e4, 32)), ..llama.clone() },
                "rotations of a part of each head",
            ),
            (Shape { activation: Activation::GeluTanh, ..llama.clone() }, "activations other than silu"),
            (Shape { windows: vec![Some(4096)], ..llama.clone() }, "windows of attention"),
            (Shape { embedding_scale: 3.0, ..llama.clone() }, "scaled embeddings"),
            (Shape { inner: 1001, ..llama.clone() }, "rows whose length is no multiple of 8"),
        ];
        for (shape, feature) in refused {
            assert_eq!(refusal(&shape), format!("lmrs computes {feature} only on a CPU"));
        }
        let small = Shape { head_dim: 16, rotation: Some(Rotation::new(1e4, 16)), ..llama };
        assert_eq!(refusal(&small), "lmrs computes heads of 16 dimensions only on a CPU");
    }

    #[test]
    fn a_window_that_is_not_shorter_than_the_context_is_accepted() {
        let windowed = Shape { windows: vec![Some(4096); 16], ..llama_1b() };
        assert_eq!(refuse_unsupported(&windowed, Some(4096)), Ok(()));
        assert!(refuse_unsupported(&windowed, Some(4097)).is_err());
    }

    #[test]
    fn options_of_the_cpu_are_refused_by_name() {
        let with = |options: serde_json::Value| Load {
            options: options.as_object().cloned().unwrap_or_default(),
            ..Load::default()
        };
        assert_eq!(refuse_cpu_options(&with(serde_json::json!({"lookup": 4}))), Ok(()));
        let refused = refuse_cpu_options(&with(serde_json::json!({"pin": false}))).unwrap_err();
        assert_eq!(refused.message, "option `pin`: only the device `cpu` has it");
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_with_both_numbers() {
        assert_eq!(expect_free("cuda:0", 10, 10, 20), Ok(()));
        let refused = expect_free("cuda:0", 16_060_000_000, 9_300_000_000, 85_000_000_000).unwrap_err();
        assert_eq!(refused.kind, FailureKind::OutOfMemory);
        assert_eq!(refused.message, "the weights need 16.06 GB, and `cuda:0` has 9.30 GB free of 85.00 GB");
    }

    #[test]
    fn the_weights_of_a_llama_have_the_size_of_their_parameters() {
        // 1,235,814,400 parameters, of which 67,584 are of norms.
        let bytes = DeviceWeights::bytes_of(&llama_1b());
        let exact = 2 * (1_235_814_400 - 67_584) + 4 * 67_584;
        assert!((exact..exact + 20_000).contains(&bytes), "{bytes}");
    }
}
