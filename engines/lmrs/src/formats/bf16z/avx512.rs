//! Unpacking of 32 numbers at a time.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;

use super::{EXPONENTS, Group, LINE, Place, STRETCH};

const SIGN: i16 = i16::MIN;
const SIGN_AND_MANTISSA: i16 = 0x807f_u16.cast_signed();
/// The ternary operation that takes the first operand where the third is 0, and the second elsewhere.
const CHOOSE: i32 = 0b1101_1000;
/// The ternary operation `a & b | c`.
const AND_OR: i32 = 0b1110_1010;

/// The constants that decode a row.
#[derive(Clone, Copy)]
pub struct Row {
    /// Exponents at their place in a word, listed twice: the lookup uses five bits, and an index is the lower four.
    exponents: __m512i,
    sign: __m512i,
    kept: __m512i,
}

impl Row {
    /// # Safety
    ///
    /// The machine has AVX-512.
    #[inline(always)]
    pub unsafe fn of(head: &[u8]) -> Self {
        let head = &head[..EXPONENTS];
        // SAFETY: the caller guarantees the level; `head` has 16 bytes.
        unsafe {
            let twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(head.as_ptr().cast()));
            Self {
                exponents: _mm512_slli_epi16::<7>(_mm512_cvtepu8_epi16(twice)),
                sign: _mm512_set1_epi16(SIGN),
                kept: _mm512_set1_epi16(SIGN_AND_MANTISSA),
            }
        }
    }

    /// The numbers of a stretch in order, without the exceptions.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512, and `stretch` points to `STRETCH_BYTES`.
    #[inline(always)]
    pub unsafe fn numbers(self, stretch: *const u8) -> [__m512i; STRETCH / 32] {
        // SAFETY: the caller guarantees this.
        unsafe {
            let line = |at: usize| _mm512_loadu_si512(stretch.add(at * LINE).cast());
            let (low, high, names) = (line(0), line(1), line(2));
            [
                self.number(low, _mm512_slli_epi16::<8>(low), names),
                self.number(_mm512_srli_epi16::<8>(low), low, _mm512_srli_epi16::<4>(names)),
                self.number(high, _mm512_slli_epi16::<8>(high), _mm512_srli_epi16::<8>(names)),
                self.number(_mm512_srli_epi16::<8>(high), high, _mm512_srli_epi16::<12>(names)),
            ]
        }
    }

    /// Joins mantissas (the lower bits of `mantissas`), signs (the highest bits of `signs`) and exponents.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512.
    #[inline(always)]
    unsafe fn number(self, mantissas: __m512i, signs: __m512i, names: __m512i) -> __m512i {
        // SAFETY: the caller guarantees this.
        unsafe {
            let word = _mm512_ternarylogic_epi64::<CHOOSE>(mantissas, signs, self.sign);
            let exponent = _mm512_permutexvar_epi16(names, self.exponents);
            _mm512_ternarylogic_epi64::<AND_OR>(word, self.kept, exponent)
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn unpack<const ROWS: usize>(heads: [&[u8]; ROWS], group: &Group, first: usize, into: &mut Place) {
    // SAFETY: the machine has AVX-512; the same below.
    let rows = heads.map(|head| unsafe { Row::of(head) });
    group.each_stretch::<ROWS>(first, into, |row, stretch, into| {
        let numbers = unsafe { rows[row].numbers(stretch.as_ptr()) };
        for (numbers, into) in numbers.into_iter().zip(into.as_chunks_mut::<32>().0) {
            // SAFETY: 32 numbers are one register.
            unsafe { _mm512_storeu_si512(into.as_mut_ptr().cast(), numbers) };
        }
    });
}
