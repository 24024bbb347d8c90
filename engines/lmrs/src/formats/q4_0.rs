//! Q4_0: four bits, in blocks of 32 numbers with one f16 scale.
//!
//! ```text
//! a line with scales, as in Q8_0. Then 8 lines with the order of Q8_0: block 0 in the low half of each byte and block 1 in the
//! high half, each number stored plus 8. 576 bytes a group: 4.5 bits a number
//! ```
#![expect(unsafe_code, reason = "addresses within a panel")]

use model_files::Dtype;

use super::Format;
use crate::kernels::panels::numbers::{
    Bytes, Scales, f16_at, f16_lanes, file_blocks, half_bytes, nibbles, repeat_for_runs,
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
            for (half, [d0, d1, quants @ ..]) in blocks.iter().enumerate() {
                // A byte of the file has input i in its low half and input i + 16 in its high half. A byte of the panel has
                // block 0 in its low half and block 1 in its high half.
                for (quad, pairs) in quants.as_chunks::<4>().0.iter().enumerate() {
                    for (byte, pair) in pairs.iter().enumerate() {
                        group[(quad + 1) * 64 + output * 4 + byte] |= (pair & 15) << (4 * half);
                        group[(quad + 5) * 64 + output * 4 + byte] |= (pair >> 4) << (4 * half);
                    }
                }
                group[half * 32 + output * 2..][..2].copy_from_slice(&[*d0, *d1]);
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
        unsafe { half_bytes::<L, RUN>(group.add((1 + line) * 64)) }
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
    fn widen(section: &[u8], _: usize) -> (Bytes, Scales) {
        let (head, numbers) = section.split_at(64);
        let factors = [0, 32].map(|at| f16_lanes(&head[at..]));
        (nibbles(numbers), Scales::with_offset(8.0, repeat_for_runs(factors)))
    }
}
