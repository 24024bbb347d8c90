//! The speed of memory reads, for each number of streams: separate ranges that a thread reads in turn. A decoded token reads
//! every weight once, and on some machines several streams are 1.5 times as fast as one. The buffer is larger than the caches.
#![expect(unsafe_code, reason = "the thread that reads a part of the buffer initialises this part")]

use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::read::{Reader, STEP};
use crate::{Reads, team};

/// The measured numbers of streams per thread.
pub const STREAMS: [u32; 4] = [1, 2, 4, 8];
/// The approximate bytes that all threads together read in a pass. Each pass reads the next window (a piece of each thread's
/// part), so that no byte is read twice before the whole buffer was read. Other processes disturb short passes less often.
const PASS_BYTES: usize = 64 << 20;
/// The fewest windows of a buffer. A buffer of `MIN_BUFFER_BYTES` has this number.
const MIN_WINDOWS: usize = 5;
/// The smallest ratio of the buffer to the last-level cache. In a smaller buffer, the cache could answer some repeated reads.
const CACHE_FACTOR: u64 = 4;
const MIN_BUFFER_BYTES: u64 = 256 << 20;
/// The buffer takes at most the available memory divided by this number.
const AVAILABLE_DIVISOR: u64 = 4;

/// The size of a buffer that the caches cannot hold: four times the last-level cache, and at least 256 MiB. `None` if that is
/// more than a quarter of the available memory. An unknown cache counts as 0 bytes, unknown available memory as 1 GiB.
pub fn buffer_bytes(last_level_cache: Option<u64>, available: Option<u64>) -> Option<u64> {
    let bytes = last_level_cache.map_or(0, |bytes| bytes.saturating_mul(CACHE_FACTOR)).max(MIN_BUFFER_BYTES);
    let max = available.map_or(MIN_BUFFER_BYTES, |bytes| bytes / AVAILABLE_DIVISOR);
    (bytes <= max).then_some(bytes)
}

/// The fastest pass for each number of streams. Empty if there is no memory for the buffer, or if it is too small.
pub fn probe(processors: &[usize], bytes: u64, budget: Duration) -> Vec<Reads> {
    let Some(mut buffer) = Buffer::new(bytes) else { return Vec::new() };
    let (reader, parts) = (Reader::widest_supported(), Parts::of(&mut buffer, processors.len()));
    let layouts = STREAMS.map(|streams| parts.layout(streams));
    if parts.untaken.len() < processors.len() || layouts.iter().any(Option::is_none) {
        return Vec::new();
    }
    let read = |position: &mut Position, setting: usize| {
        if let Some(layout) = layouts[setting] {
            reader.read(position.next(layout), layout.stream_bytes, STREAMS[setting]);
        }
    };
    let best = team::fastest_passes(processors, STREAMS.len(), budget, |index| parts.take(index), read);
    let times = best.unwrap_or_default();
    let reads = STREAMS.iter().zip(layouts).zip(times).filter_map(|((&streams, layout), ns)| {
        let bytes = (layout?.stream_bytes * streams as usize * processors.len()) as u64;
        Some(Reads { threads: u32::try_from(processors.len()).ok()?, streams, bytes, ns })
    });
    reads.collect()
}

/// The bytes per second that all these processors together read during `time`, with `streams` per processor. `probe` measures
/// the fastest milliseconds instead. `None` if there is no memory for the buffer, or if it is too small.
pub fn sustained(processors: &[usize], bytes: u64, streams: u32, time: Duration) -> Option<f64> {
    let mut buffer = Buffer::new(bytes)?;
    let (reader, parts) = (Reader::widest_supported(), Parts::of(&mut buffer, processors.len()));
    let layout = parts.layout(streams)?;
    // Without a budget there are `MIN_PASSES` passes. Each thread adds one rate per pass.
    let rates = Mutex::new(Vec::new());
    let read = |position: &mut Position, _| {
        let (began, mut bytes_read) = (Instant::now(), 0);
        while began.elapsed() < time / team::MIN_PASSES as u32 {
            reader.read(position.next(layout), layout.stream_bytes, streams);
            bytes_read += layout.stream_bytes * streams as usize;
        }
        let rate = bytes_read as f64 / began.elapsed().as_secs_f64();
        rates.lock().unwrap_or_else(PoisonError::into_inner).push(rate);
    };
    team::fastest_passes(processors, 1, Duration::ZERO, |index| parts.take(index), read)?;
    let rates = rates.into_inner().unwrap_or_else(PoisonError::into_inner);
    Some(rates.iter().sum::<f64>() / team::MIN_PASSES as f64)
}

