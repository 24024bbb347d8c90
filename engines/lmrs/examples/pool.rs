//! Measures the cost of distributing work to the threads of a pool: `cargo run --release -p lmrs --example pool`.

#![expect(clippy::print_stdout, reason = "a program that prints its result")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lmrs::pool::Pool;

fn main() {
    for threads in [1, 2, 4, 8] {
        // Each pool is dropped before the next starts. That unpins this thread; otherwise new threads would inherit its pinning.
        for name in ["pinned", "unpinned"] {
            let pool = if name == "pinned" { Pool::new_pinned(threads) } else { Pool::new(threads) };
            let run = median_ns(|| pool.run(&|_| ()));
            let share = median_ns(|| pool.share(64, &|_, _| ()));
            // Each call waits until all have started, so every thread makes one call and none makes two.
            let all_at_once = median_ns(|| {
                let started = AtomicUsize::new(0);
                pool.run(&|_| {
                    started.fetch_add(1, Ordering::SeqCst);
                    while started.load(Ordering::SeqCst) < pool.threads() {
                        std::hint::spin_loop();
                    }
                });
            });
            println!(
                "{threads} threads requested, {} in use, {name}: `run` {run:.0} ns, `share` of 64 items {share:.0} ns, \
                 all at once {all_at_once:.0} ns",
                pool.threads()
            );
        }
    }
}

/// Nanoseconds of one call: the median of many short series.
fn median_ns(work: impl Fn()) -> f64 {
    const CALLS: u32 = 1000;
    let series = || {
        let began = Instant::now();
        (0..CALLS).for_each(|_| work());
        began.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut times: Vec<f64> = (0..200).map(|_| series()).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
