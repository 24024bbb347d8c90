//! Products of bf16 pairs in 512-bit registers: two inputs a step, summed in f32.
#![expect(unsafe_code, reason = "SIMD instructions")]
#![expect(clippy::needless_range_loop, reason = "indices of several arrays at once, as in the formula")]

use std::arch::x86_64::*;

use super::{TileProduct, TileUnit, U32Square};
use crate::kernels::rows::activations::{GROUP_TOKENS, U32Line};

/// A tile of eight outputs and three groups of tokens. Each output has one register of sums for each group.
pub struct PairUnit;

impl TileUnit for PairUnit {
    const OUTPUTS: usize = 8;
    const GROUPS: usize = 3;
    const STEPS: usize = 128;

    #[inline(always)]
    unsafe fn add(part: &TileProduct) {
        // SAFETY: the caller guarantees AVX-512 with bf16 products, and the memory of `part`.
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
        // SAFETY: the level is as above; the numbers fill two registers.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(numbers.as_ptr()), _mm512_loadu_ps(numbers.as_ptr().add(16)));
            std::mem::transmute::<__m512bh, U32Line>(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], factors: [f32; 2], addends: [f32; 2]) -> U32Line {
        // SAFETY: the level is as above; each half is 16 bytes.
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
        // SAFETY: the level is as above.
        unsafe { transpose(block) }
    }
}

/// # Safety
///
/// The machine has AVX-512 with bf16 products; the memory of `part` is valid for `OUTPUTS` outputs and `GROUPS` groups.
#[inline(always)]
unsafe fn add<const OUTPUTS: usize, const GROUPS: usize>(part: &TileProduct) {
    // SAFETY: every address is within the outputs, groups and steps of `part`, which the caller guarantees. Any 512 bits are
    // bf16 pairs.
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

/// Transposes 16 x 16 elements of 32 bits: two stages move them within each 128 bits, and two stages move whole 128 bits.
///
/// # Safety
///
/// The machine has AVX-512.
#[inline(always)]
pub unsafe fn transpose(block: &mut U32Square) {
    let lines = block.as_mut_ptr().cast::<f32>();
    // SAFETY: a block is exactly 16 registers; the caller guarantees AVX-512.
    unsafe {
        let mut rows = [_mm512_setzero_ps(); 16];
        for (index, row) in rows.iter_mut().enumerate() {
            *row = _mm512_load_ps(lines.add(16 * index));
        }
        let mut two_rows = rows;
        for at in 0..8 {
            two_rows[2 * at] = _mm512_unpacklo_ps(rows[2 * at], rows[2 * at + 1]);
            two_rows[2 * at + 1] = _mm512_unpackhi_ps(rows[2 * at], rows[2 * at + 1]);
        }
        // Register 4i + c has the columns c, c + 4, c + 8 and c + 12 of the rows 4i to 4i + 3.
        let mut four_rows = rows;
        for at in 0..4 {
            for half in 0..2 {
                let (a, b) = (two_rows[4 * at + half], two_rows[4 * at + 2 + half]);
                let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
                four_rows[4 * at + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                four_rows[4 * at + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        for column in 0..4 {
            let four = |at: usize| four_rows[4 * at + column];
            // `even` has the columns `column` and `column + 8`, `odd` has `column + 4` and `column + 12`. `.0` is of rows 0 to
            // 7, and `.1` of rows 8 to 15.
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

    /// Some shapes fill groups of tokens and pairs of inputs, others do not.
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
                            let bits = |input: usize| match token < tokens && input < inputs {
                                true => u32::from(half::bf16::from_f32(x.row(token)[input]).to_bits()),
                                false => 0,
                            };
                            let expected = bits(2 * step) | bits(2 * step + 1) << 16;
                            assert_eq!(*pair, expected, "{level} {tokens} x {inputs}: {token}, {step}");
                        }
                    }
                }
            }
        }
    }
}
