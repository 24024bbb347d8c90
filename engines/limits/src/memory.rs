//! The speed of memory reads, by streams per thread. A decoded token reads every weight once, and on some machines several
//! streams reach 1.5 times the speed of one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Reads;
use crate::buffer::{Buffer, touch};
use crate::cores::Core;
use crate::read::{Reader, STEP};
use crate::team;

/// Numbers of streams that each thread reads at once.
pub const STREAMS: [u32; 4] = [1, 2, 4, 8];
/// Bytes of a pass. Passes read one window of the buffer after the other, so that no byte is read twice before the whole buffer
/// was read. A pass takes a few milliseconds: other processes disturb short passes less often.
const PASS_BYTES: usize = 64 << 20;
/// The fewest windows, for a small buffer.
const LEAST_WINDOWS: usize = 5;
/// The minimum ratio of buffer to cache: a larger cache could serve some of the repeated reads.
const TIMES_THE_CACHE: u64 = 4;
const LEAST_BUFFER: u64 = 256 << 20;
const SHARE_OF_AVAILABLE: u64 = 4;

/// The bytes to read so that they come from memory: four times the last-level cache, at least 256 MiB, and at most a quarter of
/// the available memory. `None` if that is too little to exceed the caches.
pub fn buffer_bytes(last_level_cache: Option<u64>, available: Option<u64>) -> Option<u64> {
    let wanted = last_level_cache.map_or(0, |bytes| bytes.saturating_mul(TIMES_THE_CACHE)).max(LEAST_BUFFER);
    let most = available.map_or(LEAST_BUFFER, |bytes| bytes / SHARE_OF_AVAILABLE);
    (wanted <= most).then_some(wanted)
}

/// The best pass for each number of streams. Empty if there is no memory for the buffer.
pub fn probe(cores: &[Core], bytes: u64, budget: Duration) -> Vec<Reads> {
    let Some(mut buffer) = Buffer::new(bytes) else { return Vec::new() };
    let reader = Reader::here();
    let parts: Vec<_> = buffer.parts(cores.len()).map(|part| Mutex::new(Some(part))).collect();
    let part_bytes =
        parts.first().and_then(|part| part.lock().ok()?.as_deref().map(size_of_val)).unwrap_or(0);
    let windows = windows(part_bytes * cores.len());
    let strides = STREAMS.map(|streams| Stride::of(part_bytes, windows, streams as usize));
    if parts.len() < cores.len() || strides.iter().any(Option::is_none) {
        return Vec::new();
    }
    let best = team::best_of(
        cores,
        STREAMS.len(),
        budget,
        |index| {
            let part = parts[index].lock().ok().and_then(|mut part| part.take());
            Place { part: part.map_or(&[], |part| touch(part)), windows, window: 0 }
        },
        |place, setting| {
            if let Some(stride) = strides[setting] {
                reader.read(place.next(stride), stride.each, STREAMS[setting]);
            }
        },
    );
    let times = best.unwrap_or_default();
    let reads = STREAMS.iter().zip(strides).zip(times).filter_map(|((&streams, stride), ns)| {
        let bytes = (stride?.each * streams as usize * cores.len()) as u64;
        Some(Reads { threads: u32::try_from(cores.len()).ok()?, streams, bytes, ns })
    });
    reads.collect()
}

/// Bytes per second of memory with these cores and streams during `time`: the sustained speed of a shared machine, in contrast
/// to the best milliseconds of `probe`. `None` if there is no memory for the buffer.
pub fn sustained(cores: &[Core], bytes: u64, streams: u32, time: Duration) -> Option<f64> {
    let mut buffer = Buffer::new(bytes)?;
    let reader = Reader::here();
    let parts: Vec<_> = buffer.parts(cores.len()).map(|part| Mutex::new(Some(part))).collect();
    let part_bytes = parts.first()?.lock().ok()?.as_deref().map_or(0, size_of_val);
    let windows = windows(part_bytes * cores.len());
    let stride = Stride::of(part_bytes, windows, streams as usize)?;
    let rates = Mutex::new(Vec::new());
    team::best_of(
        cores,
        1,
        Duration::ZERO,
        |index| {
            let part = parts[index].lock().ok().and_then(|mut part| part.take());
            Place { part: part.map_or(&[], |part| touch(part)), windows, window: 0 }
        },
        |place, _| {
            let (began, mut read) = (Instant::now(), 0);
            while began.elapsed() < time / team::LEAST_ROUNDS as u32 {
                reader.read(place.next(stride), stride.each, streams);
                read += stride.each * streams as usize;
            }
            let rate = read as f64 / began.elapsed().as_secs_f64();
            rates.lock().unwrap_or_else(PoisonError::into_inner).push(rate);
        },
    )?;
    let rates = rates.into_inner().unwrap_or_else(PoisonError::into_inner);
    Some(rates.iter().sum::<f64>() / team::LEAST_ROUNDS as f64)
}

