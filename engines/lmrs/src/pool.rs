//! The threads: the caller, and workers that live as long as the pool. `run`, `share` and `share_pieces` distribute work and
//! return when it is done. The pool does not interpret the work.
//!
//! ```text
//! run:     stores the work, then raises the generation (the number of calls), which starts the workers
//! worker:  spins on the generation, takes its own share, then any share that no thread has taken
//! caller:  takes share 0, then any share that no thread has taken, then spins until all are done
//! idle:    a worker parks after spinning for a millisecond; the next call wakes it
//! ```
//!
//! The first thread that takes a share does it. A worker that lost its core, or is still waking up, does not delay the others:
//! the caller takes that worker's share. `Pool::new` and `new_pinned` start no more threads than there are processors, because
//! the others would wait.

#![expect(unsafe_code, reason = "threads that outlive a call run work that is borrowed for the call")]

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

use system::processors::{self, Pinned};

/// A fixed set of threads, kept for the life of the pool.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while the workers do the work of one caller.
    run_lock: Mutex<()>,
    /// The caller's pinning, undone when the pool is dropped.
    _pinned: Option<Pinned>,
}

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The state that the caller and the workers share. A cache line takes time to move between cores, so data written by one
/// thread and read by others uses as few lines as possible: two for each call of `run` with two threads.
#[derive(Debug)]
struct Shared {
    call: CachePadded<Call>,
    shares: Box<[CachePadded<Share>]>,
    ending: AtomicBool,
    /// Workers that are parked, or about to park.
    parked: AtomicUsize,
    park_lock: Mutex<()>,
    wake: Condvar,
    /// The first panic of the work.
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The fields that the caller writes and the workers read.
#[derive(Debug, Default)]
struct Call {
    generation: AtomicU64,
    work: UnsafeCell<Option<*const Work<'static>>>,
}

/// The fields that the thread with the share writes.
#[derive(Debug, Default)]
struct Share {
    /// The last generation in which the share was taken.
    taken: AtomicU64,
    /// The last generation in which the share was done.
    done: AtomicU64,
}

/// A value alone on two cache lines of 64 bytes, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

// SAFETY: only `work` is not `Sync`. The holder of `run_lock` writes it before it raises the generation (release), while no
// share of an earlier generation is running. Threads read it only after they took a share of that generation (see
// `Shared::take`). So reads and writes never overlap. The work itself is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as for `Sync`; no field belongs to the thread that created it.
unsafe impl Send for Shared {}

/// The fewest rows for which the small steps between products are shared by the threads. For fewer rows, starting the threads
/// takes longer.
pub const MIN_SHARED_ROWS: usize = 16;

/// The time that an idle thread spins before it parks.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// Spins between two reads of the clock: a read costs as much as a few spins.
const SPINS_PER_CLOCK_READ: u32 = 64;
/// Spins after which a caller that waits for shares yields its processor at every spin.
const SPINS_BEFORE_YIELD: u32 = 4096;

impl Pool {
    /// Starts threads without pinning.
    pub fn new(threads: usize) -> Self {
        Self::start(threads.min(processors::allowed().len()), None)
    }

    /// Pins each thread to a processor of its own, and the calling thread until the pool is dropped. The first hardware thread
    /// of every core comes before any second one.
    pub fn new_pinned(threads: usize) -> Self {
        let mut order = processors::cores_first();
        order.truncate(threads.max(1));
        Self::start(order.len(), Some(&order))
    }

