//! Generated tokens: their ids, the time between them, and the way of their bytes.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Writes the bytes of an answer.
pub type Write<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// The id of a generated token: below 200, so that every vocabulary has it.
pub fn id_of(index: u32) -> u32 {
    index % 200
}

/// Sleeps until this time after `began`, without a busy loop.
pub fn sleep_until(began: Instant, time: Duration) {
    // `park_timeout` may return early.
    while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}
