//! Reads memory with vector loads, and adds up the loaded values, so that the compiler cannot remove a load.
#![expect(unsafe_code, reason = "vector loads take pointers")]

/// Bytes of a stream that are read before the next stream's turn: four cache lines.
pub const STEP: usize = 256;

/// A way to read memory: the loads of a vector extension, or plain Rust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

impl Reader {
    pub fn widest_supported() -> Self {
        Self::all_supported().next().unwrap_or(Self::Portable)
    }

    /// The widest first.
    fn all_supported() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [
            (is_x86_feature_detected!("avx512f"), Self::Avx512),
            (is_x86_feature_detected!("avx2"), Self::Avx2),
        ];
        #[cfg(target_arch = "aarch64")]
        let vectors = [(std::arch::is_aarch64_feature_detected!("neon"), Self::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vectors = [];
        vectors
            .into_iter()
            .filter_map(|(is_supported, reader)| is_supported.then_some(reader))
            .chain([Self::Portable])
    }

    /// Reads `count` (1, 2, 4 or 8) consecutive streams of `stream_bytes` bytes: one step of the first, one step of the second,
    /// and so on, then the next step of each.
    pub fn read(self, bytes: &[u8], stream_bytes: usize, count: u32) {
        let streams = Streams { start: bytes.as_ptr(), stream_bytes };
        assert!(
            stream_bytes.is_multiple_of(STEP)
                && stream_bytes.checked_mul(count as usize).is_some_and(|length| length <= bytes.len())
        );
        // SAFETY: the streams are within `bytes`, and the length of each is a multiple of a step.
        let sum = unsafe {
            match count {
                1 => self.sum::<1>(streams),
                2 => self.sum::<2>(streams),
                4 => self.sum::<4>(streams),
                8 => self.sum::<8>(streams),
                _ => 0,
            }
        };
        std::hint::black_box(sum);
    }

    /// # Safety
    ///
    /// The machine supports this variant, and there are `STREAMS` streams.
    unsafe fn sum<const STREAMS: usize>(self, streams: Streams) -> u64 {
        // SAFETY: the caller guarantees this.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => x86::avx512::<STREAMS>(streams),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::avx2::<STREAMS>(streams),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => arm::neon::<STREAMS>(streams),
                Self::Portable => portable::<STREAMS>(streams),
            }
        }
    }
}

/// Consecutive streams, each a multiple of `STEP` long.
#[derive(Clone, Copy)]
struct Streams {
    start: *const u8,
    stream_bytes: usize,
}

impl Streams {
    /// # Safety
    ///
    /// The stream is longer than `offset`.
    unsafe fn at(self, stream: usize, offset: usize) -> *const u8 {
        // SAFETY: the caller guarantees this.
        unsafe { self.start.add(stream * self.stream_bytes + offset) }
    }
}

