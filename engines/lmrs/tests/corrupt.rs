//! Tests that damaged files, truncated files and files with false sizes are loaded or refused: without a panic, and without an
//! allocation of 32 MiB or more.
#![expect(clippy::unwrap_used, reason = "tests panic")]
#![expect(unsafe_code, reason = "an allocator that records the largest request")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use engine_kit::sampling::Rng;
use lmrs::cache::Cache;
use lmrs::kernels::Level;
use lmrs::kernels::attention::KvDtype;
use lmrs::network::{Network, Predictions, Span, Wanted};
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::shape::Shape;
use lmrs::weights::{Plan, RequestedFormat};
use model_files::{Dtype, Format, ModelFolder};
use protocol::{Failed, FailureKind};
use serde_json::{Value, json};

/// Bytes of the largest single allocation.
static LARGEST_ALLOCATION: AtomicUsize = AtomicUsize::new(0);

struct RecordingAllocator;

// SAFETY: the system allocator does all the work; only sizes are recorded.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_ALLOCATION.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees what `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST_ALLOCATION.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

/// The largest allowed allocation: the models here have a few hundred thousand bytes.
const MAX_ALLOCATION_BYTES: usize = 32 << 20;
/// Lets one test at a time record allocations.
static ALLOCATION_LOCK: Mutex<()> = Mutex::new(());

fn load(path: &Path) -> Result<(), Failed> {
    let to_failed = |error: anyhow::Error| Failed::new(FailureKind::Model, format!("{error:#}"));
    let folder = ModelFolder::open(path).map_err(to_failed)?;
    let shape = Shape::of(&folder)?;
    let plan = Plan::of(&folder, &shape, RequestedFormat::File)?;
    let owned = plan.read(&Pool::new(1), &|_| ())?;
    let weights = plan.weights(&shape, &owned)?;
    let mut cache = Cache::new(&shape, 16, KvDtype::F16).map_err(to_failed)?;
    let mut network = Network::new(shape, weights);
    let mut ops = Ops::new(Pool::new(1), Level::best());
    let span = Span { cache: &mut cache, ids: &[0, 1, 2], wanted: Wanted::Logits };
    network.forward(&mut ops, &mut [span], &mut Predictions::default()).map_err(to_failed)
}

/// Checks that a load and a forward pass succeed, or fail with a message. Returns the failure.
fn check_load(path: &Path, case: &str) -> Option<Failed> {
    LARGEST_ALLOCATION.store(0, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| load(path)));
    let largest = LARGEST_ALLOCATION.load(Ordering::Relaxed);
    assert!(largest < MAX_ALLOCATION_BYTES, "{case}: {largest} bytes at once");
    let failed = outcome.unwrap_or_else(|_| panic!("{case}: a panic")).err()?;
    let kinds = [FailureKind::Model, FailureKind::Unsupported, FailureKind::OutOfMemory];
    assert!(kinds.contains(&failed.kind) && !failed.message.is_empty(), "{case}: {failed:?}");
    Some(failed)
}

struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
    weights: PathBuf,
    /// The undamaged bytes of `weights`.
    bytes: Vec<u8>,
}

fn synthesise_model(name: &str) -> Model {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/configs/{name}.json"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let shape = model_files::Shape::of_config(&config).unwrap();
    let goal = model_files::Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: path.clone() };
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    let weights = path.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    Model { _folder: folder, path, weights, bytes }
}

