//! Compares the network with PyTorch, and with itself: a prompt at once and in pieces, sequences alone and in a batch, different
//! numbers of threads.
//!
//! The numbers expected from PyTorch are in `tests/golden/*.json`, which `tests/golden/make.py` writes.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

use lmrs::cache::Cache;
use lmrs::formats::{self, F16, F32};
use lmrs::kernels::Level;
use lmrs::kernels::attention::KvDtype;
use lmrs::matrix::Rows;
use lmrs::network::{MAX_PASS_TOKENS, Network, NotFinite, Predictions, Span, Wanted};
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::shape::Shape;
use lmrs::weights::{Plan, RequestedFormat};
use model_files::{Dtype, Format, ModelFolder, blocks};
use serde_json::Value;

struct Golden {
    name: String,
    ids: Vec<u32>,
    logprobs: Vec<f64>,
    greedy: Vec<u32>,
    /// The root mean square of the differences between PyTorch's log-probabilities in bf16 and in f32.
    bf16_rms: f64,
}

fn goldens() -> Vec<Golden> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder.join("configs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let golden = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let ids = |field: &str| {
            value[field].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let logprobs = value["logprobs"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap());
        let bf16_rms = value["bf16_rms"].as_f64().unwrap();
        Golden { ids: ids("ids"), greedy: ids("greedy"), logprobs: logprobs.collect(), bf16_rms, name }
    };
    paths.iter().map(golden).collect()
}

/// Makes the model of a golden file in a temporary folder. Its seed, 7, is that of `make.py`.
fn synthesise_model(name: &str, dtype: Dtype) -> (tempfile::TempDir, PathBuf) {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/configs/{name}.json"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model");
    let shape = model_files::Shape::of_config(&config).unwrap();
    let goal = model_files::Goal { format: Format::Safetensors, dtype, out: out.clone() };
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    (folder, out)
}

