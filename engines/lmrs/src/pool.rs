//! The threads: as many as were asked for, the caller among them. A piece of work is shared out by `run`, which returns when
//! all of it is done.

/// So many threads, kept for the life of the pool.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
}

impl Pool {
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.max(1) }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work(thread)` once on each thread, the caller's own being 0, and returns when all have returned.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for thread in 1..self.threads {
                scope.spawn(move || work(thread));
            }
            work(0);
        });
    }
}
