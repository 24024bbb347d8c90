//! The implementation of the kit's `Engine`: capabilities, options and the load. A load turns a model folder and a request into
//! a working model with its facts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use engine_kit::{Engine, Model, Options, OrFail, Phases};
use model_files::ModelFolder;
use protocol::{Capabilities, Facts, Failed, FailureKind, HelloFacts, Load, Padding, Speculation};

use crate::context::choose_context;
use crate::cuda::load::{Experiment, load as load_on_gpu};
use crate::formats::Format;
use crate::kernels::attention::KvDtype;
use crate::kernels::{Level, rows};
use crate::model::LoadedModel;
use crate::model::decoder::MAX_DECODE_ROWS;
use crate::network::{Network, NetworkDecoder};
use crate::ops::Ops;
use crate::pool::Pool;
use crate::region::Region;
use crate::shape::Shape;
use crate::shape::architectures::ARCHITECTURES;
use crate::sidecar::Sidecar;
use crate::weights::{Plan, RequestedFormat, Weights};

/// The most overlapping requests.
const MAX_CONCURRENCY: u32 = 8;
/// The most sequences of one request, each with its own cache.
const MAX_BATCH: u32 = 64;

/// The engine. All its state belongs to the loaded model.
pub struct Lmrs;

impl Engine for Lmrs {
    type Model = Box<dyn Model>;

    fn hello(&self) -> Result<HelloFacts, Failed> {
        let strings = |strings: &[&str]| strings.iter().map(ToString::to_string).collect();
        let hello = engine_kit::hello("lmrs", env!("CARGO_PKG_VERSION"));
        let capabilities = Capabilities {
            devices: strings(Device::NAMES),
            dtypes: Format::names().map(str::to_string).collect(),
            options: Some(strings(&["kernels", "pin", "sidecar", "lookup"])),
            formats: strings(&["safetensors", "gguf"]),
            architectures: ARCHITECTURES.iter().map(|architecture| architecture.name.to_string()).collect(),
            batch: MAX_BATCH,
            concurrency: MAX_CONCURRENCY,
            use_cache_toggle: true,
            prefix_cache_toggle: true,
            padding_sides: vec![Padding::Left, Padding::Right, Padding::Packed],
            speculation: vec![Speculation::PromptLookup],
            sampling: true,
            score: true,
            ..hello.capabilities
        };
        Ok(HelloFacts { capabilities, ..hello })
    }

    fn load(
        &mut self,
        folder: &ModelFolder,
        load: &Load,
        phases: &mut Phases,
    ) -> Result<Self::Model, Failed> {
        phases.begin("config");
        let settings = Settings::read(load)?;
        if let Device::Cuda(number) = Device::of(load.device.as_deref())? {
            let (decoder, facts) = load_on_gpu(folder, load, number, Experiment::default(), phases)?;
            return Ok(Box::new(LoadedModel::new(decoder, facts, settings.lookup)));
        }
        let level = level(settings.kernels.as_deref())?;
        let shape = Shape::of(folder)?;
        let file_dtype = model_files::own_dtype(folder).or_fail(FailureKind::Model)?;
        let file_dtype = file_dtype.as_str().to_ascii_lowercase();
        let requested = RequestedFormat::from_name(load.dtype.as_deref(), &file_dtype)?;
        requested.refuse_if_no_row_fits(&shape)?;
        // In an f32 load nothing is narrower than f32, neither in computation nor in the cache.
        let is_f32 = load.dtype.as_deref().unwrap_or(&file_dtype) == "f32";
        let kv_dtype = if is_f32 { KvDtype::F32 } else { KvDtype::F16 };
        let mut plan = Plan::of(folder, &shape, requested)?;
        let available = system::memory::available_bytes();
        let (context, note) = choose_context(&shape, kv_dtype, &plan, load.context_tokens, available)?;
        if note.is_some() {
            phases.progress(1.0, note);
        }
        phases.begin("threads");
        let threads = load.threads.unwrap_or_else(engine_kit::facts::default_threads) as usize;
        let pool = if settings.pin { Pool::new_pinned(threads) } else { Pool::new(threads) };
        let sidecar = if settings.sidecar { Sidecar::of(folder, &plan.layout()).ok() } else { None };
        let mut unfit = sidecar.as_ref().map(Sidecar::unfit).unwrap_or_default();
        // Only packing finds the matrices that do not fit the format. Then a new plan keeps them in bf16.
        let packed = loop {
            phases.begin("weights");
            if !unfit.is_empty() {
                report_unfit(&unfit, phases);
                plan = Plan::with_unfit(folder, &shape, requested, &unfit)?;
            }
            let packed = read_or_pack(&plan, sidecar.as_ref(), &unfit, &pool, phases)?;
            let newly_unfit = plan.unfit();
            if newly_unfit.is_empty() {
                break packed;
            }
            unfit.extend(newly_unfit);
        };
        phases.begin("network");
        let weights = plan.weights(&shape, &packed)?;

        let facts = Facts {
            device: Some("cpu".into()),
            weights_bytes: Some(weights.matrix_bytes()),
            weights_dtype: Some(weights.format().name.into()),
            compute_dtype: Some(compute_dtype(level, &weights).into()),
            kv_dtype: Some(if kv_dtype == KvDtype::F32 { "f32" } else { "f16" }.into()),
            threads: Some(to_u32(pool.started_threads())),
            context_tokens: Some(to_u32(context)),
            use_cache: Some(true),
            prefix_cache: Some(false),
            libraries: BTreeMap::from([("kernels".into(), level.to_string())]),
            ..Facts::default()
        };
        let (network, ops) = (Network::new(shape, weights), Ops::new(pool, level));
        let decoder = NetworkDecoder { network, ops, context, kv_dtype };
        Ok(Box::new(LoadedModel::new(decoder, facts, settings.lookup)))
    }
}