fn gguf_of(path: &Path, dtype: Dtype) -> PathBuf {
    let out = path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype, out: out.clone() };
    model_files::convert(&ModelFolder::open(path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    out
}

fn load(path: &Path, requested: RequestedFormat, ops: &Ops) -> Network {
    let folder = ModelFolder::open(path).unwrap();
    let shape = Shape::of(&folder).unwrap();
    let plan = Plan::of(&folder, &shape, requested).unwrap();
    let owned = plan.read(&ops.pool, &|_| ()).unwrap();
    let weights = plan.weights(&shape, &owned).unwrap();
    Network::new(shape, weights)
}

fn ops(threads: usize) -> Ops {
    Ops::new(Pool::new(threads), Level::best())
}

fn forward(network: &mut Network, ops: &mut Ops, spans: &mut [Span]) -> Predictions {
    let mut predictions = Predictions::default();
    network.forward(ops, spans, &mut predictions).unwrap();
    predictions
}

/// The logits after the last of the ids.
fn logits(network: &mut Network, ops: &mut Ops, cache: &mut Cache, ids: &[u32]) -> Rows {
    forward(network, ops, &mut [Span { cache, ids, wanted: Wanted::Logits }]).logits
}

/// The logits after each of the ids.
fn every_logits(network: &mut Network, ops: &mut Ops, cache: &mut Cache, ids: &[u32]) -> Rows {
    let mut all = Rows::new(0, network.shape.vocabulary);
    network.forward_each(ops, cache, ids, &mut |_, rows| all.append(rows.all())).unwrap();
    all
}

fn read_ids(network: &mut Network, ops: &mut Ops, cache: &mut Cache, ids: &[u32]) {
    let actual = forward(network, ops, &mut [Span { cache, ids, wanted: Wanted::Nothing }]);
    assert!(actual.ids.is_empty() && actual.logits.tokens() == 0, "no result was requested");
}

fn logprob(logits: &[f32], id: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(logits[id as usize] - largest) - sum.ln()
}

fn largest_difference(logits: &Rows, golden: &Golden) -> f64 {
    differences(logits, golden).into_iter().map(f64::abs).fold(0.0, f64::max)
}

fn differences(logits: &Rows, golden: &Golden) -> Vec<f64> {
    let expected = golden.logprobs.iter().enumerate();
    expected.map(|(at, expected)| logprob(logits.row(at), golden.ids[at + 1]) - expected).collect()
}

/// Decodes greedily: reads the prompt at once, then one token at a time.
fn greedy(network: &mut Network, ops: &mut Ops, kv_dtype: KvDtype, ids: &[u32], count: usize) -> Vec<u32> {
    let mut cache = Cache::new(&network.shape, 256, kv_dtype).unwrap();
    let (mut generated, mut next): (Vec<u32>, Vec<u32>) = (Vec::new(), ids.to_vec());
    for _ in 0..count {
        let span = Span { cache: &mut cache, ids: &next, wanted: Wanted::Largest };
        next = forward(network, ops, &mut [span]).ids;
        generated.push(next[0]);
    }
    generated
}

#[test]
fn f32_agrees_with_pytorch_for_every_architecture_in_both_file_formats() {
    for golden in goldens() {
        let (_folder, path) = synthesise_model(&golden.name, Dtype::BF16);
        // Of these architectures, only phi3 can have a window in a GGUF.
        let can_be_gguf = !golden.name.contains("window") || golden.name.contains("phi3");
        let gguf = can_be_gguf.then(|| gguf_of(&path, Dtype::BF16));
        for path in std::iter::once(path).chain(gguf) {
            for level in Level::available() {
                let mut ops = Ops::new(Pool::new(2), level);
                let mut network = load(&path, RequestedFormat::Format(&F32), &ops);
                let mut cache = Cache::new(&network.shape, 256, KvDtype::F32).unwrap();
                let logits = every_logits(&mut network, &mut ops, &mut cache, &golden.ids);
                let (largest_difference, path) = (largest_difference(&logits, &golden), path.display());
                assert!(
                    largest_difference < 2e-5,
                    "{}: {largest_difference} at {level:?}, {path}",
                    golden.name
                );
                let generated =
                    greedy(&mut network, &mut ops, KvDtype::F32, &golden.ids, golden.greedy.len());
                assert_eq!(generated, golden.greedy, "{} at {level:?}, {path}", golden.name);
            }
        }
    }
}

/// llama.cpp's converter writes GPT-2's output matrix although it equals the embedding.
#[test]
fn a_gpt2_in_gguf_uses_the_output_matrix_of_the_file_if_there_is_one() {
    let (folder, tied_path) = synthesise_model("gpt2", Dtype::BF16);
    let config = folder.path().join("config.json");
    let mut fields: Value =
        serde_json::from_slice(&std::fs::read(tied_path.join("config.json")).unwrap()).unwrap();
    fields["tie_word_embeddings"] = false.into();
    std::fs::write(&config, fields.to_string()).unwrap();
    // The same seed gives the same weights, and an output matrix in addition.
    let path = folder.path().join("untied");
    let goal = model_files::Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: path.clone() };
    let shape = model_files::Shape::of_config(&config).unwrap();
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    let untied_gguf = gguf_of(&path, Dtype::BF16);
    let compute = |path: &Path| {
        let mut ops = ops(2);
        let mut network = load(path, RequestedFormat::File, &ops);
        let mut cache = Cache::new(&network.shape, 64, KvDtype::F32).unwrap();
        every_logits(&mut network, &mut ops, &mut cache, &[3, 1, 4, 1, 5])
    };
    let untied = compute(&untied_gguf);
    assert_eq!(compute(&path), untied);

    let tied_gguf = gguf_of(&tied_path, Dtype::BF16);
    let byte_range = |path: &Path, name: &str| {
        let folder = ModelFolder::open(path).unwrap();
        let tensor = folder.tensors.iter().find(|tensor| tensor.name == name);
        tensor.map(|tensor| tensor.offset as usize..(tensor.offset + tensor.bytes) as usize)
    };
    assert_eq!(byte_range(&tied_gguf, "output.weight"), None);
    let tied = compute(&tied_gguf);
    assert_ne!(tied, untied);

    let mut bytes = std::fs::read(&untied_gguf).unwrap();
    let output = byte_range(&untied_gguf, "output.weight").unwrap();
    bytes.copy_within(byte_range(&untied_gguf, "token_embd.weight").unwrap(), output.start);
    std::fs::write(&untied_gguf, bytes).unwrap();
    assert_eq!(compute(&untied_gguf), tied);
}

