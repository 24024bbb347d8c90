//! The clock of one request: zero is the moment when the whole request line had been read.

use std::time::Instant;

#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn zero_at(read: Instant) -> Self {
        Self(read)
    }

    /// Nanoseconds since zero; u64 holds five hundred years of them.
    pub fn ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