/// The device of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Cpu,
    /// The number that CUDA gives the GPU.
    Cuda(u32),
}

impl Device {
    /// The devices of this program; the first is the default. NVIDIA has no CUDA for macOS.
    const NAMES: &[&str] = if cfg!(target_os = "linux") { &["cpu", "cuda"] } else { &["cpu"] };

    fn of(name: Option<&str>) -> Result<Self, Failed> {
        let name = name.unwrap_or(Self::NAMES[0]);
        let (family, number) = name.split_once(':').unwrap_or((name, "0"));
        // `+1` would parse as a number, but is not a valid name.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        match (family, number.parse().ok().filter(|_| is_number)) {
            ("cpu", Some(0)) => Ok(Self::Cpu),
            ("cuda", Some(number)) if Self::NAMES.contains(&"cuda") => Ok(Self::Cuda(number)),
            _ => {
                let message =
                    format!("device `{}`: not one of `{}`", name.escape_debug(), Self::NAMES.join("`, `"));
                Err(Failed::new(FailureKind::Unsupported, message))
            }
        }
    }
}

fn level(name: Option<&str>) -> Result<Level, Failed> {
    let named = |name: &str| name.parse::<Level>().or_fail(FailureKind::Unsupported);
    name.map_or_else(|| Ok(Level::best()), named)
}

fn report_unfit(unfit: &BTreeSet<String>, phases: &Phases) {
    let names: Vec<&str> = unfit.iter().map(String::as_str).collect();
    let verb = if names.len() > 1 { "stay" } else { "stays" };
    phases.progress(0.0, Some(format!("{} {verb} in bf16: rows have too many exponents", names.join(", "))));
}

/// The packed memory of a plan that excludes the `unfit` matrices. It comes from the sidecar if possible; otherwise it is
/// filled now, and written to the sidecar if that is enabled.
fn read_or_pack(
    plan: &Plan,
    sidecar: Option<&Sidecar>,
    unfit: &BTreeSet<String>,
    pool: &Pool,
    phases: &mut Phases,
) -> Result<Region, Failed> {
    let layout = plan.layout();
    // Without packed matrices, only the list of unfit matrices is worth a sidecar.
    let sidecar = sidecar.filter(|_| !layout.is_empty() || !unfit.is_empty());
    if let Some(packed) = sidecar.and_then(|sidecar| sidecar.read(&layout, pool)) {
        return Ok(packed);
    }
    let (total, reported) = (plan.owned_bytes().max(1) as u64, AtomicU64::new(0));
    let reporter = &*phases;
    let packed = plan.read(pool, &|done| {
        // At most twenty progress lines.
        let twentieth = done * 20 / total;
        if reported.fetch_max(twentieth, Ordering::Relaxed) < twentieth {
            reporter.progress(done as f64 / total as f64, None);
        }
    })?;
    if let Some(sidecar) = sidecar.filter(|_| plan.unfit().is_empty()) {
        phases.begin("sidecar");
        if let Err(error) = sidecar.write(&layout, unfit, &packed, pool) {
            phases.progress(1.0, Some(format!("{error:#}; the load continues without a sidecar")));
        }
    }
    Ok(packed)
}

