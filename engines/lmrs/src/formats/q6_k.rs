//! Q6_K: six bits, with an 8-bit scale for 16 numbers, and `d` in f16 for 256. A weight is `number * (scale * d)`.
//!
//! ```text
//! for four groups (256 inputs) a line: f16 `d` for 16 outputs, 32 bytes unused. Then for each group a line of i8 scales: of run
//! 0 for 16 outputs, of run 1, 2, 3; 8 lines as in Q4_0 for the low four bits; and 4 lines for the high two bits: each byte has
//! those of run 0 in bits 0-1, of run 1 in bits 2-3, of run 2 in bits 4-5, of run 3 in bits 6-7. Numbers are stored plus 32.
//! 3,392 bytes for 4 groups: 6.625 bits a number
//! ```
#![expect(unsafe_code, reason = "addresses within a panel")]

use model_files::Dtype;

use super::Format;
use crate::kernels::panels::numbers::{
    Lines, Scales, byte_lanes, f16_at, f16_lanes, file_blocks, line, nibbles_of_group, product,
};
use crate::kernels::panels::{ActivationBlock, PanelFormat, PanelLanes};
use crate::matrix::GROUP_INPUTS;

pub static Q6_K: Format = Format::of_panels::<InQ6K>("q6_k", Dtype::Q6K, false, (2, "6defc0a7ca887236"));

pub struct InQ6K;

impl PanelFormat for InQ6K {
    const HEAD_BYTES: usize = 64;
    const GROUPS: usize = 4;
    const GROUP_BYTES: usize = 13 * 64;
    const RUNS: usize = 4;
    const FILE_SCALES: &'static [usize] = &[208];

    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
        let sections = panel.chunks_exact_mut(Self::SECTION_BYTES);
        for (block, section) in file_blocks::<210>(inputs, 256, row).iter().zip(sections) {
            let (head, groups) = section.split_at_mut(64);
            head[output * 2..][..2].copy_from_slice(&block[208..]);
            for set in 0..8 {
                // The position of this set of 32 numbers: in the panel, a half of each byte; in the file, a half of the block and
                // a quarter of that half.
                let (half, file_half, quarter) = (set % 2, set / 4, set % 4);
                let group = &mut groups[set / 2 * Self::GROUP_BYTES..][..Self::GROUP_BYTES];
                for run in 0..2 {
                    group[(half * 2 + run) * 16 + output] = block[192 + set * 2 + run];
                }
                for i in 0..32 {
                    let lower = block[file_half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
                    let upper = block[128 + file_half * 32 + i] >> (quarter * 2) & 3;
                    group[(1 + i / 4) * 64 + output * 4 + i % 4] |= lower << (4 * half);
                    group[(9 + i / 4 % 4) * 64 + output * 4 + i % 4] |= upper << (4 * half + i / 16 * 2);
                }
            }
        }
    }

    fn number(section: &[u8], output: usize, input: usize) -> i32 {
        let (group, half, quad) = (input / GROUP_INPUTS, input % GROUP_INPUTS / 32, input % 32 / 4);
        let byte = |line: usize| i32::from(section[line * 64 + output * 4 + input % 4]);
        let first = 1 + group * 13 + 1;
        let lower = byte(first + quad) >> (4 * half) & 15;
        let upper = byte(first + 8 + quad % 4) >> (4 * half + quad / 4 * 2) & 3;
        (lower | upper << 4) - 32
    }

    fn scale_and_minimum(section: &[u8], output: usize, input: usize) -> (f32, Option<f32>) {
        let scale = section[(1 + input / GROUP_INPUTS * 13) * 64 + input % GROUP_INPUTS / 16 * 16 + output]
            .cast_signed();
        (f16_at(section, output) * f32::from(scale), None)
    }

    #[inline(always)]
    unsafe fn line<L: PanelLanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: a group has 8 lines with low bits, and then 4 lines with high bits.
        unsafe {
            let bytes = L::load_bytes(group.add((1 + RUN % 2 * 4 + line) * 64));
            let lower = L::and(if RUN < 2 { bytes } else { L::shift_right::<4>(bytes) }, 15);
            // Each byte has two bits of each of the four runs. Those of `RUN` move to bits 4 and 5.
            let upper_bits = L::load_bytes(group.add((9 + line) * 64));
            let upper = match RUN {
                0 => L::shift_left::<4>(upper_bits),
                1 => L::shift_left::<2>(upper_bits),
                2 => upper_bits,
                _ => L::shift_right::<2>(upper_bits),
            };
            L::or(lower, L::and(upper, 0x30))
        }
    }

    #[inline(always)]
    unsafe fn scale<L: PanelLanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats {
        // SAFETY: it reads one quarter of the scale line and one half of the head.
        unsafe { L::multiply_floats(L::load_i8(group.add(RUN * 16)), L::load_f16(head)) }
    }

    #[inline(always)]
    fn correction<const RUN: usize>(x: &ActivationBlock) -> i32 {
        x.minus_32[RUN % 2]
    }

    #[inline(always)]
    fn widen(section: &[u8], group: usize) -> (Lines, Scales) {
        let (head, groups) = section.split_at(64);
        let (scales, numbers) = groups[group * Self::GROUP_BYTES..].split_at(64);
        let scale = |run: usize| byte_lanes(&scales[run * 16..], |byte| f32::from(byte.cast_signed()));
        let d = f16_lanes(head);
        let mut bytes = nibbles_of_group(numbers);
        for at in 0..4 {
            // Each byte has two bits of each of the four runs. Those of a run move to bits 4 and 5.
            let upper_bits = line(numbers, 8 + at).0;
            for (output, upper_bits) in upper_bits.into_iter().enumerate() {
                bytes[at].0[output] |= upper_bits << 4 & 0x3030_3030;
                bytes[at + 4].0[output] |= upper_bits << 2 & 0x3030_3030;
                bytes[at + 8].0[output] |= upper_bits & 0x3030_3030;
                bytes[at + 12].0[output] |= upper_bits >> 2 & 0x3030_3030;
            }
        }
        (bytes, Scales::stored_plus(32.0, std::array::from_fn(|run| product(d, scale(run)))))
    }
}