#[test]
fn narrower_floats_stay_close_to_f32_whether_mapped_or_read() {
    for golden in goldens() {
        let (_folder, path) = synthesise_model(&golden.name, Dtype::BF16);
        for requested in [RequestedFormat::File, RequestedFormat::Format(&F16)] {
            let mut ops = ops(2);
            let mut network = load(&path, requested, &ops);
            let mut cache = Cache::new(&network.shape, 256, KvDtype::F16).unwrap();
            let logits = every_logits(&mut network, &mut ops, &mut cache, &golden.ids);
            let largest_difference = largest_difference(&logits, &golden);
            assert!(largest_difference < 0.1, "{}: {largest_difference} as {requested:?}", golden.name);
        }
    }
}

/// Sets the last bit of every number, so that narrower dtypes round it. Without this, synthesised numbers are bf16 values in
/// every dtype.
fn set_last_bits(path: &Path, dtype: Dtype) {
    let file = path.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let begin = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[begin..].iter_mut().step_by(dtype.bytes(1) as usize).for_each(|byte| *byte |= 1);
    std::fs::write(&file, bytes).unwrap();
}

#[test]
fn embedding_rows_are_rounded_to_the_requested_format() {
    for (stored, dtype) in [(Dtype::F32, Dtype::BF16), (Dtype::F32, Dtype::F16), (Dtype::F16, Dtype::BF16)] {
        let (_folder, path) = synthesise_model("llama", stored);
        set_last_bits(&path, stored);
        let folder = ModelFolder::open(&path).unwrap();
        let shape = Shape::of(&folder).unwrap();
        let row = |requested| {
            let plan = Plan::of(&folder, &shape, requested).unwrap();
            let weights = plan.weights(&shape, &plan.read(&Pool::new(1), &|_| ()).unwrap()).unwrap();
            let mut row = vec![0.0; shape.hidden];
            weights.embedding.row(17, &mut row);
            row
        };
        let unrounded = row(RequestedFormat::File);
        let (mut bytes, mut rounded) = (vec![0; 2 * unrounded.len()], vec![0.0; unrounded.len()]);
        blocks::narrow(dtype, &unrounded, &mut bytes).unwrap();
        blocks::widen(dtype, &bytes, &mut rounded).unwrap();
        assert_ne!(unrounded, rounded, "{stored:?} as {dtype:?}");
        assert_eq!(
            row(RequestedFormat::Format(formats::Format::of(dtype).unwrap())),
            rounded,
            "{stored:?} as {dtype:?}"
        );
        assert_eq!(
            row(RequestedFormat::Format(formats::Format::of(stored).unwrap())),
            unrounded,
            "{stored:?} as itself"
        );
    }
}

#[test]
fn bf16_is_no_farther_from_f32_than_pytorch_in_bf16_at_any_level() {
    for golden in goldens() {
        let (_folder, path) = synthesise_model(&golden.name, Dtype::BF16);
        for level in Level::available() {
            let mut ops = Ops::new(Pool::new(2), level);
            let mut network = load(&path, RequestedFormat::File, &ops);
            let mut cache = Cache::new(&network.shape, 256, KvDtype::F16).unwrap();
            let logits = every_logits(&mut network, &mut ops, &mut cache, &golden.ids);
            let errors = differences(&logits, &golden);
            let rms = (errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64).sqrt();
            let pytorch_rms = golden.bf16_rms;
            assert!(rms <= pytorch_rms, "{}, {level}: {rms}, and PyTorch has {pytorch_rms}", golden.name);
        }
    }
}

