//! Compares the decode step on a GPU with the network on a CPU in f32, and measures it. `cuda-check --help` lists the options.
//!
//! Each result is printed at once, so that a crash shows where it happened.
#![expect(clippy::print_stdout, reason = "a program that prints its results")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use engine_kit::Phases;
use engine_kit::protocol::{Failed, Load};
use lmrs::cuda::cache;
use lmrs::cuda::decoder::CudaDecoder;
use lmrs::cuda::driver::KernelAttribute;
use lmrs::cuda::kernels::{self, Ring};
use lmrs::cuda::load::{Experiment, load};
use lmrs::kernels::Level;
use lmrs::kernels::attention::KvDtype;
use lmrs::matrix::Rows;
use lmrs::model::decoder::{Decoder, Predictions, Span, Wanted};
use lmrs::network::{Angles, Network, NetworkDecoder};
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::shape::Shape;
use lmrs::weights::{Plan, RequestedFormat};
use model_files::ModelFolder;

const HELP: &str = "\
cuda-check: compares a GPU's decode step with a CPU's network in f32, and measures it

  cargo run --release -p lmrs --example cuda-check -- MODEL_FOLDER [OPTIONS]

  --tokens N       measured steps for each depth; default: 200
  --depth N,N      tokens in the cache before the measured steps; default: 0
  --compared N     positions compared with the CPU; default: 8; 0: no CPU network
  --prompt N       the length of the prompt that is compared; default: 40
  --device N       the number of the GPU; default: 0
  --ring WxSxB     warps, slots and bytes of a slot, such as 12x12x16384; default: chosen by the shape
  --no-prefill     computes prompts as steps, without cuBLAS
  --compile        only compiles the kernels for an H100 (132 multiprocessors, 232448 bytes); needs no GPU
";

/// The multiprocessors and the shared memory of a block on an H100 SXM and on an H200.
const H100: (u32, usize) = (132, 232_448);
/// The steps between two device events.
const EVENT_STEPS: usize = 100;

struct Arguments {
    folder: String,
    tokens: usize,
    depths: Vec<usize>,
    compared: usize,
    prompt: usize,
    device: u32,
    experiment: Experiment,
    only_compiles: bool,
}

fn arguments() -> Result<Option<Arguments>> {
    let mut parsed = Arguments {
        folder: String::new(),
        tokens: 200,
        depths: vec![0],
        compared: 8,
        prompt: 40,
        device: 0,
        experiment: Experiment::default(),
        only_compiles: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
        match word.as_str() {
            "--help" => return Ok(None),
            "--tokens" => parsed.tokens = value()?.parse()?,
            "--depth" => parsed.depths = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--compared" => parsed.compared = value()?.parse()?,
            "--prompt" => parsed.prompt = value()?.parse()?,
            "--device" => parsed.device = value()?.parse()?,
            "--ring" => {
                let sizes: Vec<usize> = value()?.split('x').map(str::parse).collect::<Result<_, _>>()?;
                parsed.experiment.ring = Some(sizes.as_slice().try_into().context("`--ring` needs WxSxB")?);
            }
            "--no-prefill" => parsed.experiment.without_prefill = true,
            "--compile" => parsed.only_compiles = true,
            option if option.starts_with('-') => bail!("unknown option `{option}`"),
            folder => parsed.folder = folder.to_string(),
        }
    }
    ensure!(!parsed.folder.is_empty(), "no model folder; `cuda-check --help` lists the options");
    Ok(Some(parsed))
}

