//! Some tokens times some stretches of a panel, with all sums in registers.
#![expect(unsafe_code, reason = "addresses within a panel, registers of a level")]

use super::input::{BLOCK, Block};
use super::lanes::Lanes;
use super::numbers::Numbers;
use crate::matrix::{GROUP, PANEL};

/// Adds to `sums`, `[tokens][16]`, for up to `L::TOKENS` tokens at a time.
///
/// # Safety
/// The processor has what `L` needs. At `weights` there are `stretches` stretches of `N`. `blocks[0]` is the first block of
/// the first token that these weights are to be multiplied with: the blocks of `tokens` tokens follow one another there, the
/// next block of the first token comes after `width` of them, and the last is there.
#[inline(always)]
pub unsafe fn multiply<L: Lanes, N: Numbers>(
    weights: *const u8,
    stretches: usize,
    blocks: *const Block,
    width: usize,
    sums: &mut [[f32; PANEL]],
) {
    let mut done = 0;
    while done < sums.len() {
        let (blocks, sums) = (blocks.wrapping_add(done), &mut sums[done..]);
        macro_rules! tokens {
            ($($count:literal)*) => {
                $(if L::TOKENS >= $count && sums.len() >= $count {
                    if let Some(sums) = sums.first_chunk_mut::<$count>() {
                        // SAFETY: the caller's promises, of some of its tokens.
                        unsafe { tile::<L, N, $count>(weights, stretches, blocks, width, sums) };
                    }
                    done += $count;
                } else)* {
                    break;
                }
            };
        }
        tokens!(12 8 6 4 3 2 1);
    }
}

#[inline(always)]
unsafe fn tile<L: Lanes, N: Numbers, const TOKENS: usize>(
    weights: *const u8,
    stretches: usize,
    mut blocks: *const Block,
    width: usize,
    sums: &mut [[f32; PANEL]; TOKENS],
) {
    // SAFETY: a stretch has `N::GROUPS` groups, and a group as many blocks of inputs as `GROUP` says; all else is promised.
    unsafe {
        let mut totals: [L::Floats; TOKENS] = std::array::from_fn(|token| L::floats(sums[token].as_ptr()));
        for stretch in 0..stretches {
            let stretch = weights.add(stretch * N::STRETCH_BYTES);
            let last = stretch.add(N::STRETCH_BYTES - 64);
            for group in 0..N::GROUPS {
                let group = stretch.add(group * N::GROUP_BYTES);
                if N::RUNS == 2 {
                    run::<L, N, TOKENS, 0>(group, last, blocks, &mut totals);
                    run::<L, N, TOKENS, 1>(group, last, blocks.add(width), &mut totals);
                } else {
                    run::<L, N, TOKENS, 0>(group, last, blocks, &mut totals);
                    run::<L, N, TOKENS, 1>(group, last, blocks, &mut totals);
                    run::<L, N, TOKENS, 2>(group, last, blocks.add(width), &mut totals);
                    run::<L, N, TOKENS, 3>(group, last, blocks.add(width), &mut totals);
                }
                blocks = blocks.wrapping_add(GROUP / BLOCK * width);
            }
        }
        for (total, sums) in totals.into_iter().zip(sums) {
            L::store(total, sums.as_mut_ptr());
        }
    }
}

/// Inputs that share a scale.
#[inline(always)]
unsafe fn run<L: Lanes, N: Numbers, const TOKENS: usize, const RUN: usize>(
    group: *const u8,
    last: *const u8,
    blocks: *const Block,
    totals: &mut [L::Floats; TOKENS],
) {
    // SAFETY: `blocks` leads to a block of each token; the lines are those of one run.
    unsafe {
        let x = |token: usize| &*blocks.add(token);
        let mut dots: [L::Ints; TOKENS] = std::array::from_fn(|token| {
            let less = N::less::<RUN>(x(token));
            if N::WIDE { L::spread_128(less) } else { L::spread(less) }
        });
        let lines = 16 / N::RUNS;
        let first = if N::RUNS == 2 { 0 } else { RUN % 2 * lines };
        for line in 0..lines {
            let numbers = N::line::<L, RUN>(group, line);
            for (token, dot) in dots.iter_mut().enumerate() {
                let quad = x(token).numbers.as_ptr().add((first + line) * 4);
                *dot = if N::WIDE { L::dot_128(*dot, numbers, quad) } else { L::dot(*dot, numbers, quad) };
            }
        }
        let scale = N::scale::<L, RUN>(group, last);
        for token in 0..TOKENS {
            totals[token] = L::add_dot(totals[token], dots[token], scale, x(token).scale);
        }
        if let Some(minimum) = N::minimum::<L, RUN>(group, last) {
            for (token, total) in totals.iter_mut().enumerate() {
                *total = L::add_times(*total, minimum, x(token).minus_sum);
            }
        }
    }
}