    fn start(threads: usize, processors: Option<&[usize]>) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared::new(threads));
        let worker = |share: usize| {
            let (shared, processor) =
                (Arc::clone(&shared), processors.and_then(|processors| processors.get(share).copied()));
            let thread = std::thread::Builder::new().name(format!("pool-{share}"));
            let work = move || {
                let _pinned = processor.map(Pinned::to);
                shared.serve(share);
            };
            thread.spawn(work)
        };
        // If the system refuses more threads, the others take the shares of the missing ones.
        let workers = (1..threads).map_while(|share| worker(share).ok()).collect();
        let pinned = processors.and_then(|processors| processors.first().copied()).map(Pinned::to);
        Self { shared, workers, run_lock: Mutex::default(), _pinned: pinned }
    }

    /// The number of shares of the work: a thread each, unless the system refused to start some. It may be less than requested.
    pub fn threads(&self) -> usize {
        self.shared.shares.len()
    }

    /// The number of threads that the system has started, with the caller.
    pub fn started_threads(&self) -> usize {
        1 + self.workers.len()
    }

    /// Calls `work(thread)` once for each number below `threads()`, several at a time, and returns when all have returned. A
    /// panic in a call reaches the caller. A nested or simultaneous call of `run` does its work on the calling thread.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let _run_lock = match self.run_lock.try_lock() {
            _ if self.threads() == 1 => return work(0),
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..self.threads()).for_each(work),
        };
        self.shared.run(work);
    }

    /// Calls `work(index, thread)` once for each index below `count`.
    pub fn share(&self, count: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        self.share_ranges(count, count, &|range, thread| range.for_each(|index| work(index, thread)));
    }

    /// Calls `work(range, thread)` for ranges of at most `max_len` consecutive numbers, which together cover all numbers below
    /// `count`. With several threads, ranges become smaller towards the end, so that all threads end at about the same time.
    pub fn share_ranges(&self, count: usize, max_len: usize, work: &(dyn Fn(Range<usize>, usize) + Sync)) {
        let max_len = max_len.max(1);
        if count <= 1 || self.threads() == 1 {
            return (0..count).step_by(max_len).for_each(|first| work(first..count.min(first + max_len), 0));
        }
        let ranges = Ranges::new(count, self.threads());
        self.run(&|thread| {
            while let Some(range) = ranges.take(thread, max_len) {
                work(range, thread);
            }
        });
    }

    /// Calls `work(thread, piece)` once for each piece. A thread without work takes the next piece, so a thread that loses its
    /// core does not delay the others.
    pub fn share_pieces<T: Send>(
        &self,
        pieces: impl Iterator<Item = T> + Send,
        work: impl Fn(usize, T) + Sync,
    ) {
        let pieces = Mutex::new(pieces);
        let next = || lock(&pieces).next();
        self.run(&|thread| {
            while let Some(piece) = next() {
                work(thread, piece);
            }
        });
    }

    /// Like `share_pieces` if `parallel` is true. Otherwise the caller does all the work.
    pub fn share_if<T: Send>(
        &self,
        parallel: bool,
        pieces: impl Iterator<Item = T> + Send,
        work: impl Fn(usize, T) + Sync,
    ) {
        if parallel && self.threads() > 1 {
            self.share_pieces(pieces, work);
        } else {
            pieces.for_each(|piece| work(0, piece));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.raise();
        for worker in self.workers.drain(..) {
            // Workers catch panics of their work, so the result has no information.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            call: CachePadded::default(),
            shares: (0..threads).map(|_| CachePadded::default()).collect(),
            ending: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            park_lock: Mutex::default(),
            wake: Condvar::new(),
            panicked: Mutex::default(),
        }
    }

    /// Runs the work on all threads, and returns when every share is done. The caller holds `run_lock`.
    fn run(&self, work: &Work<'_>) {
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime is erased. This function returns when all shares are done. Threads use the pointer only
        // for a share of this generation, so nothing uses it after the borrow ends.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: no share of an earlier generation is running, and none of this one can be taken yet: see `take`.
        unsafe { *self.call.0.work.get() = Some(work) };
        let generation = self.raise();
        self.run_shares(0, generation);
        let mut spins = 0_u32;
        for share in &self.shares {
            while share.0.done.load(Ordering::Acquire) != generation {
                std::hint::spin_loop();
                spins = spins.saturating_add(1);
                if spins >= SPINS_BEFORE_YIELD {
                    std::thread::yield_now();
                }
            }
        }
        if let Some(panicked) = lock(&self.panicked).take() {
            resume_unwind(panicked);
        }
    }

    /// Starts the next generation, and wakes parked workers.
    fn raise(&self) -> u64 {
        // Sequentially consistent, like the accesses of a worker before it parks: either the worker reads the new generation,
        // or this thread finds the worker parked.
        let generation = self.call.0.generation.fetch_add(1, Ordering::SeqCst) + 1;
        if self.parked.load(Ordering::SeqCst) > 0 {
            let _park_lock = lock(&self.park_lock);
            self.wake.notify_all();
        }
        generation
    }

    /// The main loop of a worker.
    fn serve(&self, share: usize) {
        let mut last = 0;
        loop {
            last = self.next_after(last);
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            self.run_shares(share, last);
        }
    }

    /// Waits for the generation after `last`: spins first, then parks.
    fn next_after(&self, last: u64) -> u64 {
        let began = Instant::now();
        loop {
            for _ in 0..SPINS_PER_CLOCK_READ {
                let generation = self.call.0.generation.load(Ordering::Acquire);
                if generation != last {
                    return generation;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= SPIN_TIME {
                break;
            }
        }
        let mut park_lock = lock(&self.park_lock);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.call.0.generation.load(Ordering::SeqCst) == last {
            park_lock = self.wake.wait(park_lock).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        self.call.0.generation.load(Ordering::Acquire)
    }

    /// Runs this share, and then every other share, if no thread has taken them.
    fn run_shares(&self, share: usize, generation: u64) {
        let shares = self.shares.len();
        for share in (share..shares).chain(0..share) {
            if !self.take(share, generation) {
                continue;
            }
            // SAFETY: this share of this generation was taken, so `run` waits for it: the pointer is of that generation, and
            // the work is still borrowed.
            let work = unsafe { (*self.call.0.work.get()).map(|work| &*work) };
            let done = catch_unwind(AssertUnwindSafe(|| work.map(|work| work(share))));
            if let Err(panic) = done {
                lock(&self.panicked).get_or_insert(panic);
            }
            self.shares[share].0.done.store(generation, Ordering::Release);
        }
    }

    /// Takes the share if no thread has taken it. Every generation takes every share before it ends. So a share that was last
    /// taken in the previous generation proves that this generation is running, and taking the share keeps it running. A late
    /// thread with an old generation finds that the share was taken in that generation or a later one.
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

/// Distributes the numbers below a limit, each number once. Every thread has a range of its own, so that it reads memory
/// sequentially as long as possible. Then it takes the remaining numbers of the other threads.
struct Ranges(Vec<Remaining>);

/// The remaining numbers of a thread's range, on separate cache lines, so that threads contend only if one helps another.
#[repr(align(128))]
struct Remaining {
    next: AtomicUsize,
    end: usize,
}

/// Each take gets the remaining count divided by this number: large ranges first, and small ones at the end.
const DIVISOR: usize = 2;

impl Ranges {
    fn new(limit: usize, threads: usize) -> Self {
        let bound = |thread: usize| thread * limit / threads;
        let range = |thread| Remaining { next: bound(thread).into(), end: bound(thread + 1) };
        Self((0..threads).map(range).collect())
    }

    /// Takes a range of at most `max_len` numbers; `None` when all are taken.
    fn take(&self, thread: usize, max_len: usize) -> Option<Range<usize>> {
        self.0[thread..].iter().chain(&self.0[..thread]).find_map(|range| range.take(max_len))
    }
}

impl Remaining {
    fn take(&self, max_len: usize) -> Option<Range<usize>> {
        let count = |next: usize| ((self.end - next) / DIVISOR).clamp(1, max_len.max(1));
        let next_end = |next| (next < self.end).then(|| next + count(next));
        // The pool's barrier orders all other memory; here only the counter matters.
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_end);
        taken.ok().map(|first| first..first + count(first))
    }
}
