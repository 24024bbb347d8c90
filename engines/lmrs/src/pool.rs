//! The threads: the caller and workers that live as long as the pool. A piece of work is shared out by `run` or `share`,
//! which return when all of it is done. Knows nothing of what the work is.
//!
//! ```text
//! run:     the work is written down, then the generation is raised: that is the starting gun
//! worker:  spins on the generation, takes its own share, then any that nobody has taken yet
//! caller:  takes share 0, then any that nobody has taken yet, then spins until all are done
//! idle:    who has spun for a millisecond parks, and is woken by the next run
//! ```
//!
//! A share belongs to whoever takes it first, so a worker that lost its core, or still wakes up, holds nobody back: the caller
//! does its share. More threads than processors would wait for each other, so there are never more.

#![expect(unsafe_code, reason = "threads that outlive a call run work that is borrowed for the call")]

mod processors;
mod shares;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use processors::Pinned;
use shares::Shares;

/// So many threads, kept for the life of the pool.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One piece of work at a time.
    turn: Mutex<()>,
    /// The caller's, undone when the pool is dropped.
    _pinned: Option<Pinned>,
}

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// What the caller and the workers tell each other. A line of a cache takes a while to change hands, so what one thread
/// writes and others read stands in as few of them as may be: two for each run of two threads.
#[derive(Debug)]
struct Shared {
    call: Line<Call>,
    shares: Box<[Line<Share>]>,
    ending: AtomicBool,
    /// Workers that are parked, or about to be.
    parked: AtomicUsize,
    door: Mutex<()>,
    knock: Condvar,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What the caller writes and the workers read.
#[derive(Debug, Default)]
struct Call {
    generation: AtomicU64,
    work: UnsafeCell<Option<*const Work<'static>>>,
}

/// What is written by whoever takes a share.
#[derive(Debug, Default)]
struct Share {
    /// The last generation in which it was taken, and in which it was done.
    taken: AtomicU64,
    done: AtomicU64,
}

/// Two lines of 64 bytes, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: `work` alone is not `Sync` by itself. It is written by whoever holds `turn`, before the generation is raised (release)
// and while no share of an earlier generation is under way; it is read only after a share of that generation was taken (see
// `Shared::take`). So no read meets a write. What it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to the thread that made it.
unsafe impl Send for Shared {}

/// How long a thread that has nothing to do looks out for more, before it parks.
const LOOKOUT: Duration = Duration::from_millis(1);
/// Looks between two looks at the clock, which takes as long as a few of them.
const LOOKS: u32 = 64;
/// Looks after which the caller, waiting for the last share, lets others have its processor now and then.
const PATIENCE: u32 = 4096;

impl Pool {
    /// Threads that the system may move about.
    pub fn new(threads: usize) -> Self {
        Self::of(threads.min(processors::allowed().len()), None)
    }

    /// Each thread on a processor of its own, the calling one too until the pool is dropped: cores before the second threads
    /// of cores.
    pub fn pinned(threads: usize) -> Self {
        let mut order = processors::cores_first();
        order.truncate(threads.max(1));
        Self::of(order.len(), Some(&order))
    }

