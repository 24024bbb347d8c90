use protocol::{HelloFacts, Iteration, Loaded, Stamp};

use super::*;
use crate::analysis::metric::named;
use crate::analysis::metric::tests::{NO_VALUES, sequence};
use crate::machine::Machine;
use crate::machine::cpu::Cache;
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Model};
use crate::record::{self, Launch, Sample};

/// Llama-3.2-1B: a tied table of 128,256 x 2,048, and 16 layers of 60,821,504 numbers, and a last norm of 2,048. A token reads
/// all these numbers, and its row of the table once more. A layer has 32 query heads and 8 key-value heads of 64 numbers.
const LLAMA: Sizes = Sizes {
    parameters: 1_235_814_400,
    read_per_token: 1_235_814_400 + 2048,
    output: 128_256 * 2048,
    kv_numbers_per_position: 2 * 16 * 8 * 64,
    attended_per_position: 2 * 16 * 32 * 64,
};

const READ_PER_TOKEN: f64 = LLAMA.read_per_token as f64;
const OUTPUT: f64 = LLAMA.output as f64;
const ATTENDED: f64 = LLAMA.attended_per_position as f64;

/// A request as in a record, on two threads of a machine with a cache of 32 MiB.
struct Setup {
    configuration: Configuration,
    machine: Machine,
    limits: record::Limits,
    launch: Launch,
    sample: Sample,
    kind: Kind,
}

impl Setup {
    fn of(sequences: Vec<Sequence>) -> Self {
        let model = Model { sizes: Some(LLAMA), ..Model::default() };
        let cache = Cache { level: 3, kind: "Unified".into(), size_bytes: 32 << 20, shared_by: 2 };
        let cpu = Cpu { logical_cores: Some(2), caches: vec![cache], ..Cpu::default() };
        let reads = |threads, streams, bytes| Reads { threads, streams, bytes, ns: 1_000_000_000 };
        let unit = |unit: &str, operations: f64| Operations {
            unit: unit.into(),
            loads: false,
            threads: 2,
            operations: operations as u64,
            ns: 1_000_000_000,
        };
        let with_loads = |unit: Operations| Operations { loads: true, ..unit };
        let probed = Limits {
            reads: vec![
                reads(1, 1, 20_000_000_000),
                reads(2, 1, 30_000_000_000),
                reads(2, 4, 40_000_000_000),
            ],
            units: vec![
                unit("f32_fma", 0.2e12),
                unit("avx512_bf16", 0.4e12),
                unit("avx512_vnni", 0.8e12),
                unit("amx_bf16", 5.8e12),
                with_loads(unit("amx_bf16", 4e12)),
                with_loads(unit("amx_int8", 10e12)),
            ],
            ..Limits::default()
        };
        let facts = Facts {
            device: Some("cpu".into()),
            weights_dtype: Some("bf16".into()),
            compute_dtype: Some("bf16".into()),
            kv_dtype: Some("bf16".into()),
            ..Facts::default()
        };
        let hello = HelloFacts { stamp: Stamp::Token, ..HelloFacts::default() };
        let iteration = Iteration { start_ns: 0, end_ns: u64::MAX, sequences };
        Self {
            configuration: Configuration {
                model,
                device: "cpu".into(),
                threads: 2,
                ..Configuration::default()
            },
            machine: Machine { cpu, ..Machine::default() },
            limits: record::Limits { block: 0, probed },
            launch: Launch {
                hello: Some(hello),
                loaded: Some(Loaded { facts, ..Loaded::default() }),
                ..Launch::default()
            },
            sample: Sample { iteration, ..Sample::default() },
            kind: Kind::Warm,
        }
    }

    fn dtypes(mut self, weights: &str, compute: Option<&str>) -> Self {
        let facts = &mut self.launch.loaded.as_mut().unwrap().facts;
        (facts.weights_dtype, facts.compute_dtype) = (Some(weights.into()), compute.map(Into::into));
        self
    }

    fn share(&self, metric: &str) -> Vec<f64> {
        (named(metric).unwrap().of)(&Observation {
            configuration: Some(&self.configuration),
            machine: Some(&self.machine),
            limits: Some(&self.limits.probed),
            ..Observation::without_record(&self.sample, &self.launch, self.kind, Mode::Warm)
        })
    }
}

fn assert_close(actual: &[f64], expected: f64) {
    assert!(
        actual.len() == 1 && (actual[0] / expected - 1.0).abs() < 1e-9,
        "{actual:?}, expected {expected}"
    );
}

