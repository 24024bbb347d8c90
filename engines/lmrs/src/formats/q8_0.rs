//! Q8_0: eight bits, in blocks of 32 numbers with one f16 scale.
//!
//! ```text
//! for each group (blocks 0 and 1), a line of f16 scales: of block 0 for 16 outputs, of block 1 for 16 outputs. Then 16 lines:
//! line j has inputs 4j .. 4j+4 of output 0, of output 1, ... 15; as u8, stored plus 128. 1,088 bytes a group: 8.5 bits a number
//! ```
#![expect(unsafe_code, reason = "addresses within a panel")]

use model_files::Dtype;

use super::Format;
use crate::kernels::panels::numbers::{Lines, Scales, f16_at, f16_lanes, file_blocks, line, repeat_for_runs};
use crate::kernels::panels::{ActivationBlock, PanelFormat, PanelLanes};
use crate::matrix::GROUP_INPUTS;

pub static Q8_0: Format = Format::of_panels::<InQ8_0>("q8_0", Dtype::Q8_0, true, (2, "783b6dad9ac53090"));

pub struct InQ8_0;

impl PanelFormat for InQ8_0 {
    const HEAD_BYTES: usize = 0;
    const GROUPS: usize = 1;
    const GROUP_BYTES: usize = 17 * 64;
    const RUNS: usize = 2;
    const STORED_PLUS_128: bool = true;

    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
        let groups = panel.chunks_exact_mut(Self::GROUP_BYTES);
        for (blocks, group) in file_blocks::<34>(inputs, 32, row).chunks(2).zip(groups) {
            for (block, [d0, d1, quants @ ..]) in blocks.iter().enumerate() {
                let lines = group[(1 + block * 8) * 64..].chunks_exact_mut(64);
                for (quad, line) in quants.as_chunks::<4>().0.iter().zip(lines) {
                    line[output * 4..][..4].copy_from_slice(&quad.map(|quant| quant ^ 0x80));
                }
                group[block * 32 + output * 2..][..2].copy_from_slice(&[*d0, *d1]);
            }
        }
    }

    fn number(section: &[u8], output: usize, input: usize) -> i32 {
        let line = 1 + input % GROUP_INPUTS / 4;
        i32::from(section[line * 64 + output * 4 + input % 4]) - 128
    }

    fn scale_and_minimum(section: &[u8], output: usize, input: usize) -> (f32, Option<f32>) {
        (f16_at(section, input % GROUP_INPUTS / 32 * 16 + output), None)
    }

    #[inline(always)]
    unsafe fn line<L: PanelLanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: a group has 16 lines of numbers.
        unsafe { L::load_bytes(group.add((1 + RUN * 8 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: PanelLanes, const RUN: usize>(group: *const u8, _: *const u8) -> L::Floats {
        // SAFETY: it reads one half of the scale line.
        unsafe { L::load_f16(group.add(RUN * 32)) }
    }

    #[inline(always)]
    fn correction<const RUN: usize>(x: &ActivationBlock) -> i32 {
        x.minus_128
    }

    #[inline(always)]
    fn widen(section: &[u8], _: usize) -> (Lines, Scales) {
        let (scales, numbers) = section.split_at(64);
        let factors = [0, 32].map(|at| f16_lanes(&scales[at..]));
        (std::array::from_fn(|at| line(numbers, at)), Scales::stored_plus(128.0, repeat_for_runs(factors)))
    }
}
