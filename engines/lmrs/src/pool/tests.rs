//! Stress tests of the pool, without timed waits.

use super::*;
use std::sync::atomic::AtomicU32;

/// Pools of several sizes, some perhaps with more threads than processors: the system may run the threads in any order.
fn pools() -> impl Iterator<Item = Pool> {
    [1, 2, 3, 4, 8].into_iter().map(|threads| Pool::start(threads, None))
}

#[test]
fn every_share_runs_once_in_every_run_and_the_caller_sees_its_writes() {
    for pool in pools() {
        let mut counts = vec![0_u32; pool.threads()];
        for call in 1..=2000 {
            let cells: Vec<_> = counts.iter().map(|&count| AtomicU32::new(count)).collect();
            pool.run(&|thread| {
                // The increment is deliberately not atomic: no other thread may touch this cell.
                let count = cells[thread].load(Ordering::Relaxed);
                cells[thread].store(count + 1, Ordering::Relaxed);
            });
            counts = cells.into_iter().map(AtomicU32::into_inner).collect();
            assert!(counts.iter().all(|&count| count == call), "{counts:?} after call {call}");
        }
    }
}

#[test]
fn every_index_is_processed_once() {
    for pool in pools() {
        for count in (0..70).chain([1000, 4097]) {
            let done: Vec<_> = (0..count).map(|_| AtomicU32::new(0)).collect();
            pool.share(count, &|index, thread| {
                assert!(thread < pool.threads());
                done[index].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1), "{count}");
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_after_all_shares_and_the_pool_still_works() {
    for pool in pools() {
        for panicking_thread in 0..pool.threads() {
            let done = AtomicUsize::new(0);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|thread| {
                    assert!(thread != panicking_thread, "share {thread} panics");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let message = panicked.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("share {panicking_thread} panics"));
            assert_eq!(done.into_inner(), pool.threads() - 1);
        }
        let sum = AtomicUsize::new(0);
        pool.run(&|thread| {
            sum.fetch_add(thread + 1, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), (1..=pool.threads()).sum::<usize>());
    }
}

#[test]
fn nested_work_runs_on_the_calling_thread() {
    for pool in pools() {
        let sum = AtomicUsize::new(0);
        pool.run(&|_| {
            pool.share(10, &|index, _| {
                sum.fetch_add(index, Ordering::Relaxed);
            })
        });
        assert_eq!(sum.into_inner(), (0..10).sum::<usize>() * pool.threads());
    }
}

#[test]
fn threads_that_the_system_refused_are_not_counted_and_their_work_is_done() {
    let pool = Pool {
        shared: Arc::new(Shared::new(4)),
        workers: Vec::new(),
        run_lock: Mutex::default(),
        _pinned: None,
    };
    assert_eq!((pool.started_threads(), Pool::start(4, None).started_threads()), (1, 4));
    let done = AtomicUsize::new(0);
    pool.run(&|_| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 4);
}

#[test]
fn callers_on_several_threads_each_get_all_of_their_work_done() {
    for pool in pools() {
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.share(7, &|index, _| {
                            sum.fetch_add(index, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 200 * (0..7).sum::<usize>());
    }
}

#[test]
fn parked_threads_wake_up_for_the_next_run() {
    for pool in pools() {
        for _ in 0..3 {
            let parked = || pool.shared.parked.load(Ordering::SeqCst);
            while parked() < pool.workers.len() {
                std::thread::yield_now();
            }
            let done = AtomicUsize::new(0);
            // Each thread waits for all others, so no thread can take the share of another.
            let all = pool.workers.len() + 1;
            pool.run(&|_| {
                done.fetch_add(1, Ordering::SeqCst);
                while done.load(Ordering::SeqCst) < all {
                    std::thread::yield_now();
                }
            });
            assert_eq!(done.into_inner(), all);
        }
    }
}

#[test]
fn many_pools_start_and_end() {
    for _ in 0..200 {
        pools().for_each(drop);
    }
}

#[test]
fn a_pool_has_at_least_one_thread_and_at_most_one_for_each_processor() {
    let max_threads = processors::allowed().len();
    for requested in [0, 1, 2, 64, 4096] {
        assert_eq!(Pool::new(requested).threads(), requested.clamp(1, max_threads));
        assert_eq!(Pool::new_pinned(requested).threads(), requested.clamp(1, max_threads));
    }
}

#[test]
fn a_dropped_pool_restores_the_pinning_of_its_caller() {
    let original = processors::affinity();
    let pool = Pool::new_pinned(2);
    let pinned: Vec<_> = (0..pool.threads()).map(|_| Mutex::new(Vec::new())).collect();
    pool.run(&|thread| *lock(&pinned[thread]) = processors::affinity());
    // `processors::affinity` is empty where the system does not report processors.
    let expected = original.len().min(1);
    assert!(pinned.iter().all(|pinned| lock(pinned).len() == expected), "{pinned:?}");
    drop(pool);
    assert_eq!(processors::affinity(), original);
}

#[test]
fn every_number_is_taken_once_with_any_number_of_threads() {
    for (limit, threads, max_len) in
        [(0, 3, 1), (1, 2, 9), (7, 3, 2), (100, 8, 3), (5, 8, 1), (1000, 2, 1000)]
    {
        let ranges = Ranges::new(limit, threads);
        // The threads take ranges in an irregular order.
        let taken = (0..).map_while(|number| ranges.take(number * 5 % 3 % threads, max_len));
        let mut numbers: Vec<usize> =
            taken.inspect(|range| assert!((1..=max_len).contains(&range.len()))).flatten().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..limit).collect::<Vec<_>>());
    }
}

#[test]
fn ranges_become_smaller_towards_the_end() {
    let ranges = Ranges::new(100, 1);
    let sizes: Vec<usize> = std::iter::from_fn(|| ranges.take(0, 20)).map(|range| range.len()).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert_eq!((sizes[0], sizes.last()), (20, Some(&1)));
}