#[test]
fn a_llama_of_1b_parameters_reads_2_5_gb_for_a_token() {
    let gigabytes = |dtype| (LLAMA.weight_bytes(dtype).unwrap() / 1e6).round() / 1e3;
    assert_eq!(gigabytes("BF16"), 2.472);
    assert_eq!(gigabytes("q8_0"), 1.313);
    assert_eq!(gigabytes("q4_k"), 0.695);
    assert_eq!(LLAMA.weight_bytes("of_a_later_version"), None);
}

#[test]
fn the_bandwidth_share_of_a_decode_is_its_bytes_per_second_divided_by_the_limit() {
    // Three tokens in 300 ms after the first, with a prompt of 10: weights three times, and 11 + 12 + 13 positions of 32,768
    // bytes. At two threads the best read is 40 GB/s, with four streams.
    let bytes = 3.0 * 2.0 * READ_PER_TOKEN + 36.0 * 32_768.0;
    let observed = || Setup::of(vec![sequence(10, &[50, 150, 250, 350])]);
    assert_close(&observed().share("bandwidth_share"), bytes / 0.3 / 40e9);
    // The limit of one thread is its own rate. With more threads than any probe had, the limit is the rate of the probe with the
    // most threads.
    let threads = |threads| {
        let mut observed = observed();
        observed.configuration.threads = threads;
        observed.share("bandwidth_share")
    };
    assert_close(&threads(1), bytes / 0.3 / 20e9);
    assert_close(&threads(9), bytes / 0.3 / 40e9);
    assert_eq!(threads(0), NO_VALUES);
}

#[test]
fn keys_and_values_count_in_their_own_dtype() {
    let mut observed = Setup::of(vec![sequence(10, &[50, 350])]).dtypes("q8_0", Some("f32"));
    let weights = READ_PER_TOKEN * 8.5 / 8.0;
    assert_close(&observed.share("bandwidth_share"), (weights + 11.0 * 32_768.0) / 0.3 / 40e9);
    // If the cache's dtype is not reported, the compute dtype counts.
    observed.launch.loaded.as_mut().unwrap().facts.kv_dtype = None;
    assert_close(&observed.share("bandwidth_share"), (weights + 11.0 * 65_536.0) / 0.3 / 40e9);
}

#[test]
fn a_batch_reads_the_weights_once_for_all_its_sequences() {
    let observed = Setup::of(vec![sequence(10, &[50, 150, 250]), sequence(20, &[50, 150, 250])]);
    let positions = f64::from(11 + 12 + 21 + 22);
    assert_close(
        &observed.share("bandwidth_share"),
        (2.0 * 2.0 * READ_PER_TOKEN + positions * 32_768.0) / 0.2 / 40e9,
    );
}

#[test]
fn the_compute_share_of_a_prefill_depends_on_its_dtypes() {
    // 100 tokens in 2 s: all weights for each token, but the output's weights for the last token only. 5,050 pairs of a token
    // and a token that it attends to.
    let operations = 2.0 * ((READ_PER_TOKEN - OUTPUT) * 100.0 + OUTPUT + 5050.0 * ATTENDED);
    let share = |weights, compute| {
        Setup::of(vec![sequence(100, &[2000])]).dtypes(weights, Some(compute)).share("compute_share")
    };
    assert_close(&share("f32", "f32"), operations / 2.0 / 0.2e12);
    assert_close(&share("bf16", "f32"), operations / 2.0 / 0.2e12);
    // The limit is that of tiles with operands from the cache, not from registers.
    assert_close(&share("bf16", "bf16"), operations / 2.0 / 4e12);
    assert_close(&share("q8_0", "f32"), operations / 2.0 / 10e12);
    assert_close(&share("q4_0", "int8"), operations / 2.0 / 10e12);
}

#[test]
fn without_tiles_the_fastest_unit_for_the_dtypes_is_the_limit() {
    let mut observed = Setup::of(vec![sequence(100, &[2000])]);
    let share_with_tiles = observed.share("compute_share")[0];
    observed.limits.probed.units.retain(|unit| !unit.unit.starts_with("amx"));
    assert_close(&observed.share("compute_share"), share_with_tiles * 10.0);
    observed.limits.probed.units.retain(|unit| unit.unit == "f32_fma");
    assert_close(&observed.share("compute_share"), share_with_tiles * 20.0);
    observed.limits.probed.units.clear();
    assert_eq!(observed.share("compute_share"), NO_VALUES);
}

