//! What it costs to hand out work: `cargo run --release -p lmrs --example pool`.

#![expect(clippy::print_stdout, reason = "a program whose result is what it prints")]

use std::time::Instant;

use lmrs::pool::Pool;

fn main() {
    for threads in [1, 2, 4, 8] {
        for (name, pool) in [("pinned", Pool::pinned(threads)), ("moved about", Pool::new(threads))] {
            // The best of many short stretches: what it costs where nothing else wants the processors.
            let run = fastest(|| pool.run(&|_| ()));
            let share = fastest(|| pool.share(64, &|_, _| ()));
            println!(
                "{threads} threads asked, {} there, {name}: run {run:.0} ns, share of 64 {share:.0} ns",
                pool.threads()
            );
        }
    }
}

/// Nanoseconds of one call.
fn fastest(work: impl Fn()) -> f64 {
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
