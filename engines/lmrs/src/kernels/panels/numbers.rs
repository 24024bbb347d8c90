//! Each format, in the words of `Lanes`: how its numbers, scales and minima come out of a panel.
#![expect(unsafe_code, reason = "addresses within a panel")]

use super::input::Block;
use super::lanes::Lanes;

/// A format. A stretch is a line that some groups share, where there is one, and the groups. A group (64 inputs) has a line of
/// scales and some runs, each of some lines. `group` is where a group begins, `head` where its stretch does; what is read lies
/// in both, and the processor has what `L` needs.
pub trait Numbers {
    /// Of the line that groups share.
    const HEAD_BYTES: usize;
    const GROUPS: usize;
    const GROUP_BYTES: usize;
    const STRETCH_BYTES: usize = Self::HEAD_BYTES + Self::GROUPS * Self::GROUP_BYTES;
    /// Runs in a group: 2 of 8 lines, or 4 of 4 lines.
    const RUNS: usize;
    /// Numbers are 128 more than meant, and up to 255.
    const WIDE: bool = false;

    /// A line of run `RUN`: four numbers of each output.
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes;
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats;
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
    const HEAD_BYTES: usize = 0;
    const GROUPS: usize = 1;
    const GROUP_BYTES: usize = 17 * 64;
    const RUNS: usize = 2;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 16 lines.
        unsafe { L::bytes(group.add((1 + RUN * 8 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, _: *const u8) -> L::Floats {
        // SAFETY: a half of the line before them.
        unsafe { L::halves(group.add(RUN * 32)) }
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
    const HEAD_BYTES: usize = 0;
    const GROUPS: usize = 1;
    const GROUP_BYTES: usize = 9 * 64;
    const RUNS: usize = 2;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 8 lines.
        unsafe { nibbles::<L, RUN>(group.add((1 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, _: *const u8) -> L::Floats {
        // SAFETY: a half of the line before them.
        unsafe { L::halves(group.add(RUN * 32)) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(x: &Block) -> i32 {
        x.less_8
    }
}

impl Numbers for Q4K {
    const HEAD_BYTES: usize = 64;
    const GROUPS: usize = 4;
    const GROUP_BYTES: usize = 9 * 64;
    const RUNS: usize = 2;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 8 lines.
        unsafe { nibbles::<L, RUN>(group.add((1 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats {
        // SAFETY: a quarter of the line before them; a half of the head.
        unsafe { L::times(L::unsigned(group.add(RUN * 16)), L::halves(head)) }
    }

    #[inline(always)]
    unsafe fn minimum<L: Lanes, const RUN: usize>(group: *const u8, head: *const u8) -> Option<L::Floats> {
        // SAFETY: as in `scale`.
        unsafe { Some(L::times(L::unsigned(group.add(32 + RUN * 16)), L::halves(head.add(32)))) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(_: &Block) -> i32 {
        0
    }
}

impl Numbers for Q6K {
    const HEAD_BYTES: usize = 64;
    const GROUPS: usize = 4;
    const GROUP_BYTES: usize = 13 * 64;
    const RUNS: usize = 4;

    #[inline(always)]
    unsafe fn line<L: Lanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: one of 8 lines, and one of the 4 after them.
        unsafe {
            let pairs = L::bytes(group.add((1 + RUN % 2 * 4 + line) * 64));
            let lower = L::and(if RUN < 2 { pairs } else { L::right::<4>(pairs) }, 15);
            // Two bits of each of the four runs; they belong in bits 4 and 5.
            let fours = L::bytes(group.add((9 + line) * 64));
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
    unsafe fn scale<L: Lanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats {
        // SAFETY: a quarter of the line before them; a half of the head.
        unsafe { L::times(L::signed(group.add(RUN * 16)), L::halves(head)) }
    }

    #[inline(always)]
    fn less<const RUN: usize>(x: &Block) -> i32 {
        x.less_32[RUN % 2]
    }
}