/// # Safety
///
/// There are `STREAMS` streams.
unsafe fn portable<const STREAMS: usize>(streams: Streams) -> u64 {
    const LANES: usize = 8;
    let mut sums = [0u64; LANES];
    for offset in (0..streams.stream_bytes).step_by(STEP) {
        for stream in 0..STREAMS {
            for vector in 0..STEP / size_of::<[u64; LANES]>() {
                for (lane, sum) in sums.iter_mut().enumerate() {
                    let offset_in_step = (vector * LANES + lane) * size_of::<u64>();
                    // SAFETY: a step from `offset` on is within the stream; any bytes are a valid number.
                    let number =
                        unsafe { streams.at(stream, offset + offset_in_step).cast::<u64>().read_unaligned() };
                    *sum = sum.wrapping_add(number);
                }
            }
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{STEP, Streams};

    /// # Safety
    ///
    /// The machine has AVX-512, and there are `STREAMS` streams.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512<const STREAMS: usize>(streams: Streams) -> u64 {
        let mut sums = [_mm512_setzero_si512(); STEP / 64];
        for offset in (0..streams.stream_bytes).step_by(STEP) {
            for stream in 0..STREAMS {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a step from `offset` on is within the stream.
                    let lanes =
                        unsafe { _mm512_loadu_si512(streams.at(stream, offset + 64 * vector).cast()) };
                    *sum = _mm512_add_epi64(*sum, lanes);
                }
            }
        }
        let total = sums.into_iter().fold(_mm512_setzero_si512(), |total, sum| _mm512_add_epi64(total, sum));
        _mm512_reduce_add_epi64(total).cast_unsigned()
    }

    /// # Safety
    ///
    /// The machine has AVX2, and there are `STREAMS` streams.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2<const STREAMS: usize>(streams: Streams) -> u64 {
        let mut sums = [_mm256_setzero_si256(); STEP / 32];
        for offset in (0..streams.stream_bytes).step_by(STEP) {
            for stream in 0..STREAMS {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a step from `offset` on is within the stream.
                    let lanes =
                        unsafe { _mm256_loadu_si256(streams.at(stream, offset + 32 * vector).cast()) };
                    *sum = _mm256_add_epi64(*sum, lanes);
                }
            }
        }
        let total = sums.into_iter().fold(_mm256_setzero_si256(), |total, sum| _mm256_add_epi64(total, sum));
        let half = _mm_add_epi64(_mm256_castsi256_si128(total), _mm256_extracti128_si256::<1>(total));
        _mm_cvtsi128_si64(_mm_add_epi64(half, _mm_unpackhi_epi64(half, half))).cast_unsigned()
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::{STEP, Streams};

    /// # Safety
    ///
    /// The machine has NEON, and there are `STREAMS` streams.
    #[target_feature(enable = "neon")]
    pub unsafe fn neon<const STREAMS: usize>(streams: Streams) -> u64 {
        let mut sums = [vdupq_n_u64(0); STEP / 16];
        for offset in (0..streams.stream_bytes).step_by(STEP) {
            for stream in 0..STREAMS {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a step from `offset` on is within the stream.
                    let lanes = unsafe { vld1q_u64(streams.at(stream, offset + 16 * vector).cast()) };
                    *sum = vaddq_u64(*sum, lanes);
                }
            }
        }
        let total = sums.into_iter().fold(vdupq_n_u64(0), |total, sum| vaddq_u64(total, sum));
        vgetq_lane_u64::<0>(total).wrapping_add(vgetq_lane_u64::<1>(total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_reads_exactly_the_bytes_of_every_stream() {
        // The streams end within the first 16 steps. These differ from each other and from all later steps, so a read of a wrong
        // step changes the sum.
        let steps = 24;
        let bytes: Vec<u8> =
            (0..steps * STEP).map(|i| if i / STEP < 16 { (i / STEP) as u8 + 1 } else { 255 }).collect();
        let sum_of = |end: usize| -> u64 {
            let numbers = bytes[..end].chunks_exact(8);
            numbers.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).fold(0, u64::wrapping_add)
        };
        for reader in Reader::all_supported() {
            let streams =
                |count: usize, stream_bytes| (count, Streams { start: bytes.as_ptr(), stream_bytes });
            // SAFETY: every stream ends within `bytes`, and the list has only supported readers.
            let sums = unsafe {
                let (one, two, four, eight) =
                    (streams(1, 15 * STEP), streams(2, 7 * STEP), streams(4, 3 * STEP), streams(8, STEP));
                [
                    (one, reader.sum::<1>(one.1)),
                    (two, reader.sum::<2>(two.1)),
                    (four, reader.sum::<4>(four.1)),
                    (eight, reader.sum::<8>(eight.1)),
                ]
            };
            for ((count, streams), sum) in sums {
                assert_eq!(sum, sum_of(streams.stream_bytes * count), "{reader:?} with {count} streams");
            }
        }
    }

    #[test]
    #[should_panic(expected = "stream_bytes")]
    fn a_stream_beyond_the_buffer_is_refused() {
        Reader::widest_supported().read(&[0; 2 * STEP], STEP, 4);
    }
}
