//! How fast attention goes: `cargo run --release -p lmrs --example attention-rates [-- DEPTH]`.
//!
//! Each thread attends in a cache of its own, so that nothing but attention is measured; beside it, how fast the same memory can
//! be read at all.
#![expect(clippy::print_stdout, reason = "prints what it measures")]
#![expect(clippy::unwrap_used, reason = "ends where it fails")]

use std::hint::black_box;
use std::sync::Barrier;

use lmrs::attention::{Heads, Part, Space, attend};
use lmrs::cache::Cache;
use lmrs::kernels::Level;
use lmrs::kernels::attention::{Stored, TILE};
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::rows::Rows;
use lmrs::shape::{Activation, Shape};

const ROUNDS: usize = 7;

fn shape(heads: usize, kv_heads: usize, head_dim: usize, layers: usize) -> Shape {
    Shape {
        vocabulary: 1,
        hidden: 1,
        inner: 1,
        layers,
        heads,
        kv_heads,
        head_dim,
        context: 1 << 20,
        norms_centre: false,
        norm_epsilon: 0.0,
        rotation: None,
        activation: Activation::Silu,
        windows: vec![None; layers],
        embedding_scale: 1.0,
        tied: true,
    }
}

fn main() {
    let depth: usize = std::env::args().nth(1).map_or(8192, |depth| depth.parse().unwrap());
    for (name, shape) in [
        ("llama-3.2-1b", shape(32, 8, 64, 16)),
        ("qwen2.5-0.5b", shape(14, 2, 64, 24)),
        ("llama-3-8b", shape(32, 8, 128, 8)),
    ] {
        for threads in [1, 2] {
            let (seconds, read) = measure(&shape, depth, 1, threads);
            let bytes = (Cache::bytes_for(&shape, depth, Stored::F16) * threads) as f64;
            println!(
                "{name}: {threads} threads, 1 token at {depth}: {:.1} GB/s, plain reads {:.1} GB/s, {:.2} of them; {:.2} ms a token",
                bytes / seconds / 1e9,
                bytes / read / 1e9,
                read / seconds,
                seconds * 1e3 / threads as f64
            );
        }
        for (tokens, depth) in [(256, 512), (256, depth)] {
            let (seconds, _) = measure(&shape, depth, tokens, 2);
            let pairs = (tokens * (2 * depth - tokens) / 2) as f64;
            let operations = 2.0 * 4.0 * pairs * (shape.heads * shape.head_dim * shape.layers) as f64;
            println!(
                "{name}: 2 threads, the last {tokens} tokens of {depth}: {:.0} GFLOP/s",
                operations / seconds / 1e9
            );
        }
    }
}

/// Seconds that this thread has had a processor for: what others take away is not counted.
fn on_processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// The best of some rounds, each over all layers, in which every thread attends in its own cache; and of reading them.
fn measure(shape: &Shape, depth: usize, tokens: usize, threads: usize) -> (f64, f64) {
    let barrier = Barrier::new(threads);
    let best = |of: &mut Vec<f64>| of.iter().copied().fold(f64::INFINITY, f64::min);
    std::thread::scope(|scope| {
        let thread = || {
            let mut cache = Cache::new(shape, depth, Stored::F16).unwrap();
            for layer in 0..shape.layers {
                for (_, head, mut tile) in cache.tiles_mut(layer, 0..depth / TILE) {
                    let numbers: Vec<f32> =
                        (0..shape.head_dim).map(|dim| (dim * 7 + head) as f32 % 5.0 - 2.0).collect();
                    (0..TILE).for_each(|position| tile.write(position, &numbers, &numbers));
                }
            }
            cache.grow(depth);
            let ops = Ops::new(Pool::new(1), Level::best());
            let width = shape.heads * shape.head_dim;
            let mut queries = Rows::new(tokens, width);
            queries
                .all_mut()
                .iter_mut()
                .enumerate()
                .for_each(|(at, number)| *number = (at % 11) as f32 / 11.0);
            let (mut out, mut space) = (Rows::default(), Space::default());
            let heads = Heads { heads: shape.heads, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
            let (mut attending, mut reading) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                barrier.wait();
                let begin = on_processor();
                for layer in 0..shape.layers {
                    let part = Part { cache: &cache, rows: 0..tokens, start: depth - tokens };
                    attend(&ops, &mut space, heads, (layer, None), &[part], &queries, &mut out);
                }
                attending.push(on_processor() - begin);
                barrier.wait();
                let begin = on_processor();
                let mut seen = 0_u8;
                for layer in 0..shape.layers {
                    for head in 0..shape.kv_heads {
                        for block in 0..depth / TILE {
                            let tile = cache.tile(layer, head, block);
                            seen ^= tile.keys.iter().fold(0, |one, other| one ^ other);
                            seen ^= tile.values.iter().fold(0, |one, other| one ^ other);
                        }
                    }
                }
                black_box(seen);
                reading.push(on_processor() - begin);
            }
            (attending, reading)
        };
        let others: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        let (mut attending, mut reading) = (Vec::new(), Vec::new());
        for other in others {
            let (one, two) = other.join().unwrap();
            attending.extend(one);
            reading.extend(two);
        }
        (best(&mut attending), best(&mut reading))
    })
}