fn gguf(name: &str, dtype: Dtype) -> Model {
    let model = synthesise_model(name);
    let path = model.path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype, out: path.clone() };
    model_files::convert(&ModelFolder::open(&model.path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    Model { _folder: model._folder, weights: path.clone(), path, bytes }
}

/// The approximate end of the header, after which the numbers of the weights begin.
fn header_end(model: &Model) -> usize {
    match model.path.extension() {
        Some(_) => {
            let name = b"token_embd.weight";
            let at = model.bytes.windows(name.len()).position(|bytes| bytes == name);
            // The rest of the header is shorter than 4,000 bytes.
            (at.unwrap() + 4000).min(model.bytes.len())
        }
        None => 8 + u64::from_le_bytes(model.bytes[..8].try_into().unwrap()) as usize,
    }
}

fn damage(model: &Model, rng: &mut Rng) -> (String, Vec<u8>) {
    let mut below = |limit: usize| ((rng.next_f64() * limit as f64) as usize).min(limit.saturating_sub(1));
    let mut bytes = model.bytes.clone();
    let head = header_end(model);
    let at = below(head);
    let description = match below(5) {
        0 => {
            bytes.truncate(below(bytes.len()));
            format!("cut to {}", bytes.len())
        }
        1 => {
            bytes[at] ^= 1 << below(8);
            format!("a flipped bit in byte {at}")
        }
        2 => {
            let sizes = [0, 1, u64::MAX, 1 << 63, 1 << 40, 1 << 32, u64::from(u32::MAX), 1 << 31];
            let size = sizes[below(sizes.len())];
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&size.to_le_bytes()[..end - at]);
            format!("{size} at byte {at}")
        }
        3 => {
            let digits: Vec<usize> = (0..head).filter(|at| bytes[*at].is_ascii_digit()).collect();
            let at = digits[below(digits.len())];
            bytes[at] = b'0' + below(10) as u8;
            format!("another digit at byte {at}")
        }
        _ => {
            let (from, count) = (below(head), below(40));
            let removed = bytes.drain(from..(from + count).min(head)).count();
            format!("without {removed} bytes at {from}")
        }
    };
    (description, bytes)
}

fn check_damaged(model: &Model, seed: u64, cases: usize) {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(check_load(&model.path, "undamaged"), None);
    let mut rng = Rng::new(seed);
    for case in 0..cases {
        let (description, bytes) = damage(model, &mut rng);
        std::fs::write(&model.weights, bytes).unwrap();
        check_load(&model.path, &format!("case {case} of seed {seed}, {description}"));
    }
}

#[test]
fn a_damaged_safetensors_file_is_loaded_or_refused() {
    check_damaged(&synthesise_model("llama"), 1, 300);
    check_damaged(&synthesise_model("gpt2"), 2, 100);
}

#[test]
fn a_damaged_gguf_file_is_loaded_or_refused() {
    for (seed, dtype) in [Dtype::Q8_0, Dtype::Q4_0, Dtype::F16, Dtype::BF16].into_iter().enumerate() {
        check_damaged(&gguf("llama", dtype), seed as u64, 120);
    }
    check_damaged(&gguf("phi3", Dtype::Q8_0), 9, 120);
}

/// The fields that contain sizes, which must not be 0. After any other change, the model may be loaded or refused.
const SIZE_FIELDS: [&str; 8] = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "n_embd",
    "n_layer",
    "n_head",
];

#[test]
fn a_config_with_a_wrong_value_for_a_number_is_loaded_or_refused() {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    for name in ["llama", "qwen2-window", "gpt2", "gemma", "phi3", "llama3"] {
        let model = synthesise_model(name);
        let path = model.path.join("config.json");
        let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let numbers = config.as_object().unwrap().iter().filter(|(_, value)| value.is_number());
        let wrong_values = json!([0, 1, 3, 5, 7, 13, -1, u32::MAX, 1_u64 << 40, "x", 1e300]);
        for (field, _) in numbers {
            for wrong in wrong_values.as_array().unwrap() {
                let mut changed = config.clone();
                changed[field] = wrong.clone();
                std::fs::write(&path, changed.to_string()).unwrap();
                let case = format!("{name} with `{field}` {wrong}");
                let failed = check_load(&model.path, &case);
                let is_size = SIZE_FIELDS.contains(&field.as_str());
                assert!(failed.is_some() || !is_size || *wrong != json!(0), "{case} was loaded");
            }
        }
    }
}

/// In the file, each integer of GGUF metadata stands after its key and 4 bytes for its type.
#[test]
fn a_gguf_with_a_wrong_number_in_its_metadata_is_loaded_or_refused() {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    for name in ["llama", "gpt2", "phi3", "qwen2"] {
        let model = gguf(name, Dtype::Q8_0);
        let folder = ModelFolder::open(&model.path).unwrap();
        let numbers = folder.config.raw.as_object().unwrap().iter().filter(|(_, value)| value.is_u64());
        for (key, _) in numbers.filter(|(key, _)| key.starts_with(name)) {
            let prefix = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes()].concat();
            let at = model.bytes.windows(prefix.len()).position(|bytes| bytes == prefix).unwrap();
            let at = at + prefix.len() + 4;
            for wrong in [0, 1, 3, 5, 7, 13, 32, 1 << 31, u32::MAX] {
                let mut bytes = model.bytes.clone();
                bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
                std::fs::write(&model.weights, bytes).unwrap();
                check_load(&model.path, &format!("{name} with `{key}` {wrong}"));
            }
        }
    }
}

