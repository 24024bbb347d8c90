//! Packs activations into pairs with tokens side by side, 16 steps of 16 tokens at a time.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::super::packed::{Line, PAIR, TOKENS};
use super::tile::Tile;
use crate::matrix::Rows;

/// 16 steps of 16 tokens, in either orientation.
pub type Block = [Line; TOKENS];

/// Packs the tokens from `first` on into one group.
///
/// # Safety
///
/// The machine has the level of `T`.
#[inline(always)]
pub unsafe fn pack<T: Tile>(x: &Rows, first: usize, lines: &mut [Line]) {
    let each = TOKENS * PAIR;
    let tokens = TOKENS.min(x.tokens() - first);
    let (blocks, _) = lines.as_chunks_mut::<TOKENS>();
    for (at, block) in blocks.iter_mut().enumerate() {
        let inputs = (at * each).min(x.width)..((at + 1) * each).min(x.width);
        for (place, into) in block.iter_mut().enumerate() {
            *into = match (place < tokens, inputs.len() == each) {
                // SAFETY: the caller guarantees this.
                (true, true) => unsafe { T::line(&x.row(first + place)[inputs.clone()]) },
                (true, false) => line(&x.row(first + place)[inputs.clone()]),
                (false, _) => Line([0; TOKENS]),
            };
        }
        // SAFETY: the caller guarantees this.
        unsafe { T::transpose(block) };
    }
}

/// The pairs of up to 16 steps of one token; missing steps are zero.
pub fn line(numbers: &[f32]) -> Line {
    let mut line = Line([0; TOKENS]);
    for (pair, numbers) in line.0.iter_mut().zip(numbers.chunks(PAIR)) {
        let half = |at: usize| numbers.get(at).map_or(0, |number| u32::from(bf16_from_f32(*number)));
        *pair = half(0) | half(1) << 16;
    }
    line
}

pub fn transpose(block: &mut Block) {
    let from = *block;
    for (row, line) in block.iter_mut().enumerate() {
        for (column, number) in line.0.iter_mut().enumerate() {
            *number = from[column].0[row];
        }
    }
}

/// Rounds to the nearest bf16, ties to even. A NaN stays a NaN.
pub fn bf16_from_f32(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use model_files::{Dtype, blocks};

    use super::bf16_from_f32;
    use crate::kernels::chance::Chance;

    #[test]
    fn numbers_are_rounded_to_bf16_as_the_format_says() {
        for number in &Chance::new(7).numbers(10_000) {
            let mut expected = [0; 2];
            blocks::narrow(Dtype::BF16, &[*number], &mut expected).unwrap();
            assert_eq!(bf16_from_f32(*number), u16::from_le_bytes(expected));
        }
        assert_eq!(bf16_from_f32(f32::INFINITY), 0x7f80);
        assert!(f32::from_bits(u32::from(bf16_from_f32(f32::NAN)) << 16).is_nan());
    }
}
