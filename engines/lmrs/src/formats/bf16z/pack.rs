//! Packing of rows.

use super::{
    ASIDE, COUNT, EXPONENTS, LINE, STRETCH, STRETCH_BYTES, TOGETHER, part_bytes, parts, row_bytes, takes,
};
use crate::formats::Unfit;

/// Packs the rows of a block, with `inputs` numbers each in the file layout of bf16. Panics if a size is wrong. Fails if a row
/// has too many exceptions.
pub fn pack(inputs: usize, numbers: &[u8], mut block: &mut [u8]) -> Result<(), Unfit> {
    let rows = block.len() / row_bytes(inputs).max(1);
    let fits = numbers.len() == rows * inputs * 2 && block.len() == rows * row_bytes(inputs);
    assert!(takes(inputs) && fits, "numbers and their packed rows");
    for part in parts(inputs) {
        let (own, rest) = block.split_at_mut(rows * part_bytes(part.len()));
        block = rest;
        for (number, group) in own.chunks_mut(TOGETHER * part_bytes(part.len())).enumerate() {
            let together = group.len() / part_bytes(part.len());
            let (heads, stretches) = group.split_at_mut(together * LINE);
            for (row, head) in heads.chunks_exact_mut(LINE).enumerate() {
                let first = (number * TOGETHER + row) * inputs + part.start;
                let numbers = numbers[first * 2..][..part.len() * 2].as_chunks::<2>().0;
                let stretches = stretches.chunks_exact_mut(STRETCH_BYTES).skip(row).step_by(together);
                pack_row(numbers, head, stretches)?;
            }
        }
    }
    Ok(())
}

fn pack_row<'a>(
    numbers: &[[u8; 2]],
    head: &mut [u8],
    stretches: impl Iterator<Item = &'a mut [u8]>,
) -> Result<(), Unfit> {
    head.fill(0);
    let exponents = most_frequent(numbers);
    head[..EXPONENTS].copy_from_slice(&exponents);
    let mut names = [None; 256];
    for (name, exponent) in (0..EXPONENTS as u8).zip(exponents).rev() {
        names[usize::from(exponent)] = Some(name);
    }
    let (start, aside) = head.split_at_mut(ASIDE);
    let (mut aside, mut count) = (aside.as_chunks_mut::<4>().0.iter_mut(), 0_u16);
    for (number, (numbers, stretch)) in numbers.chunks_exact(STRETCH).zip(stretches).enumerate() {
        stretch[2 * LINE..].fill(0);
        for (at, bytes) in numbers.iter().enumerate() {
            let (set, word) = (at / 32, at % 32);
            let bits = u16::from_le_bytes(*bytes);
            stretch[set / 2 * LINE + 2 * word + set % 2] = (bits >> 8 & 0x80 | bits & 0x7f) as u8;
            let name: u8 = match names[exponent(bits)] {
                Some(name) => name,
                None => {
                    let place = ((number * STRETCH + at) as u16).to_le_bytes();
                    *aside.next().ok_or(Unfit)? = [place[0], place[1], bytes[0], bytes[1]];
                    count += 1;
                    0
                }
            };
            stretch[2 * LINE + 2 * word + set / 2] |= name << (set % 2 * 4);
        }
    }
    start[COUNT..COUNT + 2].copy_from_slice(&count.to_le_bytes());
    Ok(())
}

fn exponent(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

/// The most frequent exponents; zeros if there are fewer.
fn most_frequent(numbers: &[[u8; 2]]) -> [u8; EXPONENTS] {
    // Neighbours mostly have the same exponent: with two tables, one count does not wait for the other.
    let mut counts = [[0_u32; 256]; 2];
    for (at, bytes) in numbers.iter().enumerate() {
        counts[at % 2][exponent(u16::from_le_bytes(*bytes))] += 1;
    }
    let count = |exponent: usize| counts[0][exponent] + counts[1][exponent];
    let mut all: Vec<u8> = (0..=255).filter(|exponent| count(usize::from(*exponent)) > 0).collect();
    all.sort_by_key(|exponent| std::cmp::Reverse(count(usize::from(*exponent))));
    let mut exponents = [0; EXPONENTS];
    for (place, exponent) in exponents.iter_mut().zip(all) {
        *place = exponent;
    }
    exponents
}
