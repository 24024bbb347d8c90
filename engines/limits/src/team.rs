//! Threads on chosen processors. All start each short pass of work together, and the fastest pass of each setting counts. The
//! caller defines the settings: numbers of streams, or arithmetic units.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use system::processors::Pinned;

/// The fewest passes of each setting, however long they take. In a unit's first pass, its data is not in a cache yet.
pub const MIN_PASSES: usize = 2;
/// The spins of a waiting thread before it yields. A thread with its own processor waits less than that.
const MAX_SPINS: u32 = 1 << 16;
/// The value of `Shared::setting` that ends the measurement.
const END_OF_PASSES: usize = usize::MAX;

/// The nanoseconds of the fastest pass of each of `settings` settings, from the first thread's start to the last thread's end.
/// Settings take turns until the budget is over. Every thread calls `prepare(thread)` once, and then `work(state, setting)` in
/// each pass. `None` without processors or settings, if a thread cannot be started, or if the clock is too coarse.
pub fn fastest_passes<S>(
    processors: &[usize],
    settings: usize,
    budget: Duration,
    prepare: impl Fn(usize) -> S + Sync,
    work: impl Fn(&mut S, usize) + Sync,
) -> Option<Vec<u64>> {
    let began = Instant::now();
    let shared = Shared::of(processors.len());
    let run_thread = |index: usize| {
        let _pinned = Pinned::to(processors[index]);
        let mut state = prepare(index);
        let mut best = vec![u64::MAX; settings];
        for pass in 0.. {
            // The first thread chooses the setting; the others read it after the barrier.
            if index == 0 {
                let continues = pass < MIN_PASSES * settings || began.elapsed() < budget;
                let next = if continues { pass % settings } else { END_OF_PASSES };
                shared.setting.store(next, Ordering::Relaxed);
            }
            if !shared.wait() {
                return None;
            }
            let setting = shared.setting.load(Ordering::Relaxed);
            if setting == END_OF_PASSES {
                return Some(best);
            }
            let start_ns = ns_since(began);
            work(&mut state, setting);
            shared.times[index].set(start_ns, ns_since(began));
            if !shared.wait() {
                return None;
            }
            if index == 0 {
                // With 0 ns, the clock was too coarse to measure this pass.
                let ns = shared.elapsed_ns();
                best[setting] = best[setting].min(if ns == 0 { u64::MAX } else { ns });
            }
        }
        None
    };
    if processors.is_empty() || settings == 0 {
        return None;
    }
    let best = thread::scope(|scope| {
        let mut team = Vec::new();
        for index in 0..processors.len() {
            match thread::Builder::new().spawn_scoped(scope, bind_index(&run_thread, index)) {
                Ok(handle) => team.push(handle),
                // The started threads would otherwise wait forever for this thread.
                Err(_) => shared.is_cancelled.store(true, Ordering::Relaxed),
            }
        }
        // Only the first thread has computed the times.
        let mut results = team.into_iter().map(|handle| handle.join().ok().flatten());
        results.next().flatten()
    });
    best.filter(|best| !best.contains(&u64::MAX))
}

/// The closure of one thread: the shared function with the index of the thread.
fn bind_index<'a, T>(run: &'a (impl Fn(usize) -> T + Sync), index: usize) -> impl FnOnce() -> T + Send + 'a {
    move || run(index)
}

fn ns_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

struct Shared {
    threads: usize,
    arrived: AtomicUsize,
    /// The number of times that all threads have passed the barrier.
    generation: AtomicUsize,
    is_cancelled: AtomicBool,
    setting: AtomicUsize,
    times: Vec<Times>,
}

/// A thread's latest pass, in nanoseconds since the measurement began. On its own cache line, it slows down no other thread.
#[derive(Default)]
#[repr(align(128))]
struct Times {
    start_ns: AtomicU64,
    end_ns: AtomicU64,
}

impl Times {
    fn set(&self, start_ns: u64, end_ns: u64) {
        self.start_ns.store(start_ns, Ordering::Relaxed);
        self.end_ns.store(end_ns, Ordering::Relaxed);
    }
}