#[test]
fn prompt_tokens_from_a_cache_are_not_computed_but_are_attended_to() {
    let mut cached = sequence(100, &[2000]);
    cached.cached_prompt_tokens = Some(90);
    let pairs: f64 = (91..=100).map(f64::from).sum();
    assert_eq!(
        prefill_operations(&LLAMA, &cached),
        2.0 * ((READ_PER_TOKEN - OUTPUT) * 10.0 + OUTPUT + pairs * ATTENDED)
    );
    cached.cached_prompt_tokens = Some(u32::MAX);
    assert_eq!(prefill_operations(&LLAMA, &cached), 0.0);
}

#[test]
fn weights_that_caches_may_hold_have_no_share_of_bandwidth() {
    let mut observed = Setup::of(vec![sequence(10, &[50, 350])]);
    // The least size with a share is four times the cache: 128 MiB, or 64 Mi weights of bf16.
    observed.configuration.model.sizes.as_mut().unwrap().read_per_token = 64 << 20;
    assert_eq!(observed.share("bandwidth_share").len(), 1);
    assert_eq!(observed.share("compute_share").len(), 1);
    observed.configuration.model.sizes.as_mut().unwrap().read_per_token -= 1;
    assert_eq!(observed.share("bandwidth_share"), NO_VALUES);
}

#[test]
fn threads_on_several_last_level_caches_have_the_sum_of_their_sizes() {
    let cache = |level, size_bytes, shared_by| Cache { level, size_bytes, shared_by, ..Cache::default() };
    let cpu = |caches| Cpu { logical_cores: Some(64), caches, ..Cpu::default() };
    let several = cpu(vec![cache(1, 32 << 10, 2), cache(2, 1 << 20, 2), cache(3, 32 << 20, 16)]);
    let bytes = [1, 2, 4, 100].map(|threads| last_level_cache_bytes(&several, threads));
    assert_eq!(bytes, [32, 64, 128, 128].map(|mib| Some(mib << 20)));
    assert_eq!(last_level_cache_bytes(&cpu(Vec::new()), 4), None);
    assert_eq!(min_uncached_bytes(&cpu(Vec::new()), 4), f64::from(1 << 30));
}

#[test]
fn an_unknown_fact_leaves_the_share_out() {
    let counts =
        |observed: &Setup| ["bandwidth_share", "compute_share"].map(|metric| observed.share(metric).len());
    let observed = || Setup::of(vec![sequence(10, &[50, 350])]);
    assert_eq!(counts(&observed()), [1, 1]);
    assert_eq!(counts(&observed().dtypes("of_a_later_version", Some("of_a_later_version"))), [0, 0]);
    assert_eq!(counts(&observed().dtypes("bf16", None)), [1, 0]);
    let changed = |change: fn(&mut Setup)| {
        let mut observed = observed();
        change(&mut observed);
        counts(&observed)
    };
    assert_eq!(changed(|it| it.configuration.model.sizes = None), [0, 0]);
    let on_a_gpu = |it: &mut Setup| it.launch.loaded.as_mut().unwrap().facts.device = Some("cuda".into());
    assert_eq!(changed(on_a_gpu), [0, 0]);
    assert_eq!(changed(|it| it.launch.loaded = None), [0, 0]);
    assert_eq!(changed(|it| it.limits.probed = Limits::default()), [0, 0]);
    assert_eq!(changed(|it| it.kind = Kind::Launch), [1, 0]);
}

#[test]
fn extreme_facts_give_finite_shares_or_none() {
    let mut observed = Setup::of(vec![sequence(u32::MAX, &[1, 1, 2]), sequence(0, &[]), Sequence::default()]);
    observed.configuration.model.sizes = Some(Sizes {
        parameters: u64::MAX,
        read_per_token: u64::MAX,
        output: u64::MAX,
        kv_numbers_per_position: u64::MAX,
        attended_per_position: u64::MAX,
    });
    for ns in [0, 1, u64::MAX] {
        observed.limits.probed.reads.iter_mut().for_each(|it| it.ns = ns);
        observed.limits.probed.units.iter_mut().for_each(|it| it.ns = ns);
        for metric in ["bandwidth_share", "compute_share"] {
            assert!(observed.share(metric).iter().all(|share| share.is_finite()), "{metric} at {ns}");
        }
    }
}

#[test]
fn bits_per_number_equal_the_stored_bits_of_model_files() {
    for dtype in model_files::Dtype::ALL {
        let (numbers, bytes) = dtype.block();
        assert_eq!(bits(dtype.as_str()), Some(bytes as f64 * 8.0 / numbers as f64), "{dtype:?}");
    }
}