#[test]
fn floats_of_a_file_are_used_in_place() {
    // gpt2 stores its matrices transposed.
    for (name, has_owned) in
        [("llama", false), ("qwen2", false), ("phi3", false), ("gemma", false), ("gpt2", true)]
    {
        let (_folder, path) = synthesise_model(name, Dtype::BF16);
        let folder = ModelFolder::open(&path).unwrap();
        let shape = Shape::of(&folder).unwrap();
        let plan = Plan::of(&folder, &shape, RequestedFormat::File).unwrap();
        assert_eq!(plan.owned_bytes() > 0, has_owned, "{name}: {}", plan.layout());
    }
}

/// Asserts that all bits are equal.
fn assert_same(a: &[f32], b: &[f32], case: &str) {
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    assert!(bits(a) == bits(b), "{case}: {:?} and {:?}", &a[..4], &b[..4]);
}

#[test]
fn one_token_at_a_time_gives_the_same_bits_as_all_at_once() {
    for (golden, dtype) in goldens().iter().flat_map(|golden| [(golden, Dtype::F32), (golden, Dtype::BF16)]) {
        let (_folder, path) = synthesise_model(&golden.name, dtype);
        // AMX tiles sum bf16 in an order of their own.
        for level in
            Level::available().into_iter().filter(|level| dtype == Dtype::F32 || level.to_string() != "amx")
        {
            let mut ops = Ops::new(Pool::new(2), level);
            let mut network = load(&path, RequestedFormat::File, &ops);
            let mut cache = Cache::new(&network.shape, 128, KvDtype::F32).unwrap();
            let expected = every_logits(&mut network, &mut ops, &mut cache, &golden.ids);
            cache.truncate(0);
            for (at, id) in golden.ids.iter().enumerate() {
                let single = logits(&mut network, &mut ops, &mut cache, &[*id]);
                let case = format!("{} in {dtype:?} at {at}, {level}", golden.name);
                assert_same(single.row(0), expected.row(at), &case);
            }
        }
    }
}

/// The number of ids of a long prompt: more than one pass takes, and more than one partition of attention has.
const LONG_PROMPT_IDS: usize = MAX_PASS_TOKENS + 300;

fn long_ids() -> Vec<u32> {
    (0..LONG_PROMPT_IDS as u32).map(|at| (at * at * 31 + at) % 320).collect()
}

/// A network with a context of `LONG_PROMPT_IDS` or more.
fn long_network(path: &Path, ops: &Ops) -> Network {
    let mut network = load(path, RequestedFormat::File, ops);
    network.shape.context = LONG_PROMPT_IDS + 100;
    network
}

#[test]
fn a_prompt_in_pieces_or_after_a_truncation_gives_the_same_bits() {
    let (_folder, path) = synthesise_model("llama", Dtype::F32);
    let ids = long_ids();
    for level in Level::available() {
        let mut ops = Ops::new(Pool::new(3), level);
        let mut network = long_network(&path, &ops);
        let mut at_once = Cache::new(&network.shape, LONG_PROMPT_IDS, KvDtype::F32).unwrap();
        let expected = logits(&mut network, &mut ops, &mut at_once, &ids);
        let mut pieces = Cache::new(&network.shape, LONG_PROMPT_IDS, KvDtype::F32).unwrap();
        read_ids(&mut network, &mut ops, &mut pieces, &ids[..130]);
        read_ids(&mut network, &mut ops, &mut pieces, &[5, 6, 7, 8]);
        pieces.truncate(130);
        read_ids(&mut network, &mut ops, &mut pieces, &ids[130..LONG_PROMPT_IDS - 2]);
        read_ids(&mut network, &mut ops, &mut pieces, &ids[LONG_PROMPT_IDS - 2..LONG_PROMPT_IDS - 1]);
        let actual = logits(&mut network, &mut ops, &mut pieces, &ids[LONG_PROMPT_IDS - 1..]);
        assert_eq!(pieces.tokens(), ids.len());
        assert_same(actual.row(0), expected.row(0), &format!("pieces, {level}"));
        // `forward_each` gives the same bits.
        let mut scored = Cache::new(&network.shape, LONG_PROMPT_IDS, KvDtype::F32).unwrap();
        let mut rows_seen = 0;
        let mut on_logits = |_: &Pool, rows: &Rows| {
            rows_seen += rows.tokens();
            if rows_seen == ids.len() {
                assert_same(rows.row(rows.tokens() - 1), expected.row(0), &format!("scored, {level}"));
            }
        };
        network.forward_each(&mut ops, &mut scored, &ids, &mut on_logits).unwrap();
        assert_eq!(rows_seen, ids.len());
    }
}