impl Shared {
    fn of(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            is_cancelled: AtomicBool::new(false),
            setting: AtomicUsize::new(END_OF_PASSES),
            times: (0..threads).map(|_| Times::default()).collect(),
        }
    }

    /// Waits for all threads; `false` if one will never arrive. Threads spin, because a wake-up takes longer than some passes.
    fn wait(&self) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
            return true;
        }
        let mut spins = 0;
        while self.generation.load(Ordering::Acquire) == generation {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return false;
            }
            spins += 1;
            if spins < MAX_SPINS {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        true
    }

    fn elapsed_ns(&self) -> u64 {
        let start = self.times.iter().map(|times| times.start_ns.load(Ordering::Relaxed)).min();
        let end = self.times.iter().map(|times| times.end_ns.load(Ordering::Relaxed)).max();
        start.zip(end).map_or(0, |(start, end)| end.saturating_sub(start))
    }
}

/// Selects `count` processors of `cores_first`, which begins with `one_per_core`. If there are more cores than threads, the
/// threads are at equal distances among the cores, because neighbours may share caches and memory channels. On an idle machine,
/// a scheduler does the same.
pub fn spread(cores_first: &[usize], one_per_core: &[usize], count: usize) -> Vec<usize> {
    if count > one_per_core.len() {
        return cores_first.iter().copied().take(count).collect();
    }
    (0..count).map(|index| one_per_core[index * one_per_core.len() / count]).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_thread_works_in_every_pass_and_settings_take_turns() {
        let calls = Mutex::new(Vec::new());
        let best = fastest_passes(
            &[0, 1, 0],
            2,
            Duration::ZERO,
            |index| index,
            |index, setting| {
                calls.lock().unwrap().push((*index, setting));
                std::hint::black_box((0..1000).sum::<u64>());
            },
        );
        assert_eq!(best.unwrap().len(), 2);
        let calls = calls.into_inner().unwrap();
        for thread in 0..3 {
            let settings: Vec<usize> =
                calls.iter().filter(|(index, _)| *index == thread).map(|(_, setting)| *setting).collect();
            assert_eq!(settings, [0, 1, 0, 1]);
        }
        // No thread begins a pass before all threads have ended the previous pass.
        let passes: Vec<usize> = calls.iter().map(|(_, setting)| *setting).collect();
        assert!(passes.chunks(3).all(|pass| pass.iter().all(|setting| *setting == pass[0])), "{passes:?}");
    }

    #[test]
    fn a_pass_lasts_from_the_first_start_to_the_last_end() {
        let shared = Shared::of(3);
        for (times, (start_ns, end_ns)) in shared.times.iter().zip([(10, 30), (5, 20), (7, 8)]) {
            times.set(start_ns, end_ns);
        }
        assert_eq!(shared.elapsed_ns(), 25);
        assert_eq!(Shared::of(0).elapsed_ns(), 0);
    }

    #[test]
    fn a_barrier_ends_if_a_thread_cannot_start() {
        let shared = Shared::of(2);
        shared.is_cancelled.store(true, Ordering::Relaxed);
        assert!(!shared.wait());
    }

    #[test]
    fn a_team_without_threads_or_settings_has_no_result() {
        assert_eq!(fastest_passes(&[], 1, Duration::ZERO, |_| (), |(), _| ()), None);
        assert_eq!(fastest_passes(&[0], 0, Duration::ZERO, |_| (), |(), _| ()), None);
    }

    #[test]
    fn fewer_threads_than_cores_are_spread_over_all_cores() {
        let cores_first = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(spread(&cores_first, &cores_first, 2), [0, 4]);
        assert_eq!(spread(&cores_first, &[0, 1, 2, 3], 2), [0, 2], "processors 0 and 4 are of one core");
        assert_eq!(spread(&cores_first, &[0, 1, 2, 3], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(spread(&[5, 9], &[5, 9], 7), [5, 9]);
        assert_eq!(spread(&[], &[], 1), [0; 0]);
    }
}
