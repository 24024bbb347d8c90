//! A checksum that finds damage at the speed of memory. Not cryptographic.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::Pool;

/// Bytes that one thread sums at a time.
const STRETCH: usize = 4 << 20;
const LANES: usize = 8;

pub fn sum(pool: &Pool, bytes: &[u8]) -> u64 {
    let stretches: Vec<&[u8]> = bytes.chunks(STRETCH).collect();
    let sums: Vec<_> = stretches.iter().map(|_| AtomicU64::new(0)).collect();
    pool.share(stretches.len(), &|index, _| {
        sums[index].store(stretch_sum(stretches[index]), Ordering::Relaxed)
    });
    mixed(sums.into_iter().map(AtomicU64::into_inner).chain([bytes.len() as u64]))
}

/// In each of eight lanes, the sum of its words, and the running sum of these sums, which depends on their order (after
/// Fletcher). Eight lanes fill a vector register.
fn stretch_sum(bytes: &[u8]) -> u64 {
    let (mut sums, mut sums_of_sums) = ([0_u64; LANES], [0_u64; LANES]);
    let mut add = |line: &[u8; 8 * LANES]| {
        for (lane, word) in line.as_chunks::<8>().0.iter().enumerate() {
            sums[lane] = sums[lane].wrapping_add(u64::from_le_bytes(*word));
            sums_of_sums[lane] = sums_of_sums[lane].wrapping_add(sums[lane]);
        }
    };
    let (lines, rest) = bytes.as_chunks::<{ 8 * LANES }>();
    lines.iter().for_each(&mut add);
    let mut last = [0; 8 * LANES];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    mixed(sums.into_iter().chain(sums_of_sums))
}

fn mixed(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_kit::sampling::Rng;

    #[test]
    fn any_bit_that_turns_and_any_two_words_that_change_places_are_found_by_any_number_of_threads() {
        let (one, two) = (Pool::new(1), Pool::new(2));
        let mut rng = Rng::new(1);
        let mut below = |most: usize| (rng.next_f64() * most as f64) as usize;
        for length in [1, 7, 64, 65, 4096, STRETCH - 1, STRETCH, STRETCH + 1, 3 * STRETCH + 100] {
            let mut bytes: Vec<u8> = (0..length).map(|_| below(256) as u8).collect();
            let whole = sum(&one, &bytes);
            assert_eq!(sum(&two, &bytes), whole);
            for _ in 0..3 {
                let (at, bit) = (below(length), below(8));
                bytes[at] ^= 1 << bit;
                assert_ne!(sum(&two, &bytes), whole);
                bytes[at] ^= 1 << bit;
            }
            if length > 1000 {
                bytes.swap(3, 900);
                assert!(bytes[3] == bytes[900] || sum(&two, &bytes) != whole);
                bytes.swap(3, 900);
            }
            assert_ne!(sum(&two, &bytes[..length - 1]), whole);
        }
    }
}
