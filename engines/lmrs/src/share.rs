//! Work that falls into pieces, each done once by whichever thread comes to it first, so that a thread whose core is taken
//! away does not hold up the rest.

use std::sync::{Mutex, PoisonError};

use crate::pool::Pool;

/// Calls `work(thread, piece)` for each piece.
pub fn share<T: Send>(pool: &Pool, pieces: impl Iterator<Item = T> + Send, work: impl Fn(usize, T) + Sync) {
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    pool.run(&|thread| {
        while let Some(piece) = next() {
            work(thread, piece);
        }
    });
}

/// From so many rows on the small steps between products are worth waking the others for.
pub const SHARED: usize = 16;

/// The same, by the caller alone where there is too little of it to wake anybody for.
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