#[test]
fn a_sequence_gives_the_same_bits_in_a_batch_and_alone() {
    let (_folder, path) = synthesise_model("qwen2-window", Dtype::F32);
    assert_batch_equals_single(&path, KvDtype::F32, &[3, 150, 1, 190, 64]);
}

/// At most eight rows are decoded together: with more rows, AMX tiles sum in another order.
#[test]
fn a_sequence_gives_the_same_bits_in_bf16_when_decoded_together_and_alone() {
    let (_folder, path) = synthesise_model("llama", Dtype::BF16);
    assert_batch_equals_single(&path, KvDtype::F16, &[1, 3, 2]);
    assert_batch_equals_single(&path, KvDtype::F16, &[3, 1, 4]);
}

fn assert_batch_equals_single(path: &Path, kv_dtype: KvDtype, lengths: &[u32]) {
    let texts: Vec<Vec<u32>> =
        lengths.iter().map(|length| (0..*length).map(|at| (at * 7 + length) % 320).collect()).collect();
    for level in Level::available() {
        let mut ops = Ops::new(Pool::new(2), level);
        let mut network = load(path, RequestedFormat::File, &ops);
        let single: Vec<Rows> = texts
            .iter()
            .map(|ids| {
                let mut cache = Cache::new(&network.shape, 256, kv_dtype).unwrap();
                logits(&mut network, &mut ops, &mut cache, ids)
            })
            .collect();
        let mut caches: Vec<Cache> =
            texts.iter().map(|_| Cache::new(&network.shape, 256, kv_dtype).unwrap()).collect();
        let wanted = Wanted::Logits;
        let spans = caches.iter_mut().zip(&texts).map(|(cache, ids)| Span { cache, ids, wanted });
        let rows = forward(&mut network, &mut ops, &mut spans.collect::<Vec<_>>()).logits;
        for (number, single) in single.iter().enumerate() {
            assert_same(rows.row(number), single.row(0), &format!("sequence {number}, {level}"));
        }
    }
}

