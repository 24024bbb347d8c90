//! The cost of distributing work: `cargo run --release -p lmrs --example pool`.

#![expect(clippy::print_stdout, reason = "a program that prints its result")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lmrs::pool::Pool;

fn main() {
    for threads in [1, 2, 4, 8] {
        // One after the other, because a thread inherits the pinning of its parent.
        for name in ["pinned", "unpinned"] {
            let pool = if name == "pinned" { Pool::pinned(threads) } else { Pool::new(threads) };
            let run = usual(|| pool.run(&|_| ()));
            let share = usual(|| pool.share(64, &|_, _| ()));
            // Each thread waits for all others, so no thread does another's share.
            let together = usual(|| {
                let there = AtomicUsize::new(0);
                pool.run(&|_| {
                    there.fetch_add(1, Ordering::SeqCst);
                    while there.load(Ordering::SeqCst) < pool.threads() {
                        std::hint::spin_loop();
                    }
                });
            });
            let there = pool.threads();
            println!(
                "{threads} threads requested, {there} in use, {name}: run {run:.0} ns, share of 64 {share:.0} ns, all at once {together:.0} ns"
            );
        }
    }
}

/// Nanoseconds of one call: the median of many short series.
fn usual(work: impl Fn()) -> f64 {
    const CALLS: u32 = 1000;
    let stretch = || {
        let began = Instant::now();
        (0..CALLS).for_each(|_| work());
        began.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut stretches: Vec<f64> = (0..200).map(|_| stretch()).collect();
    stretches.sort_by(f64::total_cmp);
    stretches[stretches.len() / 2]
}
