//! Threads that start together: the same short passes again and again, of each setting the fastest.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cores::{Core, stay_on};

/// However long they take: the first pass of each finds everything cold.
pub const LEAST_ROUNDS: usize = 2;
/// A waiting thread looks so often before it lets others run. On cores of its own it never comes to that.
const LOOKS: u32 = 1 << 16;
/// In place of a setting: there is nothing more to do.
const OVER: usize = usize::MAX;

/// The fewest nanoseconds that each of so many settings took, from the first thread's start to the last one's end. Settings
/// take turns until the time is over. Every thread prepares what it then works with. `None` where the threads cannot be had.
pub fn best_of<S>(
    cores: &[Core],
    settings: usize,
    budget: Duration,
    prepare: impl Fn(usize) -> S + Sync,
    work: impl Fn(&mut S, usize) + Sync,
) -> Option<Vec<u64>> {
    let began = Instant::now();
    let shared = Shared::of(cores.len());
    let work = |index: usize| {
        stay_on(cores[index]);
        let mut state = prepare(index);
        let mut best = vec![u64::MAX; settings];
        for pass in 0.. {
            // The first thread says what comes next; the others hear it behind the barrier.
            if index == 0 {
                let goes_on = pass < LEAST_ROUNDS * settings || began.elapsed() < budget;
                let next = if goes_on { pass % settings } else { OVER };
                shared.setting.store(next, Ordering::Relaxed);
            }
            if !shared.wait() {
                return None;
            }
            let setting = shared.setting.load(Ordering::Relaxed);
            if setting == OVER {
                return Some(best);
            }
            let start_ns = ns_since(began);
            work(&mut state, setting);
            shared.times[index].set(start_ns, ns_since(began));
            if !shared.wait() {
                return None;
            }
            if index == 0 {
                // A clock too coarse to see it saw nothing.
                let ns = shared.elapsed_ns();
                best[setting] = best[setting].min(if ns == 0 { u64::MAX } else { ns });
            }
        }
        None
    };
    if cores.is_empty() || settings == 0 {
        return None;
    }
    let best = thread::scope(|scope| {
        let mut team = Vec::new();
        for index in 0..cores.len() {
            match thread::Builder::new().spawn_scoped(scope, move_in(&work, index)) {
                Ok(member) => team.push(member),
                // Those that have started wait for one that never comes.
                Err(_) => shared.given_up.store(true, Ordering::Relaxed),
            }
        }
        let mut ends = team.into_iter().map(|member| member.join().ok().flatten());
        ends.next().flatten()
    });
    best.filter(|best| !best.contains(&u64::MAX))
}

/// A closure for one thread, of a function that all share.
fn move_in<'a, T>(work: &'a (impl Fn(usize) -> T + Sync), index: usize) -> impl FnOnce() -> T + Send + 'a {
    move || work(index)
}

fn ns_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// What the threads of a team know of each other.
struct Shared {
    threads: usize,
    arrived: AtomicUsize,
    /// How often all of them had arrived.
    turns: AtomicUsize,
    given_up: AtomicBool,
    setting: AtomicUsize,
    times: Vec<Times>,
}

/// When a thread began and ended its last pass. A cache line of its own, so that no thread's note disturbs another's work.
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
            turns: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            setting: AtomicUsize::new(OVER),
            times: (0..threads).map(|_| Times::default()).collect(),
        }
    }

    /// Until all threads have come here. They spin, because waking a thread takes longer than some passes. `false` where one
    /// will never come.
    fn wait(&self) -> bool {
        let turn = self.turns.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.turns.store(turn.wrapping_add(1), Ordering::Release);
            return true;
        }
        let mut looks = 0;
        while self.turns.load(Ordering::Acquire) == turn {
            if self.given_up.load(Ordering::Relaxed) {
                return false;
            }
            looks += 1;
            if looks < LOOKS {
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_thread_works_in_every_pass_and_settings_take_turns() {
        let seen = Mutex::new(Vec::new());
        let best = best_of(
            &[0, 1, 0],
            2,
            Duration::ZERO,
            |index| index,
            |index, setting| {
                seen.lock().unwrap().push((*index, setting));
                std::hint::black_box((0..1000).sum::<u64>());
            },
        );
        assert_eq!(best.unwrap().len(), 2);
        let seen = seen.into_inner().unwrap();
        for thread in 0..3 {
            let own: Vec<usize> =
                seen.iter().filter(|(index, _)| *index == thread).map(|(_, it)| *it).collect();
            assert_eq!(own, [0, 1, 0, 1]);
        }
        // Nobody begins a pass before all have ended the one before.
        let passes: Vec<usize> = seen.iter().map(|(_, setting)| *setting).collect();
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
    fn who_waits_for_one_that_never_comes_is_told() {
        let shared = Shared::of(2);
        shared.given_up.store(true, Ordering::Relaxed);
        assert!(!shared.wait());
    }

    #[test]
    fn nobody_does_nothing() {
        assert_eq!(best_of(&[], 1, Duration::ZERO, |_| (), |(), _| ()), None);
        assert_eq!(best_of(&[0], 0, Duration::ZERO, |_| (), |(), _| ()), None);
    }
}
