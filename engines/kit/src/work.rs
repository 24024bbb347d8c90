//! Whether an answer is being worked on: what the server tells the thread that watches the reader.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Clones are of the same work.
#[derive(Clone, Default)]
pub(crate) struct Work(Arc<Shared>);

#[derive(Default)]
struct Shared {
    on: Mutex<bool>,
    began: Condvar,
}

impl Work {
    /// Called for every token, so that nobody is told who knows already.
    pub fn begin(&self) {
        let mut on = self.lock();
        if !*on {
            *on = true;
            self.0.began.notify_all();
        }
    }

    /// Before the answer is sent: whoever has it may go, and that is no reason to end in a hurry.
    pub fn end(&self) {
        *self.lock() = false;
    }

    /// Returns while an answer is being worked on, if need be when the next one is.
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
