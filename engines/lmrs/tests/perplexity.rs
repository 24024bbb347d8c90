//! What narrow numbers cost, in words: the embedded model's perplexity on text that it was not trained on, as f32 against every
//! other way to hold the same weights, each level of this machine by itself.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use lmrs::kernels::Level;
use lmrs::kernels::attention::Stored;
use lmrs::network::{Network, Sequence, Span};
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::rows::Rows;
use lmrs::shape::Shape;
use lmrs::weights::{Asked, Plan};
use model_files::{Dtype, ModelFolder, Tokenizer, embedded};

/// Ids that are scored after one another, and how many times: some hundred, so that it ends soon in a build for debugging too.
const WINDOW: usize = 192;
const WINDOWS: usize = 3;

#[test]
fn narrow_weights_cost_no_more_perplexity_than_their_bounds() {
    let folder = ModelFolder::open(embedded::folder().unwrap()).unwrap();
    let text = embedded::heldout_text().unwrap();
    let ids =
        Tokenizer::open(&embedded::folder().unwrap().join("tokenizer.json")).unwrap().encode(&text).unwrap();
    let exact = perplexity(&folder, Asked::Float(Dtype::F32), Stored::F32, Level::PORTABLE, &ids);
    assert!((2.0..5.0).contains(&exact), "the model of the tree has learnt its language: {exact}");
    for level in Level::here() {
        // Sums in another order, and nothing rounded that is not rounded in all.
        let costs = |asked, stored| perplexity(&folder, asked, stored, level, &ids) / exact - 1.0;
        let bounds = [
            (Asked::Float(Dtype::F32), Stored::F32, 1e-5),
            (Asked::Own, Stored::F16, 5e-4),
            (Asked::Q8_0, Stored::F16, 5e-3),
            (Asked::Q4_0, Stored::F16, 1.5e-2),
        ];
        for (asked, stored, bound) in bounds {
            let cost = costs(asked, stored);
            println!("{level} {asked:?}: {:+.4} %", cost * 100.0);
            assert!(cost.abs() <= bound, "{asked:?} at {level}: {:+.4} % is beyond {bound}", cost * 100.0);
        }
    }
}

/// Of windows that lie evenly over the text.
fn perplexity(folder: &ModelFolder, asked: Asked, stored: Stored, level: Level, ids: &[u32]) -> f64 {
    let mut ops = Ops::new(Pool::new(2), level);
    let shape = Shape::of(folder).unwrap();
    let plan = Plan::of(folder, &shape, asked).unwrap();
    let own = plan.read(&ops.pool, &|_| ()).unwrap();
    let weights = plan.weights(&shape, &own).unwrap();
    let mut network = Network::new(shape, weights);
    let mut sequence = Sequence::new(&network.shape, WINDOW, stored).unwrap();
    let mut sum = 0.0;
    for window in 0..WINDOWS {
        let ids = &ids[ids.len() / WINDOWS * window..][..WINDOW];
        sequence.truncate(0);
        let span = Span { sequence: &mut sequence, ids };
        let mut nexts = ids[1..].iter();
        let each = &mut |_: &Pool, rows: &Rows| {
            let rows = (0..rows.tokens()).map(|row| rows.row(row));
            sum += rows.zip(&mut nexts).map(|(logits, next)| surprise(logits, *next)).sum::<f64>();
        };
        network.forward_each(&mut ops, span, each).unwrap();
    }
    (sum / (WINDOWS * (WINDOW - 1)) as f64).exp()
}

/// Minus the natural logarithm of how likely the id is.
fn surprise(logits: &[f32], id: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - largest)
}