/// The parts of a buffer, one for each thread; `None` after the thread has taken its part.
struct Parts<'a> {
    untaken: Vec<Mutex<Option<&'a mut [MaybeUninit<Page>]>>>,
    part_bytes: usize,
    windows: usize,
}

impl<'a> Parts<'a> {
    fn of(buffer: &'a mut Buffer, threads: usize) -> Self {
        let parts: Vec<_> = buffer.parts(threads).collect();
        let part_bytes = parts.first().map_or(0, |part| size_of_val(*part));
        let windows = windows(part_bytes * threads);
        Self { untaken: parts.into_iter().map(|part| Mutex::new(Some(part))).collect(), part_bytes, windows }
    }

    fn layout(&self, streams: u32) -> Option<StreamLayout> {
        StreamLayout::of(self.part_bytes, self.windows, streams as usize)
    }

    /// Takes a part, and touches it on the calling thread, which will read it.
    fn take(&self, index: usize) -> Position<'a> {
        let part = self.untaken[index].lock().ok().and_then(|mut part| part.take());
        Position { part: part.map_or(&[], |part| touch(part)), windows: self.windows, window: 0 }
    }
}

/// The number of windows, which is always odd. Passes alternate between the numbers of streams, so with an even number of
/// windows each number of streams would read only some of the windows.
fn windows(bytes: usize) -> usize {
    (bytes / PASS_BYTES).max(MIN_WINDOWS) | 1
}

/// The layout of a thread's streams in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamLayout {
    window_bytes: usize,
    /// Bytes of each stream; the next stream follows it.
    stream_bytes: usize,
}

impl StreamLayout {
    /// `None` if the part is too small for these streams. Streams are an odd number of `STEP`s apart: at powers of two they would
    /// map to the same cache sets and memory banks, and measure a bad access pattern instead of the limit.
    fn of(part_bytes: usize, windows: usize, streams: usize) -> Option<Self> {
        let window_bytes = part_bytes / windows / STEP * STEP;
        let steps = window_bytes / STEP / streams;
        let even_steps = steps.div_ceil(2) * 2; // one less is the largest odd number up to `steps`
        (even_steps > 0).then(|| Self { window_bytes, stream_bytes: (even_steps - 1) * STEP })
    }
}

/// A thread's part of the buffer, the number of windows in it, and the index of the window that it reads next.
struct Position<'a> {
    part: &'a [u8],
    windows: usize,
    window: usize,
}

impl<'a> Position<'a> {
    fn next(&mut self, layout: StreamLayout) -> &'a [u8] {
        let offset = self.window * layout.window_bytes;
        self.window = (self.window + 1) % self.windows;
        &self.part[offset..offset + layout.window_bytes]
    }
}

/// Aligned, so that no vector load crosses cache lines.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "it is read as bytes")] [u8; 4096]);

/// Memory in whole pages, freed on drop.
struct Buffer(Vec<Page>);

impl Buffer {
    /// An untouched buffer. `None` if there is not enough memory.
    fn new(bytes: u64) -> Option<Self> {
        let pages = usize::try_from(bytes / size_of::<Page>() as u64).ok().filter(|&pages| pages > 0)?;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(pages).ok()?;
        advise_huge_pages(buffer.spare_capacity_mut());
        Some(Self(buffer))
    }

