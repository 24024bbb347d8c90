//! Some tokens times some stretches of some panels, with all sums in registers.
#![expect(unsafe_code, reason = "addresses within a panel, registers of a level")]

use super::input::{BLOCK, Block};
use super::lanes::Lanes;
use super::numbers::Numbers;
use crate::matrix::{GROUP, PANEL};

/// The sums of a panel's outputs, for each token.
pub type Sums<const TOKENS: usize> = [[f32; PANEL]; TOKENS];

/// The products of whole panels with tokens side by side. A line of each panel is read in turn: of several panels memory is read
/// at as many places at once, which is worth it where AMX is and nowhere else.
///
/// # Safety
/// The processor has what `L` needs. At each of `panels` there are `stretches` stretches of `N`. At `blocks` there is the
/// first block of the first token, then that of the next, of `TOKENS`; the second block of each comes `width` later, and so
/// on to the end of the stretches.
#[inline(always)]
pub unsafe fn multiply<L: Lanes, N: Numbers, const PANELS: usize, const TOKENS: usize>(
    panels: [*const u8; PANELS],
    stretches: usize,
    mut blocks: *const Block,
    width: usize,
) -> [Sums<TOKENS>; PANELS] {
    // SAFETY: a stretch has `N::GROUPS` groups, and a group as many blocks of inputs as `GROUP` says; all else is promised.
    unsafe {
        let mut totals = [[L::floats([0.0; PANEL].as_ptr()); TOKENS]; PANELS];
        for stretch in 0..stretches {
            let stretch = panels.map(|panel| panel.add(stretch * N::STRETCH_BYTES));
            for group in 0..N::GROUPS {
                let group = Group::<PANELS> {
                    starts: stretch.map(|stretch| stretch.add(group * N::GROUP_BYTES)),
                    lasts: stretch.map(|stretch| stretch.add(N::STRETCH_BYTES - 64)),
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

/// The same group of each panel, and the last line of its stretch.
struct Group<const PANELS: usize> {
    starts: [*const u8; PANELS],
    lasts: [*const u8; PANELS],
}

/// Inputs that share a scale.
///
/// # Safety
/// The processor has what `L` needs; `group` leads to a group of `N` and to the last line of its stretch, in each panel; at
/// `blocks` there is a block of each of `TOKENS` tokens, with the inputs of run `RUN`.
#[inline(always)]
unsafe fn run<L: Lanes, N: Numbers, const PANELS: usize, const TOKENS: usize, const RUN: usize>(
    group: &Group<PANELS>,
    blocks: *const Block,
    totals: &mut [[L::Floats; TOKENS]; PANELS],
) {
    // SAFETY: the lines of a run lie within its group, and their inputs within a block; all else is promised.
    unsafe {
        let x = |token: usize| &*blocks.add(token);
        let mut dots: [[L::Ints; TOKENS]; PANELS] = [std::array::from_fn(|token| {
            let less = N::less::<RUN>(x(token));
            if N::WIDE { L::spread_128(less) } else { L::spread(less) }
        }); PANELS];
        let lines = 16 / N::RUNS;
        let first = if N::RUNS == 2 { 0 } else { RUN % 2 * lines };
        if L::HOLDS && N::HELD && PANELS * TOKENS == 1 {
            let (start, quads) = (group.starts[0], x(0).numbers.as_ptr().add(first * 4));
            let dot = &mut dots[0][0];
            match lines {
                8 => *dot = alone::<L, N, RUN, 8>(start, quads, *dot),
                _ => *dot = alone::<L, N, RUN, 4>(start, quads, *dot),
            }
        } else {
            for line in 0..lines {
                for (start, dots) in group.starts.iter().zip(&mut dots) {
                    let numbers = N::line::<L, RUN>(*start, line);
                    for (token, dot) in dots.iter_mut().enumerate() {
                        let quad = x(token).numbers.as_ptr().add((first + line) * 4);
                        *dot = dot_of::<L, N>(*dot, numbers, quad);
                    }
                }
            }
        }
        for panel in 0..PANELS {
            let (start, last) = (group.starts[panel], group.lasts[panel]);
            let scale = N::scale::<L, RUN>(start, last);
            for (token, total) in totals[panel].iter_mut().enumerate() {
                *total = L::add_dot(*total, dots[panel][token], scale, x(token).scale);
            }
            if let Some(minimum) = N::minimum::<L, RUN>(start, last) {
                for (token, total) in totals[panel].iter_mut().enumerate() {
                    *total = L::add_times(*total, minimum, x(token).minus_sum);
                }
            }
        }
    }
}

/// A run of one panel and one token. Its lines are all asked for before the first is multiplied: memory gives more so, because
/// less of what comes later is asked for in between.
///
/// # Safety
/// As of `run`, with so many lines at `start`, and as many fours at `quads`.
#[inline(always)]
unsafe fn alone<L: Lanes, N: Numbers, const RUN: usize, const LINES: usize>(
    start: *const u8,
    quads: *const i8,
    mut dot: L::Ints,
) -> L::Ints {
    // SAFETY: the caller's promise.
    unsafe {
        let lines: [L::Bytes; LINES] = std::array::from_fn(|line| L::hold(N::line::<L, RUN>(start, line)));
        for (line, numbers) in lines.into_iter().enumerate() {
            dot = dot_of::<L, N>(dot, numbers, quads.add(line * 4));
        }
        dot
    }
}

/// # Safety
/// As of `Lanes::dot`.
#[inline(always)]
unsafe fn dot_of<L: Lanes, N: Numbers>(sums: L::Ints, numbers: L::Bytes, quad: *const i8) -> L::Ints {
    // SAFETY: the caller's promise.
    unsafe { if N::WIDE { L::dot_128(sums, numbers, quad) } else { L::dot(sums, numbers, quad) } }
}