#[test]
fn each_span_gets_the_requested_results_and_no_more() {
    use Wanted::{EveryLargest, Largest, Logits, Nothing};
    let (_folder, path) = synthesise_model("llama", Dtype::F32);
    let (mut ops, ids) = (ops(2), long_ids());
    let mut network = long_network(&path, &ops);
    // The second span continues in the next pass, and so does the fourth.
    let requested = [
        (20, Largest),
        (MAX_PASS_TOKENS, Nothing),
        (7, Logits),
        (MAX_PASS_TOKENS, EveryLargest),
        (5, Nothing),
        (1, Logits),
    ];
    let new_cache = |network: &Network| Cache::new(&network.shape, LONG_PROMPT_IDS, KvDtype::F32).unwrap();
    let mut caches = requested.map(|_| new_cache(&network));
    let spans = caches.iter_mut().zip(requested);
    let mut spans: Vec<_> =
        spans.map(|(cache, (count, wanted))| Span { cache, ids: &ids[..count], wanted }).collect();
    let actual = forward(&mut network, &mut ops, &mut spans);
    let (mut largest, mut rows) = (actual.ids.into_iter(), 0);
    for (count, wanted) in requested {
        let mut single = new_cache(&network);
        let every = every_logits(&mut network, &mut ops, &mut single, &ids[..count]);
        let likeliest = |row: usize| Some(engine_kit::sampling::greedy(every.row(row)));
        match wanted {
            Nothing => {}
            Largest => assert_eq!(largest.next(), likeliest(count - 1)),
            EveryLargest => (0..count).for_each(|row| assert_eq!(largest.next(), likeliest(row))),
            Logits => {
                assert_same(actual.logits.row(rows), every.row(count - 1), "logits of a span");
                rows += 1;
            }
        }
    }
    assert_eq!((largest.next(), actual.logits.tokens()), (None, rows));
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let (_folder, path) = synthesise_model("qwen2", Dtype::F32);
    let ids = long_ids();
    for level in Level::available() {
        let mut expected: Option<Rows> = None;
        for threads in [1, 2, 4, 8] {
            let mut ops = Ops::new(Pool::new(threads), level);
            let mut network = long_network(&path, &ops);
            let mut cache = Cache::new(&network.shape, LONG_PROMPT_IDS + 1, KvDtype::F32).unwrap();
            read_ids(&mut network, &mut ops, &mut cache, &ids);
            let actual = logits(&mut network, &mut ops, &mut cache, &[4]);
            let expected = expected.get_or_insert_with(|| actual.clone());
            assert_same(actual.row(0), expected.row(0), &format!("{threads} threads, {level}"));
        }
    }
}

#[test]
fn ids_beyond_the_context_or_the_vocabulary_are_refused_without_a_change() {
    let (_folder, path) = synthesise_model("llama", Dtype::BF16);
    let mut ops = ops(1);
    let mut network = load(&path, RequestedFormat::File, &ops);
    let mut cache = Cache::new(&network.shape, 10, KvDtype::F16).unwrap();
    let mut refused = |cache: &mut Cache, ids: &[u32]| {
        let span = Span { cache, ids, wanted: Wanted::Logits };
        network.forward(&mut ops, &mut [span], &mut Predictions::default()).unwrap_err().to_string()
    };
    assert_eq!(refused(&mut cache, &[1; 11]), "11 tokens after 0 exceed the context of 10");
    assert_eq!(refused(&mut cache, &[1, 320]), "id 320 is outside of the vocabulary of 320");
    assert_eq!(cache.tokens(), 0);
}

/// Tests every `Wanted` that asks for a result, each for one token and for several.
#[test]
fn weights_with_a_nan_are_an_error_and_give_no_id() {
    for (dtype, nan) in [
        (Dtype::F32, &f32::NAN.to_le_bytes()[..]),
        (Dtype::F32, &0x7f80_0001_u32.to_le_bytes()),
        (Dtype::BF16, &0x7fc0_u16.to_le_bytes()),
        (Dtype::BF16, &0x7f81_u16.to_le_bytes()),
    ] {
        let (_folder, path) = synthesise_model("llama", dtype);
        let file = path.join("model.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        // The last weight of the file, in any tensor.
        let end = bytes.len();
        bytes[end - nan.len()..].copy_from_slice(nan);
        std::fs::write(&file, &bytes).unwrap();
        for level in Level::available() {
            let mut ops = Ops::new(Pool::new(2), level);
            let mut network = load(&path, RequestedFormat::File, &ops);
            for ids in [&[3][..], &[3, 4, 5]] {
                let mut cache = Cache::new(&network.shape, 64, KvDtype::F32).unwrap();
                for wanted in [Wanted::Largest, Wanted::Logits, Wanted::EveryLargest] {
                    let span = Span { cache: &mut cache, ids, wanted };
                    let failed =
                        network.forward(&mut ops, &mut [span], &mut Predictions::default()).unwrap_err();
                    assert!(failed.is::<NotFinite>(), "{failed} at {level}");
                }
                let failed = network.forward_each(&mut ops, &mut cache, ids, &mut |_, _| ()).unwrap_err();
                assert!(failed.is::<NotFinite>(), "{failed} at {level}");
            }
        }
    }
}
