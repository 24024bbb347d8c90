//! Products of bf16 pairs in 512-bit registers: two inputs a step, summed in f32.
#![expect(unsafe_code, reason = "instructions of a level")]
#![expect(clippy::needless_range_loop, reason = "indices of several arrays at once, as in the formula")]

use std::arch::x86_64::*;

use super::{TileProduct, TileUnit, U32Square};
use crate::kernels::rows::activations::{GROUP_TOKENS, U32Line};

/// A tile of eight outputs and three groups of tokens, with one register of sums for each.
pub struct PairUnit;

impl TileUnit for PairUnit {
    const OUTPUTS: usize = 8;
    const GROUPS: usize = 3;
    const STEPS: usize = 128;

    #[inline(always)]
    unsafe fn add(part: &TileProduct) {
        // SAFETY: the caller guarantees this; the same below.
        unsafe {
            match part.groups {
                1 => add::<8, 1>(part),
                2 => add::<8, 2>(part),
                _ => add::<8, 3>(part),
            }
        }
    }

    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> U32Line {
        assert_eq!(numbers.len(), 32);
        // SAFETY: as above; the numbers fill two registers.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(numbers.as_ptr()), _mm512_loadu_ps(numbers.as_ptr().add(16)));
            std::mem::transmute::<__m512bh, U32Line>(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], factors: [f32; 2], addends: [f32; 2]) -> U32Line {
        // SAFETY: as above; each half is 16 bytes.
        unsafe {
            let half = |at: usize| {
                let bytes = _mm_loadu_si128(numbers.as_ptr().add(16 * at).cast());
                let floats = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
                _mm512_fmadd_ps(floats, _mm512_set1_ps(factors[at]), _mm512_set1_ps(addends[at]))
            };
            std::mem::transmute::<__m512bh, U32Line>(_mm512_cvtne2ps_pbh(half(1), half(0)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(block: &mut U32Square) {
        // SAFETY: as above.
        unsafe { transpose(block) }
    }
}

/// # Safety
///
/// The machine has AVX-512 with bf16 products; the memory of `part` is valid for these outputs and groups.
#[inline(always)]
unsafe fn add<const OUTPUTS: usize, const GROUPS: usize>(part: &TileProduct) {
    // SAFETY: the caller guarantees this: every address is within these outputs, groups and steps. A register is 512 bits, and
    // any bits are bf16 pairs.
    unsafe {
        let pairs = |register: __m512i| std::mem::transmute::<__m512i, __m512bh>(register);
        let mut lines = [part.lines; GROUPS];
        let mut weights = [part.weights; OUTPUTS];
        let mut sums = [[_mm512_setzero_ps(); GROUPS]; OUTPUTS];
        for group in 0..GROUPS {
            lines[group] = part.lines.add(group * part.lines_stride);
        }
        for output in 0..OUTPUTS {
            weights[output] = part.weights.add(output * part.weights_stride);
            for group in 0..GROUPS {
                sums[output][group] =
                    _mm512_loadu_ps(part.sums.add(output * part.sums_stride + group * GROUP_TOKENS));
            }
        }
        for step in 0..part.steps {
            let mut numbers = [_mm512_setzero_si512(); GROUPS];
            for group in 0..GROUPS {
                numbers[group] = _mm512_loadu_si512(lines[group].add(step).cast());
            }
            for output in 0..OUTPUTS {
                let weight = pairs(_mm512_set1_epi32((*weights[output].add(step)).cast_signed()));
                for group in 0..GROUPS {
                    sums[output][group] =
                        _mm512_dpbf16_ps(sums[output][group], weight, pairs(numbers[group]));
                }
            }
        }
        for output in 0..OUTPUTS {
            for group in 0..GROUPS {
                _mm512_storeu_ps(
                    part.sums.add(output * part.sums_stride + group * GROUP_TOKENS),
                    sums[output][group],
                );
            }
        }
    }
}

/// Transposes in four rounds. Each round joins elements twice as far apart: 32, 64, 128 and 256 bits.
///
/// # Safety
///
/// The machine has AVX-512.
#[inline(always)]
pub unsafe fn transpose(block: &mut U32Square) {
    let lines = block.as_mut_ptr().cast::<f32>();
    // SAFETY: a block is exactly 16 registers; the caller guarantees the level.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); 16];
        for (index, row) in rows.iter_mut().enumerate() {
            *row = _mm512_load_ps(lines.add(16 * index));
        }
        let mut pairs = rows;
        for at in 0..8 {
            pairs[2 * at] = _mm512_unpacklo_ps(rows[2 * at], rows[2 * at + 1]);
            pairs[2 * at + 1] = _mm512_unpackhi_ps(rows[2 * at], rows[2 * at + 1]);
        }
        // Columns 0, 4, 8, 12 of the rows 4i to 4i + 3; then 1, 5, 9, 13; and so on.
        let mut fours = rows;
        for at in 0..4 {
            for half in 0..2 {
                let (a, b) = (pairs[4 * at + half], pairs[4 * at + 2 + half]);
                let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
                fours[4 * at + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[4 * at + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        for column in 0..4 {
            let four = |at: usize| fours[4 * at + column];
            // Columns `column` and `column + 8`, then `column + 4` and `column + 12`, of the upper and of the lower rows.
            let even = (
                _mm512_shuffle_f32x4::<0x88>(four(0), four(1)),
                _mm512_shuffle_f32x4::<0x88>(four(2), four(3)),
            );
            let odd = (
                _mm512_shuffle_f32x4::<0xdd>(four(0), four(1)),
                _mm512_shuffle_f32x4::<0xdd>(four(2), four(3)),
            );
            let store = |at: usize, row| _mm512_store_ps(lines.add(16 * (column + at)), row);
            store(0, _mm512_shuffle_f32x4::<0x88>(even.0, even.1));
            store(8, _mm512_shuffle_f32x4::<0xdd>(even.0, even.1));
            store(4, _mm512_shuffle_f32x4::<0x88>(odd.0, odd.1));
            store(12, _mm512_shuffle_f32x4::<0xdd>(odd.0, odd.1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{GROUP_TOKENS, TileInput, has_pairs, pack};
    use crate::kernels::Level;
    use crate::kernels::test_rng::TestRng;

    /// The shapes have one token and one input, odd numbers of them, or whole groups.
    #[test]
    fn every_pair_is_at_the_position_that_tiles_read_and_padding_is_zero() {
        let mut rng = TestRng::new(31);
        for level in Level::available().into_iter().filter(|level| has_pairs(*level)) {
            for (tokens, inputs) in [(1, 1), (16, 32), (17, 33), (40, 131), (3, 512)] {
                let x = rng.rows(tokens, inputs);
                let mut packed = TileInput::default();
                packed.reshape(tokens, inputs);
                for (group, lines) in packed.groups_mut().into_iter().enumerate() {
                    pack(level, &x, group * GROUP_TOKENS, lines.into_inner().unwrap());
                }
                for group in 0..packed.groups() {
                    for (step, line) in packed.lines(group..group + 1).iter().enumerate() {
                        for (column, pair) in line.0.iter().enumerate() {
                            let token = group * GROUP_TOKENS + column;
                            let half = |input: usize| match token < tokens && input < inputs {
                                true => u32::from(half::bf16::from_f32(x.row(token)[input]).to_bits()),
                                false => 0,
                            };
                            let expected = half(2 * step) | half(2 * step + 1) << 16;
                            assert_eq!(*pair, expected, "{level} {tokens} x {inputs}: {token}, {step}");
                        }
                    }
                }
            }
        }
    }
}
