//! Unpacking of 16 numbers at a time.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;

use super::{EXPONENTS, Group, LINE, Place};

#[target_feature(enable = "avx2")]
pub(super) fn unpack<const ROWS: usize>(heads: [&[u8]; ROWS], group: &Group, first: usize, into: &mut Place) {
    let exponents = heads.map(|head| {
        let head = &head[..EXPONENTS];
        // SAFETY: `head` has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(head.as_ptr().cast())) }
    });
    let (sign, mantissa) = (_mm256_set1_epi16(i16::MIN), _mm256_set1_epi16(0x7f));
    let (four_bits, none) = (_mm256_set1_epi16(15), _mm256_set1_epi16(i16::MIN));
    group.each_stretch::<ROWS>(first, into, |row, stretch, into| {
        let number = |bytes: __m256i, signs: __m256i, names: __m256i| {
            // The upper byte of each word gets an index out of range, which the shuffle turns into 0.
            let names = _mm256_or_si256(_mm256_and_si256(names, four_bits), none);
            let exponent = _mm256_slli_epi16::<7>(_mm256_shuffle_epi8(exponents[row], names));
            let rest = _mm256_or_si256(_mm256_and_si256(signs, sign), _mm256_and_si256(bytes, mantissa));
            _mm256_or_si256(exponent, rest)
        };
        for half in 0..2 {
            // SAFETY: a stretch has three lines, with both halves; `into` has 128 numbers.
            unsafe {
                let line = |at: usize| {
                    _mm256_loadu_si256(stretch.as_ptr().add(at * LINE + half * (LINE / 2)).cast())
                };
                let (low, high, names) = (line(0), line(1), line(2));
                let mut store = |at: usize, numbers| {
                    _mm256_storeu_si256(into.as_mut_ptr().add(at * 32 + half * 16).cast(), numbers);
                };
                store(0, number(low, _mm256_slli_epi16::<8>(low), names));
                store(1, number(_mm256_srli_epi16::<8>(low), low, _mm256_srli_epi16::<4>(names)));
                store(2, number(high, _mm256_slli_epi16::<8>(high), _mm256_srli_epi16::<8>(names)));
                store(3, number(_mm256_srli_epi16::<8>(high), high, _mm256_srli_epi16::<12>(names)));
            }
        }
    });
}