    /// Equal parts, one for each thread.
    fn parts(&mut self, threads: usize) -> impl Iterator<Item = &mut [MaybeUninit<Page>]> {
        let pages = self.0.spare_capacity_mut();
        let pages_per_thread = pages.len() / threads.max(1);
        pages.chunks_exact_mut(pages_per_thread.max(1)).take(threads)
    }
}

/// Writes a part on the calling thread: the kernel places a page near the thread that touches it first.
fn touch(part: &mut [MaybeUninit<Page>]) -> &[u8] {
    for page in &mut *part {
        page.write(Page([1; 4096]));
    }
    // SAFETY: every page of the part was just written, and a page is bytes without padding.
    unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), size_of_val(part)) }
}

/// Requests huge pages, as `lmrs` does: with small pages, reads also wait for page tables. The kernel may ignore the advice.
#[cfg(target_os = "linux")]
fn advise_huge_pages(pages: &mut [MaybeUninit<Page>]) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the range is exactly this slice, in whole pages, and the advice does not change its contents.
    let _ = unsafe { madvise(pages.as_mut_ptr().cast(), size_of_val(pages), Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_pages: &mut [MaybeUninit<Page>]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_at_least_four_times_the_cache_or_there_is_none() {
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
            let layout = StreamLayout { window_bytes: 0, stream_bytes: 0 };
            let mut position = Position { part: &part, windows: count, window: 0 };
            let mut read = vec![std::collections::BTreeSet::new(); STREAMS.len()];
            for pass in 0..count * STREAMS.len() {
                read[pass % STREAMS.len()].insert(position.window);
                position.next(layout);
            }
            assert!(read.iter().all(|windows| windows.len() == count), "{bytes}: {count} {read:?}");
        }
    }

    #[test]
    fn streams_lie_an_odd_number_of_steps_apart_and_fit_into_their_window() {
        for part_bytes in [STEP * 64, 1 << 20, (128 << 20) + STEP, 100_000_000] {
            for streams in STREAMS.map(|streams| streams as usize) {
                let StreamLayout { window_bytes, stream_bytes } =
                    StreamLayout::of(part_bytes, MIN_WINDOWS, streams).unwrap();
                assert_eq!((stream_bytes / STEP % 2, stream_bytes % STEP), (1, 0), "{part_bytes} {streams}");
                assert!(
                    stream_bytes * streams <= window_bytes && window_bytes * MIN_WINDOWS <= part_bytes,
                    "{part_bytes} {streams}"
                );
                // Almost all of a large window is read.
                assert!(
                    part_bytes < 1 << 20 || stream_bytes * streams * 100 >= window_bytes * 95,
                    "{part_bytes} {streams}"
                );
            }
        }
        assert_eq!(StreamLayout::of(STEP * 39, MIN_WINDOWS, 8), None); // 7 steps a window: too few for 8 streams
    }

    #[test]
    fn every_thread_has_a_part_and_all_of_it_is_written() {
        let mut buffer = Buffer::new(10 * 4096 + 1).unwrap(); // 10 pages: 3 for each thread, and 1 unused
        let parts: Vec<&[u8]> = buffer.parts(3).map(touch).collect();
        assert_eq!(parts.len(), 3);
        for part in parts {
            assert_eq!((part.len(), part.as_ptr() as usize % 4096), (3 * 4096, 0));
            assert!(part.iter().all(|&byte| byte == 1));
        }
    }

    #[test]
    fn no_buffer_is_made_if_it_is_smaller_than_a_page_or_larger_than_any_machine() {
        assert!(Buffer::new(0).is_none() && Buffer::new(4095).is_none() && Buffer::new(u64::MAX).is_none());
        // Fewer pages than threads: each part has a page at least, and some threads have no part.
        assert_eq!(Buffer::new(2 * 4096).unwrap().parts(3).count(), 2);
    }
}