    fn of(threads: usize, places: Option<&[usize]>) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared::new(threads));
        let worker = |share: usize| {
            let (shared, place) = (Arc::clone(&shared), places.and_then(|places| places.get(share).copied()));
            let thread = std::thread::Builder::new().name(format!("pool-{share}"));
            let work = move || {
                let _pinned = place.map(Pinned::to);
                shared.serve(share);
            };
            thread.spawn(work)
        };
        // Where the system gives no more threads the shares of those that are missing are taken by the others.
        let workers = (1..threads).map_while(|share| worker(share).ok()).collect();
        let pinned = places.and_then(|places| places.first().copied()).map(Pinned::to);
        Self { shared, workers, turn: Mutex::default(), _pinned: pinned }
    }

    /// As many as there are, which is not always as many as were asked for.
    pub fn threads(&self) -> usize {
        self.shared.shares.len()
    }

    /// Calls `work(thread)` once for each number below `threads`, several at a time, and returns when all have returned. A
    /// panic in one of them is the caller's. Work that calls `run` itself is done by the thread that called.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let _turn = match self.turn.try_lock() {
            _ if self.threads() == 1 => return work(0),
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..self.threads()).for_each(work),
        };
        self.shared.run(work);
    }

    /// Calls `work(index, thread)` once for each index below `count`.
    pub fn share(&self, count: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        self.share_ranges(count, count, &|range, thread| range.for_each(|index| work(index, thread)));
    }

    /// Calls `work(range, thread)` for ranges of at most so many neighbours, which together are all numbers below `count`.
    /// They get smaller towards the end, so that work of uneven size ends everywhere at once.
    pub fn share_ranges(&self, count: usize, most: usize, work: &(dyn Fn(Range<usize>, usize) + Sync)) {
        let most = most.max(1);
        if count <= 1 || self.threads() == 1 {
            return (0..count).step_by(most).for_each(|first| work(first..count.min(first + most), 0));
        }
        let shares = Shares::new(count, self.threads());
        self.run(&|thread| {
            while let Some(range) = shares.take(thread, most) {
                work(range, thread);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.raise();
        for worker in self.workers.drain(..) {
            // A worker catches what its work panics with, so it has nothing to say.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            call: Line::default(),
            shares: (0..threads).map(|_| Line::default()).collect(),
            ending: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            door: Mutex::default(),
            knock: Condvar::new(),
            panicked: Mutex::default(),
        }
    }

    /// The caller's part. Only under `turn`.
    fn run(&self, work: &Work<'_>) {
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime is forgotten. This function returns when no share is left, and nobody looks at the
        // pointer but for a share of this generation, so it is not used after the borrow ends.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: no share of an earlier generation is under way, and none of this one can be taken yet: see `take`.
        unsafe { *self.call.0.work.get() = Some(work) };
        let generation = self.raise();
        self.work_from(0, generation);
        let mut looks = 0_u32;
        for share in &self.shares {
            while share.0.done.load(Ordering::Acquire) != generation {
                std::hint::spin_loop();
                looks = looks.saturating_add(1);
                if looks >= PATIENCE {
                    std::thread::yield_now();
                }
            }
        }
        if let Some(panicked) = lock(&self.panicked).take() {
            resume_unwind(panicked);
        }
    }

    /// Begins the next generation, and wakes who sleeps.
    fn raise(&self) -> u64 {
        // Sequentially consistent, as is what a worker does before it parks: either it sees the new generation or it is
        // seen here.
        let generation = self.call.0.generation.fetch_add(1, Ordering::SeqCst) + 1;
        if self.parked.load(Ordering::SeqCst) > 0 {
            let _door = lock(&self.door);
            self.knock.notify_all();
        }
        generation
    }

    /// All of a worker's life.
    fn serve(&self, share: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_after(seen);
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            self.work_from(share, seen);
        }
    }

    /// The generation after the one that was seen last, waiting for it: on the lookout first, then parked.
    fn next_after(&self, seen: u64) -> u64 {
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS {
                let generation = self.call.0.generation.load(Ordering::Acquire);
                if generation != seen {
                    return generation;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= LOOKOUT {
                break;
            }
        }
        let mut door = lock(&self.door);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.call.0.generation.load(Ordering::SeqCst) == seen {
            door = self.knock.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        self.call.0.generation.load(Ordering::Acquire)
    }

    /// Does this share, and then every other that nobody has taken.
    fn work_from(&self, share: usize, generation: u64) {
        let shares = self.shares.len();
        for share in (share..shares).chain(0..share) {
            if !self.take(share, generation) {
                continue;
            }
            // SAFETY: this share of this generation was taken, so `run` waits for it: the pointer is that generation's and
            // what it points to is still borrowed.
            let work = unsafe { (*self.call.0.work.get()).map(|work| &*work) };
            let done = catch_unwind(AssertUnwindSafe(|| work.map(|work| work(share))));
            if let Err(panic) = done {
                lock(&self.panicked).get_or_insert(panic);
            }
            self.shares[share].0.done.store(generation, Ordering::Release);
        }
    }

    /// Whether the share was free. Every generation takes every share before it ends, so a share that was last taken in the
    /// generation before this one means that this one is under way, and taking it keeps it so. Whoever comes late, with an
    /// old generation in hand, finds the share taken in that one or a later, and leaves it alone.
    fn take(&self, share: usize, generation: u64) -> bool {
        let taken = &self.shares[share].0.taken;
        taken.load(Ordering::Relaxed) == generation - 1
            && taken
                .compare_exchange(generation - 1, generation, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
