//! Each format, in the words of `Lanes`: how its numbers, scales and minima come out of a panel.
#![expect(unsafe_code, reason = "addresses within a panel")]

use super::input::Block;
use super::lanes::Lanes;

/// A format. A group (64 inputs) has some runs, each of some lines and with a scale of its own. `group` is where a group
/// begins, and `last` the last line of its stretch; what is read lies in between, and the processor has what `L` needs.
pub trait Numbers {
    const GROUPS: usize;
    const GROUP_BYTES: usize;
    const STRETCH_BYTES: usize;
    /// Runs in a group: 2 of 8 lines, or 4 of 4 lines.
    const RUNS: usize;
    /// Numbers are 128 more than meant, and up to 255.
    const WIDE: bool = false;
    /// Memory gives more where all lines of a run are asked for at once. Not where two runs share their lines.
    const HELD: bool = false;

    /// A line of run `RUN`: four numbers of each output.
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes;
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, last: *const u8) -> L::Floats;
    /// What is taken off each number after it was scaled.
    unsafe fn minimum<L: Lanes, const RUN: usize>(_: *const u8, _: *const u8) -> Option<L::Floats> {
        None
    }
    /// What makes up for numbers that are stored as more than is meant.
    fn less<const RUN: usize>(x: &Block) -> i32;
}

pub struct Q8_0;
pub struct Q4_0;
pub struct Q4K;
pub struct Q6K;

impl Numbers for Q8_0 {
    const GROUPS: usize = 1;
    const GROUP_BYTES: usize = 17 * 64;
    const STRETCH_BYTES: usize = 17 * 64;
    const RUNS: usize = 2;
    const WIDE: bool = true;
    const HELD: bool = true;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 16 lines.
        unsafe { L::bytes(group.add((RUN * 8 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, _: *const u8) -> L::Floats {
        // SAFETY: a half of the line after them.
        unsafe { L::halves(group.add(16 * 64 + RUN * 32)) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(x: &Block) -> i32 {
        x.less_128
    }
}

/// The lower halves of the bytes of a line are of block 0, the upper ones of block 1.
#[inline(always)]
unsafe fn nibbles<L: Lanes, const BLOCK: usize>(at: *const u8) -> L::Bytes {
    // SAFETY: what the caller says of the line.
    unsafe {
        let pairs = L::bytes(at);
        L::and(if BLOCK == 0 { pairs } else { L::right::<4>(pairs) }, 15)
    }
}

impl Numbers for Q4_0 {
    const GROUPS: usize = 1;
    const GROUP_BYTES: usize = 9 * 64;
    const STRETCH_BYTES: usize = 9 * 64;
    const RUNS: usize = 2;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 8 lines.
        unsafe { nibbles::<L, RUN>(group.add(line * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, _: *const u8) -> L::Floats {
        // SAFETY: a half of the line after them.
        unsafe { L::halves(group.add(8 * 64 + RUN * 32)) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(x: &Block) -> i32 {
        x.less_8
    }
}

impl Numbers for Q4K {
    const GROUPS: usize = 4;
    const GROUP_BYTES: usize = 9 * 64;
    const STRETCH_BYTES: usize = (4 * 9 + 1) * 64;
    const RUNS: usize = 2;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 8 lines.
        unsafe { nibbles::<L, RUN>(group.add(line * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, last: *const u8) -> L::Floats {
        // SAFETY: a quarter of the line after them; a half of the last line.
        unsafe { L::times(L::unsigned(group.add(8 * 64 + RUN * 16)), L::halves(last)) }
    }

    #[inline(always)]
    unsafe fn minimum<L: Lanes, const RUN: usize>(group: *const u8, last: *const u8) -> Option<L::Floats> {
        // SAFETY: as in `scale`.
        unsafe { Some(L::times(L::unsigned(group.add(8 * 64 + 32 + RUN * 16)), L::halves(last.add(32)))) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(_: &Block) -> i32 {
        0
    }
}

impl Numbers for Q6K {
    const GROUPS: usize = 4;
    const GROUP_BYTES: usize = 13 * 64;
    const STRETCH_BYTES: usize = (4 * 13 + 1) * 64;
    const RUNS: usize = 4;
    const HELD: bool = true;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 8 lines, and one of the 4 after them.
        unsafe {
            let pairs = L::bytes(group.add((RUN % 2 * 4 + line) * 64));
            let lower = L::and(if RUN < 2 { pairs } else { L::right::<4>(pairs) }, 15);
            // Two bits of each of the four runs; they belong in bits 4 and 5.
            let fours = L::bytes(group.add((8 + line) * 64));
            let upper = match RUN {
                0 => L::left::<4>(fours),
                1 => L::left::<2>(fours),
                2 => fours,
                _ => L::right::<2>(fours),
            };
            L::or(lower, L::and(upper, 0x30))
        }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, last: *const u8) -> L::Floats {
        // SAFETY: a quarter of the line after them; a half of the last line.
        unsafe { L::times(L::signed(group.add(12 * 64 + RUN * 16)), L::halves(last)) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(x: &Block) -> i32 {
        x.less_32[RUN % 2]
    }
}