fn main() -> Result<()> {
    let Some(arguments) = arguments()? else {
        print!("{HELP}");
        return Ok(());
    };
    let folder = ModelFolder::open(Path::new(&arguments.folder))?;
    if arguments.only_compiles {
        return compile(&folder, arguments.experiment.ring);
    }
    println!("loading on cuda:{}", arguments.device);
    let began = Instant::now();
    let request = Load { dtype: Some("bf16".into()), ..Load::default() };
    let loaded = load(&folder, &request, arguments.device, arguments.experiment, &mut Phases::new(None));
    let (mut decoder, facts) = loaded.map_err(failure)?;
    let weights_bytes = facts.weights_bytes.unwrap_or_default();
    println!("loaded in {:.2} s: {facts:?}", began.elapsed().as_secs_f64());
    describe(&decoder)?;
    let copy_rate = copy_rate(&decoder)?;
    println!("copy: {copy_rate:.0} GB/s read and written");
    if arguments.compared > 0 {
        compare(&folder, &mut decoder, &arguments)?;
    }
    let context = decoder.context;
    for depth in arguments.depths {
        let tokens = arguments.tokens.min(context.saturating_sub(depth + EVENT_STEPS));
        ensure!(tokens > 0, "a depth of {depth} leaves no room in the context of {context}");
        measure(&mut decoder, depth, tokens, weights_bytes, copy_rate)?;
    }
    Ok(())
}

fn failure(failed: Failed) -> anyhow::Error {
    let hint = failed.hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    anyhow::anyhow!("{} ({}){hint}", failed.message, failed.kind.as_str())
}

/// Compiles the kernels into the cache on disk.
fn compile(folder: &ModelFolder, sizes: Option<[usize; 3]>) -> Result<()> {
    let shape = Shape::of(folder).map_err(failure)?;
    let (blocks, shared_bytes) = H100;
    let ring = match sizes {
        Some(sizes) => Ring::with_sizes(&shape, shared_bytes, sizes),
        None => Ring::new(&shape, shared_bytes),
    };
    let ring = ring.context("no ring fits")?;
    println!("{ring:?}");
    let sizes = kernels::size_macros(&shape);
    let with_ring = sizes.iter().cloned().chain(ring.macros(blocks)).collect();
    for (source, macros) in [(kernels::DECODE, with_ring), (kernels::PREFILL, sizes)] {
        let began = Instant::now();
        let image = kernels::image(source, &kernels::architecture((9, 0)), &macros).map_err(failure)?;
        let (bytes, seconds) = (image.bytes.len(), began.elapsed().as_secs_f64());
        println!("{}: {bytes} bytes in {seconds:.2} s, NVRTC {}, {macros:?}", source.0, image.nvrtc_version);
    }
    Ok(())
}

fn describe(decoder: &CudaDecoder) -> Result<()> {
    let (gpu, step) = (&decoder.gpu, &decoder.step);
    println!(
        "{}: {} multiprocessors, compute capability {:?}, {} bytes of shared memory in a block",
        gpu.product, gpu.multiprocessors, gpu.capability, gpu.max_shared_bytes
    );
    let attribute = |attribute| step.kernel().attribute(attribute).map_err(failure);
    let registers = attribute(KernelAttribute::Registers)?;
    let local_bytes = attribute(KernelAttribute::LocalBytes)?;
    println!("decode_step: {:?}, {registers} registers, {local_bytes} bytes of local memory", step.ring);
    Ok(())
}

/// The rate of a copy in device memory, in gigabytes per second: bytes read and bytes written.
fn copy_rate(decoder: &CudaDecoder) -> Result<f64> {
    let (gpu, bytes) = (&decoder.gpu, 1 << 30);
    let (from, to) = (gpu.allocate_zeros(bytes).map_err(failure)?, gpu.allocate(bytes).map_err(failure)?);
    let (start, end) = (gpu.event().map_err(failure)?, gpu.event().map_err(failure)?);
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        start.record().map_err(failure)?;
        from.start_copy(0, &to, 0, bytes).map_err(failure)?;
        end.record().map_err(failure)?;
        best = best.min(f64::from(end.ms_since(&start).map_err(failure)?));
    }
    Ok(2.0 * bytes as f64 / best / 1e6)
}

/// Ids that look random, and are the same in each run.
fn ids(vocabulary: usize, count: usize) -> Vec<u32> {
    let mut state = 12_345_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary as u64) as u32
    };
    (0..count).map(|_| next()).collect()
}

