//! Whether an answer is in progress: the server's signal to the thread that watches the reader.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Clones share the same state.
#[derive(Clone, Default)]
pub(crate) struct Work(Arc<Shared>);

#[derive(Default)]
struct Shared {
    on: Mutex<bool>,
    began: Condvar,
}

impl Work {
    /// Called for every token, so it notifies only on a change.
    pub fn begin(&self) {
        let mut on = self.lock();
        if !*on {
            *on = true;
            self.0.began.notify_all();
        }
    }

    /// Called before the answer is sent: a reader with its answer may leave, and the process must not end early for that.
    pub fn end(&self) {
        *self.lock() = false;
    }

    /// Waits until an answer is in progress.
    pub fn wait(&self) {
        let mut on = self.lock();
        while !*on {
            on = self.0.began.wait(on).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.on.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
