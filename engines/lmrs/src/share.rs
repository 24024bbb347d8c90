//! Work in pieces: each is done once, by the first free thread, so a thread that loses its core does not delay the rest.

use std::sync::{Mutex, PoisonError};

use crate::pool::Pool;

pub fn share<T: Send>(pool: &Pool, pieces: impl Iterator<Item = T> + Send, work: impl Fn(usize, T) + Sync) {
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    pool.run(&|thread| {
        while let Some(piece) = next() {
            work(thread, piece);
        }
    });
}

/// From this number of rows, the small steps between products are worth waking the threads.
pub const SHARED: usize = 16;

/// Like `share`, but the caller works alone unless the work is `worth` waking the threads.
pub fn share_if<T: Send>(
    worth: bool,
    pool: &Pool,
    pieces: impl Iterator<Item = T> + Send,
    work: impl Fn(usize, T) + Sync,
) {
    if worth && pool.threads() > 1 {
        share(pool, pieces, work);
    } else {
        pieces.for_each(|piece| work(0, piece));
    }
}