/// The narrowest rounding of activations in the kernels of this load. Panels use 8 bits with a scale for 32 numbers (q8_0).
fn compute_dtype(level: Level, weights: &Weights) -> &'static str {
    if weights.matrices().any(|matrix| matrix.format.is_panels()) {
        "q8_0"
    } else if weights.matrices().any(|matrix| rows::uses_bf16(level, matrix.format)) {
        "bf16"
    } else {
        "f32"
    }
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The most drafted tokens. A pass checks the drafts together with the id before them. A pass of more rows than
/// `MAX_DECODE_ROWS` may round differently than a single row, so drafting would change the ids.
const MAX_DRAFTED: u64 = MAX_DECODE_ROWS as u64 - 1;
const DEFAULT_DRAFTED: u64 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The level of the kernels by name; `None` is the best of this machine.
    pub kernels: Option<String>,
    /// Whether each thread is pinned to a processor.
    pub pin: bool,
    /// Whether packed weights are kept on disk for the next load.
    pub sidecar: bool,
    /// The most tokens that prompt lookup drafts in a step, for requests with `speculation`.
    pub lookup: usize,
}

impl Settings {
    pub fn read(load: &Load) -> Result<Self, Failed> {
        let options = Options::new(&load.options);
        let settings = Self {
            kernels: options.text("kernels")?.map(str::to_string),
            pin: options.bool("pin")?.unwrap_or(true),
            sidecar: options.bool("sidecar")?.unwrap_or(false),
            lookup: match options.u64("lookup")?.unwrap_or(DEFAULT_DRAFTED) {
                count @ 1..=MAX_DRAFTED => usize::try_from(count).unwrap_or_default(),
                count => {
                    let message = format!("option `lookup`: expected 1 to {MAX_DRAFTED}, found `{count}`");
                    let hint = "--set lookup=7    # more drafted ids could change the output";
                    return Err(Failed::new(FailureKind::BadRequest, message).hint(hint));
                }
            },
        };
        options.finish()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: serde_json::Value) -> Result<Settings, Failed> {
        Settings::read(&Load { options: options.as_object().cloned().unwrap_or_default(), ..Load::default() })
    }

    #[test]
    fn the_defaults_are_the_best_kernels_on_pinned_threads() {
        let expected = Settings { kernels: None, pin: true, sidecar: false, lookup: 4 };
        assert_eq!(read(serde_json::json!({})), Ok(expected.clone()));
        let all =
            read(serde_json::json!({"kernels": "avx2", "pin": "false", "sidecar": true, "lookup": "7"}));
        let other = Settings { kernels: Some("avx2".into()), pin: false, sidecar: true, lookup: 7 };
        assert_eq!(all, Ok(other));
    }

    #[test]
    fn an_invalid_option_is_refused_with_its_name() {
        let refused = |options| read(options).unwrap_err().message;
        assert_eq!(refused(serde_json::json!({"lookup": 8})), "option `lookup`: expected 1 to 7, found `8`");
        assert_eq!(refused(serde_json::json!({"pin": 3})), "option `pin`: expected true or false, found `3`");
        assert_eq!(refused(serde_json::json!({"speed": 3})), "unknown option `speed`");
    }

    #[test]
    fn a_device_is_a_family_and_a_number() {
        assert_eq!((Device::of(None), Device::of(Some("cpu:0"))), (Ok(Device::Cpu), Ok(Device::Cpu)));
        for name in ["cpu:1", "cuda:", "cuda:+1", "CUDA", "metal", ""] {
            assert_eq!(Device::of(Some(name)).unwrap_err().kind, FailureKind::Unsupported, "{name}");
        }
        if cfg!(target_os = "linux") {
            let cuda = ["cuda", "cuda:1"].map(|name| Device::of(Some(name)));
            assert_eq!(cuda, [Ok(Device::Cuda(0)), Ok(Device::Cuda(1))]);
        }
    }

    #[test]
    fn lmrs_offers_exactly_the_architectures_of_model_files() {
        let known = model_files::ARCHITECTURES.iter().map(|architecture| architecture.name);
        let mut known: Vec<&str> = known.collect();
        let mut offered: Vec<&str> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
        known.sort_unstable();
        offered.sort_unstable();
        assert_eq!(offered, known);
    }
}
