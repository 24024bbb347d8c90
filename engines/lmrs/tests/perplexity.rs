//! Compares the perplexity of the embedded model on held-out text in bf16 (the dtype of the file), Q8_0 and Q4_0 with its
//! perplexity in f32, at each level (instruction set) of this machine.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use lmrs::cache::Cache;
use lmrs::formats::F32;
use lmrs::formats::q4_0::Q4_0;
use lmrs::formats::q8_0::Q8_0;
use lmrs::kernels::Level;
use lmrs::kernels::attention::KvDtype;
use lmrs::matrix::Rows;
use lmrs::network::Network;
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::shape::Shape;
use lmrs::weights::{Plan, RequestedFormat};
use model_files::{ModelFolder, Tokenizer, embedded};

/// The parts of a text that are scored. They are spread evenly over the text.
struct Windows {
    count: usize,
    /// The number of ids of a window.
    window_ids: usize,
    /// The number of ids that go through the network together.
    pass_ids: usize,
}

/// A few hundred ids, so that debug builds finish soon.
const SHORT: Windows = Windows { count: 2, window_ids: 192, pass_ids: 192 };
/// The same ids in passes of eight, as in decoding, which uses other kernels.
const DECODED: Windows = Windows { pass_ids: 8, ..SHORT };
/// A few thousand ids, only at the best level.
const LONG: Windows = Windows { count: 8, window_ids: 512, pass_ids: 512 };

/// The largest allowed difference from the perplexity in f32, as a fraction of that. The measured differences are smaller, and
/// partly chance on `SHORT` (`MEASURED.md`).
const BOUNDS: [(RequestedFormat, f64); 3] = [
    (RequestedFormat::File, 5e-4),
    (RequestedFormat::Format(&Q8_0), 5e-3),
    (RequestedFormat::Format(&Q4_0), 4e-3),
];

#[test]
fn narrow_weights_cost_no_more_perplexity_than_their_bounds_at_any_level() {
    let (folder, text) = model_and_text();
    let in_f32 = perplexity(&folder, RequestedFormat::Format(&F32), Level::PORTABLE, &text, &SHORT);
    assert!((2.0..5.0).contains(&in_f32), "the model's perplexity on its own kind of text: {in_f32}");
    // In f32, levels differ only in the order of sums.
    let bounds = [(RequestedFormat::Format(&F32), 1e-5)].into_iter().chain(BOUNDS);
    for level in Level::available() {
        for (requested, bound) in bounds.clone() {
            for windows in [&SHORT, &DECODED] {
                let ratio = perplexity(&folder, requested, level, &text, windows) / in_f32;
                assert_cost(ratio, requested, level, bound);
            }
        }
    }
}

#[cfg_attr(debug_assertions, ignore = "takes minutes in a debug build")]
#[test]
fn narrow_weights_cost_no_more_perplexity_than_their_bounds_on_a_long_text() {
    let (folder, text) = model_and_text();
    let level = Level::best();
    let in_f32 = perplexity(&folder, RequestedFormat::Format(&F32), level, &text, &LONG);
    for (requested, bound) in BOUNDS {
        assert_cost(perplexity(&folder, requested, level, &text, &LONG) / in_f32, requested, level, bound);
    }
}

#[expect(clippy::print_stdout, reason = "values for a reader of `--nocapture`")]
fn assert_cost(ratio_to_f32: f64, requested: RequestedFormat, level: Level, bound: f64) {
    let percent = (ratio_to_f32 - 1.0) * 100.0;
    println!("{level} {requested:?}: {percent:+.4} %");
    assert!((ratio_to_f32 - 1.0).abs() <= bound, "{requested:?} at {level}: ratio {ratio_to_f32} to f32");
}

fn model_and_text() -> (ModelFolder, Vec<u32>) {
    let path = embedded::folder().unwrap();
    let tokenizer = Tokenizer::open(&path.join("tokenizer.json")).unwrap();
    let text = tokenizer.encode(&embedded::heldout_text().unwrap()).unwrap();
    (ModelFolder::open(path).unwrap(), text)
}

fn perplexity(
    folder: &ModelFolder,
    requested: RequestedFormat,
    level: Level,
    text: &[u32],
    windows: &Windows,
) -> f64 {
    let mut ops = Ops::new(Pool::new(1), level);
    let shape = Shape::of(folder).unwrap();
    let plan = Plan::of(folder, &shape, requested).unwrap();
    let owned = plan.read(&ops.pool, &|_| ()).unwrap();
    let weights = plan.weights(&shape, &owned).unwrap();
    let mut network = Network::new(shape, weights);
    let kv_dtype = if requested == RequestedFormat::Format(&F32) { KvDtype::F32 } else { KvDtype::F16 };
    let mut cache = Cache::new(&network.shape, windows.window_ids, kv_dtype).unwrap();
    let mut sum = 0.0;
    for window in 0..windows.count {
        let ids = &text[text.len() / windows.count * window..][..windows.window_ids];
        cache.truncate(0);
        let mut next_ids = ids[1..].iter();
        let on_logits = &mut |_: &Pool, rows: &Rows| {
            let rows = (0..rows.tokens()).map(|row| rows.row(row));
            sum += rows.zip(&mut next_ids).map(|(logits, next)| negative_logprob(logits, *next)).sum::<f64>();
        };
        for ids in ids.chunks(windows.pass_ids) {
            network.forward_each(&mut ops, &mut cache, ids, on_logits).unwrap();
        }
    }
    (sum / (windows.count * (windows.window_ids - 1)) as f64).exp()
}

fn negative_logprob(logits: &[f32], id: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - largest)
}
