//! Some tokens times some stretches of some panels, with all sums in registers.
#![expect(unsafe_code, reason = "addresses within a panel, registers of a level")]

use super::input::{BLOCK, Block};
use super::lanes::Lanes;
use super::numbers::Numbers;
use crate::matrix::{GROUP, PANEL};

/// The sums of a panel's outputs, for each token.
pub type Sums<const TOKENS: usize> = [[f32; PANEL]; TOKENS];

/// The products of whole panels with tokens side by side. The lines of the panels are read in turn, so several panels mean
/// several memory streams, which is faster only on processors with AMX.
///
/// # Safety
/// The processor has the features of `L`. Each of `panels` points to `stretches` stretches of `N`. `blocks` points to the first
/// blocks of `TOKENS` consecutive tokens; the second blocks follow `width` blocks later, and so on to the end of the stretches.
#[inline(always)]
pub unsafe fn multiply<L: Lanes, N: Numbers, const PANELS: usize, const TOKENS: usize>(
    panels: [*const u8; PANELS],
    stretches: usize,
    mut blocks: *const Block,
    width: usize,
) -> [Sums<TOKENS>; PANELS] {
    // SAFETY: a stretch has `N::GROUPS` groups, and a group has `GROUP` inputs; the caller guarantees the rest.
    unsafe {
        let mut totals = [[L::floats([0.0; PANEL].as_ptr()); TOKENS]; PANELS];
        for stretch in 0..stretches {
            let stretch = panels.map(|panel| panel.add(stretch * N::STRETCH_BYTES));
            for group in 0..N::GROUPS {
                let group = Group::<PANELS> {
                    starts: stretch.map(|stretch| stretch.add(N::HEAD_BYTES + group * N::GROUP_BYTES)),
                    heads: stretch,
                };
                if N::RUNS == 2 {
                    run::<L, N, PANELS, TOKENS, 0>(&group, blocks, &mut totals);
                    run::<L, N, PANELS, TOKENS, 1>(&group, blocks.add(width), &mut totals);
                } else {
                    run::<L, N, PANELS, TOKENS, 0>(&group, blocks, &mut totals);
                    run::<L, N, PANELS, TOKENS, 1>(&group, blocks, &mut totals);
                    run::<L, N, PANELS, TOKENS, 2>(&group, blocks.add(width), &mut totals);
                    run::<L, N, PANELS, TOKENS, 3>(&group, blocks.add(width), &mut totals);
                }
                blocks = blocks.wrapping_add(GROUP / BLOCK * width);
            }
        }
        totals.map(|totals| {
            totals.map(|total| {
                let mut sums = [0.0; PANEL];
                L::store(total, sums.as_mut_ptr());
                sums
            })
        })
    }
}

/// The same group of each panel, with the start of its stretch.
struct Group<const PANELS: usize> {
    starts: [*const u8; PANELS],
    heads: [*const u8; PANELS],
}

/// Adds one run: inputs that share a scale.
///
/// # Safety
/// The processor has the features of `L`; in each panel, `group` points to a group of `N` and to the head of its stretch;
/// `blocks` points to a block of each of `TOKENS` tokens, with the inputs of run `RUN`.
#[inline(always)]
unsafe fn run<L: Lanes, N: Numbers, const PANELS: usize, const TOKENS: usize, const RUN: usize>(
    group: &Group<PANELS>,
    blocks: *const Block,
    totals: &mut [[L::Floats; TOKENS]; PANELS],
) {
    // SAFETY: the lines of a run are within its group, and their inputs within a block; the caller guarantees the rest.
    unsafe {
        let x = |token: usize| &*blocks.add(token);
        // The scales precede the lines in memory, and are read first.
        let scales: [L::Floats; PANELS] =
            std::array::from_fn(|panel| L::now(N::scale::<L, RUN>(group.starts[panel], group.heads[panel])));
        let mut dots: [[L::Ints; TOKENS]; PANELS] = [std::array::from_fn(|token| {
            let less = N::less::<RUN>(x(token));
            if N::WIDE { L::spread_128(less) } else { L::spread(less) }
        }); PANELS];
        let lines = 16 / N::RUNS;
        let first = if N::RUNS == 2 { 0 } else { RUN % 2 * lines };
        for line in 0..lines {
            for (start, dots) in group.starts.iter().zip(&mut dots) {
                let numbers = N::line::<L, RUN>(*start, line);
                for (token, dot) in dots.iter_mut().enumerate() {
                    let quad = x(token).numbers.as_ptr().add((first + line) * 4);
                    *dot =
                        if N::WIDE { L::dot_128(*dot, numbers, quad) } else { L::dot(*dot, numbers, quad) };
                }
            }
        }
        for panel in 0..PANELS {
            let (start, head) = (group.starts[panel], group.heads[panel]);
            for (token, total) in totals[panel].iter_mut().enumerate() {
                *total = L::add_dot(*total, dots[panel][token], scales[panel], x(token).scale);
            }
            if let Some(minimum) = N::minimum::<L, RUN>(start, head) {
                for (token, total) in totals[panel].iter_mut().enumerate() {
                    *total = L::add_times(*total, minimum, x(token).minus_sum);
                }
            }
        }
    }
}