/// The network on a CPU in f32.
fn network(folder: &ModelFolder) -> Result<NetworkDecoder> {
    let shape = Shape::of(folder).map_err(failure)?;
    let dtype = model_files::own_dtype(folder)?.as_str().to_ascii_lowercase();
    let requested = RequestedFormat::from_name(Some("f32"), &dtype).map_err(failure)?;
    let plan = Plan::of(folder, &shape, requested).map_err(failure)?;
    let pool = Pool::new(std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let owned = plan.read(&pool, &|_| {}).map_err(failure)?;
    let weights = plan.weights(&shape, &owned).map_err(failure)?;
    let (network, ops) = (Network::new(shape, weights), Ops::new(pool, Level::best()));
    Ok(NetworkDecoder { network, ops, context: 4096, kv_dtype: KvDtype::F32 })
}

/// The result of one pass over the ids.
fn forward<D: Decoder>(
    decoder: &mut D,
    cache: &mut D::Cache,
    ids: &[u32],
    wanted: Wanted,
) -> Result<Predictions> {
    let mut predictions = Predictions::default();
    decoder.forward(&mut [Span { cache, ids, wanted }], &mut predictions).map_err(failure)?;
    Ok(predictions)
}

/// The id of the largest number, the lowest among equals.
fn largest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// A text with the largest difference of two rows of logits, beside the size of the logits, and both ids.
fn difference(found: &[f32], expected: &[f32], found_id: u32) -> String {
    let largest_difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = squares(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let relative = (error / squares(&mut expected.iter().copied())).sqrt();
    let expected_id = largest(expected);
    let verdict = if found_id == expected_id { "same" } else { "DIFFERENT" };
    let nan = if found.iter().any(|logit| !logit.is_finite()) { ", logits NOT FINITE" } else { "" };
    format!(
        "difference {largest_difference:.6} (rms {relative:.2e} of the logits), ids {found_id} and {expected_id}: {verdict}{nan}"
    )
}

fn compare(folder: &ModelFolder, decoder: &mut CudaDecoder, arguments: &Arguments) -> Result<()> {
    println!("loading on the CPU in f32");
    let mut reference = network(folder)?;
    let vocabulary = decoder.shape.vocabulary;
    let ids = ids(vocabulary, arguments.compared.max(arguments.prompt));
    let new_cache = |decoder: &mut CudaDecoder| decoder.new_cache(1).map_err(failure);
    let mut expected_cache = reference.new_cache(ids.len() + 64).map_err(failure)?;
    let (mut cache, mut second_cache) = (new_cache(decoder)?, new_cache(decoder)?);
    for (position, id) in ids.iter().take(arguments.compared).enumerate() {
        let expected = forward(&mut reference, &mut expected_cache, &[*id], Wanted::Logits)?.logits;
        let found = forward(decoder, &mut cache, &[*id], Wanted::Logits)?.logits;
        let found_id = forward(decoder, &mut second_cache, &[*id], Wanted::Largest)?.ids[0];
        println!("position {position}: id {id}: {}", difference(found.row(0), expected.row(0), found_id));
        ensure!(largest(found.row(0)) == found_id, "the id {found_id} is not that of the largest logit");
    }

    // Several rows in one pass have the bits of separate passes.
    let count = arguments.compared.min(8);
    let mut third_cache = new_cache(decoder)?;
    let together = forward(decoder, &mut third_cache, &ids[..count], Wanted::Logits)?.logits;
    let mut alone = Rows::default();
    let mut fourth_cache = new_cache(decoder)?;
    for id in &ids[..count] {
        alone = forward(decoder, &mut fourth_cache, &[*id], Wanted::Logits)?.logits;
    }
    println!("{count} rows in one pass: bits {}", if together == alone { "same" } else { "DIFFERENT" });

    let prompt = &ids[..arguments.prompt.min(ids.len())];
    reference.truncate(&mut expected_cache, 0);
    decoder.truncate(&mut cache, 0);
    let expected = forward(&mut reference, &mut expected_cache, prompt, Wanted::Logits)?.logits;
    let found = forward(decoder, &mut cache, prompt, Wanted::Logits)?.logits;
    let text = difference(found.row(0), expected.row(0), largest(found.row(0)));
    println!("prompt of {} ids: {text}", prompt.len());

    let (mut id, mut same) = (largest(expected.row(0)), 0);
    let mut differences = Vec::new();
    for step in 0..32 {
        let expected = forward(&mut reference, &mut expected_cache, &[id], Wanted::Largest)?.ids[0];
        let found = forward(decoder, &mut cache, &[id], Wanted::Largest)?.ids[0];
        if found == expected {
            same += 1;
        } else {
            differences.push(step);
        }
        id = expected;
    }
    println!(
        "greedy after the prompt, with the CPU's ids as input: {same} of 32 ids are the same, others at {differences:?}"
    );
    Ok(())
}

/// Fills a cache up to `depth`, and measures steps after it.
fn measure(
    decoder: &mut CudaDecoder,
    depth: usize,
    tokens: usize,
    weights_bytes: u64,
    copy_rate: f64,
) -> Result<()> {
    println!("depth {depth}: filling the cache");
    let capacity = depth + tokens.max(EVENT_STEPS) + 1;
    let mut cache = decoder.new_cache(capacity).map_err(failure)?;
    let ids = ids(decoder.shape.vocabulary, depth.max(1));
    if decoder.prefill.is_none() {
        // Zeros as keys and values have the time of others.
        cache.grow(depth);
    } else if depth > 0 {
        let began = Instant::now();
        for chunk in ids[..depth].chunks(1024) {
            forward(decoder, &mut cache, chunk, Wanted::Nothing)?;
        }
        decoder.gpu.synchronize().map_err(failure)?;
        let seconds = began.elapsed().as_secs_f64();
        println!("depth {depth}: prefill {seconds:.4} s, {:.0} tok/s", depth as f64 / seconds);
    }

    let mut id = ids[0];
    let mut times = Vec::with_capacity(tokens);
    for _ in 0..tokens {
        let began = Instant::now();
        id = forward(decoder, &mut cache, &[id], Wanted::Largest)?.ids[0];
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let quantile = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let position_bytes = cache::bytes_for(&decoder.shape, 1) as u64;
    let cached_bytes = |position: usize| position_bytes * position as u64;
    let bytes = weights_bytes + cached_bytes(depth + tokens / 2);
    let [p5, median, p95] = [0.05, 0.5, 0.95].map(quantile);
    let [fast, middle, slow] = [p5, median, p95].map(|time| time.as_secs_f64() * 1e6);
    println!(
        "depth {depth}: {tokens} steps by the host's clock: median {middle:.1} us, p5 {fast:.1}, p95 {slow:.1}; {}",
        rate(bytes, median, copy_rate)
    );

    decoder.truncate(&mut cache, depth);
    let gpu = &decoder.gpu;
    let (start, end) = (gpu.event().map_err(failure)?, gpu.event().map_err(failure)?);
    let mut angles = Angles::default();
    let rotation = decoder.shape.rotation.as_ref().context("no rotation")?;
    rotation.angles(depth..depth + EVENT_STEPS, &mut angles);
    start.record().map_err(failure)?;
    let mut last = 0;
    for index in 0..EVENT_STEPS {
        let place = (id, depth + index);
        last = decoder.step.start(&cache, place, (&angles, index), true).map_err(failure)?;
    }
    end.record().map_err(failure)?;
    decoder.step.wait(last).map_err(failure)?;
    let ms = end.ms_since(&start).map_err(failure)? / EVENT_STEPS as f32;
    let bytes = weights_bytes + cached_bytes(depth + EVENT_STEPS / 2);
    let time = Duration::from_secs_f64(f64::from(ms) / 1e3);
    println!(
        "depth {depth}: {EVENT_STEPS} steps one after the other by the device's clock: {:.1} us each; {}",
        ms * 1e3,
        rate(bytes, time, copy_rate)
    );
    Ok(())
}

fn rate(bytes: u64, time: Duration, copy_rate: f64) -> String {
    let rate = bytes as f64 / time.as_secs_f64() / 1e9;
    let tokens = 1.0 / time.as_secs_f64();
    format!("{tokens:.0} tok/s, {rate:.0} GB/s, {:.0} % of the copy", 100.0 * rate / copy_rate)
}
