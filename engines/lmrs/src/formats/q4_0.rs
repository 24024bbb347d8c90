//! Q4_0: four bits, in blocks of 32 numbers with one f16 scale.
//!
//! ```text
//! for each group, a line of scales as in Q8_0. Then 8 lines: the low half of each byte has a number of block 0, in the order of
//! Q8_0, and the high half a number of block 1, each stored plus 8. 576 bytes a group: 4.5 bits a number
//! ```
#![expect(unsafe_code, reason = "addresses within a panel")]

use model_files::Dtype;

use super::Format;
use crate::kernels::panels::numbers::{
    Lines, Scales, f16_at, f16_lanes, file_blocks, nibbles_of_group, nibbles_of_run, repeat_for_runs,
};
use crate::kernels::panels::{ActivationBlock, PanelFormat, PanelLanes};
use crate::matrix::GROUP_INPUTS;

pub static Q4_0: Format = Format::of_panels::<InQ4_0>("q4_0", Dtype::Q4_0, true, (2, "c13b0a425b798803"));

pub struct InQ4_0;

impl PanelFormat for InQ4_0 {
    const HEAD_BYTES: usize = 0;
    const GROUPS: usize = 1;
    const GROUP_BYTES: usize = 9 * 64;
    const RUNS: usize = 2;

    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
        let groups = panel.chunks_exact_mut(Self::GROUP_BYTES);
        for (blocks, group) in file_blocks::<18>(inputs, 32, row).chunks(2).zip(groups) {
            for (block, [d0, d1, quants @ ..]) in blocks.iter().enumerate() {
                // A byte of the file has input i in its low half and input i + 16 in its high half. A byte of the panel has
                // block 0 in its low half and block 1 in its high half.
                for (quad, bytes) in quants.as_chunks::<4>().0.iter().enumerate() {
                    for (at, byte) in bytes.iter().enumerate() {
                        group[(quad + 1) * 64 + output * 4 + at] |= (byte & 15) << (4 * block);
                        group[(quad + 5) * 64 + output * 4 + at] |= (byte >> 4) << (4 * block);
                    }
                }
                group[block * 32 + output * 2..][..2].copy_from_slice(&[*d0, *d1]);
            }
        }
    }

    fn number(section: &[u8], output: usize, input: usize) -> i32 {
        let (block, quad) = (input % GROUP_INPUTS / 32, input % 32 / 4);
        i32::from(section[(1 + quad) * 64 + output * 4 + input % 4] >> (4 * block) & 15) - 8
    }

    fn scale_and_minimum(section: &[u8], output: usize, input: usize) -> (f32, Option<f32>) {
        (f16_at(section, input % GROUP_INPUTS / 32 * 16 + output), None)
    }

    #[inline(always)]
    unsafe fn line<L: PanelLanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: a group has 8 lines of numbers.
        unsafe { nibbles_of_run::<L, RUN>(group.add((1 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: PanelLanes, const RUN: usize>(group: *const u8, _: *const u8) -> L::Floats {
        // SAFETY: it reads one half of the scale line.
        unsafe { L::load_f16(group.add(RUN * 32)) }
    }

    #[inline(always)]
    fn correction<const RUN: usize>(x: &ActivationBlock) -> i32 {
        x.minus_8
    }

    #[inline(always)]
    fn widen(section: &[u8], _: usize) -> (Lines, Scales) {
        let (scales, numbers) = section.split_at(64);
        let factors = [0, 32].map(|at| f16_lanes(&scales[at..]));
        (nibbles_of_group(numbers), Scales::stored_plus(8.0, repeat_for_runs(factors)))
    }
}