/// The number of windows, always odd. The numbers of streams alternate; with an even number of windows, each would read the
/// same windows again and again, in a cache or not.
fn windows(bytes: usize) -> usize {
    (bytes / PASS_BYTES).max(LEAST_WINDOWS) | 1
}

/// The layout of a thread's streams in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stride {
    window: usize,
    /// Bytes of each stream; the next stream follows it.
    each: usize,
}

impl Stride {
    /// `None` if the part is too small for these streams. Streams are an odd number of steps apart: at powers of two they would
    /// map to the same cache sets and memory banks, and measure a bad layout instead of the limit.
    fn of(part_bytes: usize, windows: usize, streams: usize) -> Option<Self> {
        let window = part_bytes / windows / STEP * STEP;
        let steps = window / STEP / streams;
        let above = steps.div_ceil(2) * 2;
        (above > 0).then(|| Self { window, each: (above - 1) * STEP })
    }
}

/// The position of a thread in its part.
struct Place<'a> {
    part: &'a [u8],
    windows: usize,
    window: usize,
}

impl<'a> Place<'a> {
    fn next(&mut self, stride: Stride) -> &'a [u8] {
        let offset = self.window * stride.window;
        self.window = (self.window + 1) % self.windows;
        &self.part[offset..offset + stride.window]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_far_beyond_the_caches_or_there_is_none() {
        let (mib, gib) = (1 << 20, 1 << 30);
        assert_eq!(buffer_bytes(Some(32 * mib), Some(16 * gib)), Some(256 * mib));
        assert_eq!(buffer_bytes(Some(105 * mib), Some(16 * gib)), Some(420 * mib));
        assert_eq!(buffer_bytes(Some(105 * mib), Some(gib)), None);
        assert_eq!(buffer_bytes(None, None), Some(256 * mib));
        assert_eq!(buffer_bytes(Some(u64::MAX), Some(u64::MAX)), None);
    }

    #[test]
    fn every_number_of_streams_reads_every_window() {
        for bytes in [1 << 20, 256 << 20, 512 << 20, 420 << 20, 4 << 30] {
            let (part, count) = ([0u8; 64], windows(bytes));
            let stride = Stride { window: 0, each: 0 };
            let mut place = Place { part: &part, windows: count, window: 0 };
            let mut read = vec![std::collections::BTreeSet::new(); STREAMS.len()];
            for pass in 0..count * STREAMS.len() {
                read[pass % STREAMS.len()].insert(place.window);
                place.next(stride);
            }
            assert!(read.iter().all(|windows| windows.len() == count), "{bytes}: {count} {read:?}");
        }
    }

    #[test]
    fn streams_lie_an_odd_number_of_steps_apart_and_fit_into_their_window() {
        for part in [STEP * 64, 1 << 20, (128 << 20) + STEP, 100_000_000] {
            for streams in STREAMS.map(|streams| streams as usize) {
                let Stride { window, each } = Stride::of(part, LEAST_WINDOWS, streams).unwrap();
                assert_eq!((each / STEP % 2, each % STEP), (1, 0), "{part} {streams}");
                assert!(each * streams <= window && window * LEAST_WINDOWS <= part, "{part} {streams}");
                // Almost all of a large window is read.
                assert!(part < 1 << 20 || each * streams * 100 >= window * 95, "{part} {streams}");
            }
        }
        assert_eq!(Stride::of(STEP * 39, LEAST_WINDOWS, 8), None);
    }
}