/// A request on the second GPU of a machine, with the device as its engine reports it.
fn on_a_gpu(device: &str, gpu: GpuLimits) -> Setup {
    let mut observed = Setup::of(vec![sequence(10, &[50, 150, 250, 350])]);
    observed.configuration.device = "cuda:1".into();
    observed.launch.loaded.as_mut().unwrap().facts.device = Some(device.into());
    observed.limits.probed.gpus = vec![GpuLimits::default(), GpuLimits { index: 1, ..gpu }];
    observed
}

fn gpu() -> GpuLimits {
    let product = |unit: &str, operations| Operations {
        unit: unit.into(),
        operations,
        ns: 1_000_000_000,
        ..Operations::default()
    };
    GpuLimits {
        l2_bytes: Some(50 << 20),
        copies: Some(Copies { bytes: 80_000_000_000, ns: 1_000_000_000 }),
        matrix: vec![product("cublas_bf16", 40_000_000_000_000), product("cublas_f32", 5_000_000_000_000)],
        ..GpuLimits::default()
    }
}

#[test]
fn on_a_gpu_the_limits_are_copies_and_matrix_products_of_the_dtype() {
    let on_cpu = |dtype: &str, metric: &str| {
        let mut observed = Setup::of(vec![sequence(10, &[50, 150, 250, 350])]).dtypes("bf16", Some(dtype));
        // The remaining limits are 40 GB/s and 0.2 Tops/s of f32.
        observed.limits.probed.units.retain(|unit| unit.unit == "f32_fma");
        observed.share(metric)[0]
    };
    for device in ["cuda:1", "cuda", "CUDA:1", "Cuda"] {
        let on_gpu = || on_a_gpu(device, gpu());
        assert_close(&on_gpu().share("bandwidth_share"), on_cpu("bf16", "bandwidth_share") * 40.0 / 80.0);
        let share = |dtype| on_gpu().dtypes("bf16", Some(dtype)).share("compute_share");
        assert_close(&share("bf16"), on_cpu("bf16", "compute_share") * 0.2 / 40.0);
        for f32 in ["F32", "float32", "fp32"] {
            assert_close(&share(f32), on_cpu("f32", "compute_share") * 0.2 / 5.0);
        }
        for f16 in ["f16", "float16", "fp16", "half"] {
            let mut gpu = gpu();
            gpu.matrix[0].unit = "cublas_f16".into();
            let of_f16 = on_a_gpu(device, gpu).dtypes("bf16", Some(f16)).share("compute_share");
            assert_close(&of_f16, on_cpu("bf16", "compute_share") * 0.2 / 40.0);
        }
        assert_eq!(share("f16"), NO_VALUES);
        assert_eq!(share("fp8"), NO_VALUES);
    }
}

#[test]
fn an_unknown_or_unprobed_gpu_has_no_shares() {
    let shares =
        |observed: &Setup| [observed.share("bandwidth_share"), observed.share("compute_share")].concat();
    assert_eq!(shares(&on_a_gpu("cuda:1", GpuLimits::default())), NO_VALUES);
    for device in ["cuda:0", "cuda:2", "cuda:x", "cudax", "metal", "cuda:"] {
        assert_eq!(shares(&on_a_gpu(device, gpu())), NO_VALUES, "{device}");
    }
}

#[test]
fn weights_that_a_gpu_keeps_in_its_cache_have_no_bandwidth_share() {
    let bytes = LLAMA.weight_bytes("bf16").unwrap() as u64;
    let share = |l2_bytes| on_a_gpu("cuda:1", GpuLimits { l2_bytes, ..gpu() }).share("bandwidth_share").len();
    assert_eq!((share(Some(bytes / 4)), share(Some(bytes / 4 + 1)), share(None)), (1, 0, 1));
}

#[test]
fn a_share_up_to_the_limit_has_one_of_four_classes() {
    let classes = [0.0, 0.494, 0.495, 0.794, 0.795, 0.894, 0.895, 1.004].map(Class::of);
    let expected = [Class::Below50, Class::From50, Class::From80, Class::From90].map(Some);
    assert_eq!(classes.chunks(2).map(|pair| pair[0]).collect::<Vec<_>>(), expected);
    assert!(classes.chunks(2).all(|pair| pair[0] == pair[1]), "{classes:?}");
    assert_eq!(serde_json::to_string(&Class::of(0.86)).unwrap(), "\"80_to_90\"");
    assert_eq!([1.006, f64::NAN, -0.1].map(Class::of), [None; 3]);
}