#[test]
fn a_wrong_number_of_heads_is_reported_with_the_name_of_its_field() {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let model = synthesise_model("gpt2");
    let path = model.path.join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // The hidden size, 64, does not divide into these numbers of heads.
    for heads in [5, 7, 13] {
        let mut changed = config.clone();
        changed["n_head"] = json!(heads);
        std::fs::write(&path, changed.to_string()).unwrap();
        let failed = check_load(&model.path, "heads").unwrap();
        assert!(failed.message.contains("`n_head`"), "{failed:?}");
    }
    let mut changed = config;
    changed["num_key_value_heads"] = json!(2);
    std::fs::write(&path, changed.to_string()).unwrap();
    let failed = check_load(&model.path, "heads of keys").unwrap();
    assert!(failed.message.contains("2 heads of keys and values"), "{failed:?}");
}

#[test]
fn a_wrong_size_is_reported_with_the_name_of_its_tensor() {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let model = synthesise_model("llama");
    let header = String::from_utf8(model.bytes[8..header_end(&model)].to_vec()).unwrap();
    let mut tensors: Value = serde_json::from_str(header.trim()).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    tensors[name]["shape"][0] = json!(1_u64 << 60);
    let header = tensors.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(&model.bytes[header_end(&model)..]);
    std::fs::write(&model.weights, bytes).unwrap();
    let failed = check_load(&model.path, "a shape of 2^60 rows").unwrap();
    assert!(failed.message.contains(name), "{failed:?}");
    let mut bytes = model.bytes.clone();
    bytes[..8].copy_from_slice(&(1_u64 << 50).to_le_bytes());
    std::fs::write(&model.weights, bytes).unwrap();
    let failed = check_load(&model.path, "a header of 2^50 bytes").unwrap();
    assert!(failed.message.contains("model.safetensors") && failed.message.contains("header"), "{failed:?}");
}

/// The file has 2^40 bytes, but almost no bytes are stored on the disk.
#[test]
fn rotation_factors_are_counted_before_they_are_read() {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let model = gguf("llama3", Dtype::BF16);
    let folder = ModelFolder::open(&model.path).unwrap();
    let offset = |tensor: &model_files::Tensor| tensor.offset;
    let begin = folder.tensors.iter().map(offset).min().unwrap();
    let factors_offset = (model.bytes.len() as u64 - begin).next_multiple_of(32);
    let name = b"rope_freqs.weight";
    let at = model.bytes.windows(name.len()).position(|bytes| bytes == name).unwrap() + name.len();
    let (mut bytes, count) = (model.bytes.clone(), 1_u64 << 38);
    // After the name: the number of dimensions, the single dimension, the type, the offset.
    bytes[at + 4..at + 12].copy_from_slice(&count.to_le_bytes());
    bytes[at + 16..at + 24].copy_from_slice(&factors_offset.to_le_bytes());
    std::fs::write(&model.weights, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&model.weights).unwrap();
    file.set_len(begin + factors_offset + 4 * count).unwrap();
    let failed = check_load(&model.path, "2^38 factors").unwrap();
    let expected = format!("model.gguf`: tensor `rope_freqs.weight`: {count} factors, expected 8");
    assert!(failed.message.ends_with(&expected), "{failed:?}");
    // A conversion fails in the same way, and also reads nothing.
    LARGEST_ALLOCATION.store(0, Ordering::Relaxed);
    let goal = model_files::Goal {
        format: Format::Safetensors,
        dtype: Dtype::BF16,
        out: model.path.with_extension("converted"),
    };
    let folder = ModelFolder::open(&model.path).unwrap();
    let failed = model_files::convert(&folder, &goal, &|_, _| Ok(())).map(|_| ()).unwrap_err();
    let expected = format!("tensor `rope_freqs.weight`: expected 8 numbers, found {count}");
    assert!(format!("{failed:#}").contains(&expected), "{failed:#}");
    assert!(LARGEST_ALLOCATION.load(Ordering::Relaxed) < MAX_ALLOCATION_BYTES);
}
