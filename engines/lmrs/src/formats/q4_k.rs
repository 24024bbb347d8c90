//! Q4_K: four bits, with a 6-bit scale and minimum for 32 numbers, and `d` and `dmin` in f16 for 256. A weight is
//! `number * (scale * d) - minimum * dmin`.
//!
//! ```text
//! for four groups (256 inputs) a line of f16: `d` for 16 outputs, `dmin` for 16 outputs. Then for each group a line of u8:
//! scales of run 0 for 16 outputs, of run 1, minima of run 0, of run 1; and 8 lines as in Q4_0, run 0 in the low halves and
//! run 1 in the high halves, but stored without an offset. 2,368 bytes for 4 groups: 4.625 bits a number
//! ```
#![expect(unsafe_code, reason = "addresses within a panel")]

use model_files::Dtype;

use super::Format;
use crate::kernels::panels::numbers::{
    Lines, Scales, byte_lanes, f16_at, f16_lanes, file_blocks, nibbles_of_group, nibbles_of_run, product,
    repeat_for_runs,
};
use crate::kernels::panels::{ActivationBlock, PanelFormat, PanelLanes};
use crate::matrix::GROUP_INPUTS;

pub static Q4_K: Format = Format::of_panels::<InQ4K>("q4_k", Dtype::Q4K, false, (2, "63e5f25fe0982ebe"));

pub struct InQ4K;

impl PanelFormat for InQ4K {
    const HEAD_BYTES: usize = 64;
    const GROUPS: usize = 4;
    const GROUP_BYTES: usize = 9 * 64;
    const RUNS: usize = 2;
    const FILE_SCALES: &'static [usize] = &[0, 2];

    fn pack(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
        let sections = panel.chunks_exact_mut(Self::SECTION_BYTES);
        for (block, section) in file_blocks::<144>(inputs, 256, row).iter().zip(sections) {
            let (head, groups) = section.split_at_mut(64);
            head[output * 2..][..2].copy_from_slice(&block[..2]);
            head[32 + output * 2..][..2].copy_from_slice(&block[2..4]);
            for (index, group) in groups.chunks_exact_mut(Self::GROUP_BYTES).enumerate() {
                for run in 0..2 {
                    let (scale, minimum) = stored_scale_and_minimum(&block[4..16], index * 2 + run);
                    group[run * 16 + output] = scale;
                    group[32 + run * 16 + output] = minimum;
                }
                // As in the panel, bytes of the file have one run in their low halves and the next run in their high halves.
                let lines = group[64..].chunks_exact_mut(64);
                for (quad, line) in block[16 + index * 32..][..32].as_chunks::<4>().0.iter().zip(lines) {
                    line[output * 4..][..4].copy_from_slice(quad);
                }
            }
        }
    }

    fn number(section: &[u8], output: usize, input: usize) -> i32 {
        let (group, run, quad) = (input / GROUP_INPUTS, input % GROUP_INPUTS / 32, input % 32 / 4);
        let line = 1 + group * 9 + 1 + quad;
        i32::from(section[line * 64 + output * 4 + input % 4] >> (4 * run) & 15)
    }

    fn scale_and_minimum(section: &[u8], output: usize, input: usize) -> (f32, Option<f32>) {
        let (group, run) = (input / GROUP_INPUTS, input % GROUP_INPUTS / 32);
        let line = &section[(1 + group * 9) * 64..];
        let scale = f16_at(section, output) * f32::from(line[run * 16 + output]);
        (scale, Some(f16_at(section, 16 + output) * f32::from(line[32 + run * 16 + output])))
    }

    #[inline(always)]
    unsafe fn line<L: PanelLanes, const RUN: usize>(group: *const u8, line: usize) -> L::Bytes {
        // SAFETY: a group has 8 lines of numbers.
        unsafe { nibbles_of_run::<L, RUN>(group.add((1 + line) * 64)) }
    }

    #[inline(always)]
    unsafe fn scale<L: PanelLanes, const RUN: usize>(group: *const u8, head: *const u8) -> L::Floats {
        // SAFETY: it reads one quarter of the scale line and one half of the head.
        unsafe { L::multiply_floats(L::load_u8(group.add(RUN * 16)), L::load_f16(head)) }
    }

    #[inline(always)]
    unsafe fn minimum<L: PanelLanes, const RUN: usize>(
        group: *const u8,
        head: *const u8,
    ) -> Option<L::Floats> {
        // SAFETY: as in `scale`.
        unsafe { Some(L::multiply_floats(L::load_u8(group.add(32 + RUN * 16)), L::load_f16(head.add(32)))) }
    }

    #[inline(always)]
    fn correction<const RUN: usize>(_: &ActivationBlock) -> i32 {
        0
    }

    #[inline(always)]
    fn widen(section: &[u8], group: usize) -> (Lines, Scales) {
        let (head, groups) = section.split_at(64);
        let (scales, numbers) = groups[group * Self::GROUP_BYTES..].split_at(64);
        let (d, dmin) = (f16_lanes(head), f16_lanes(&head[32..]));
        let factors = [0, 16].map(|at| product(d, byte_lanes(&scales[at..], f32::from)));
        let addends = [32, 48].map(|at| product(dmin, byte_lanes(&scales[at..], |byte| -f32::from(byte))));
        let scales = Scales { factors: repeat_for_runs(factors), addends: repeat_for_runs(addends) };
        (nibbles_of_group(numbers), scales)
    }
}

/// The scale and the minimum of a run, from 0 to 7, of a file's block. Twelve bytes hold eight scales and eight minima of six
/// bits. The upper two bits of the first eight bytes belong to the scales and minima of the last four runs.
fn stored_scale_and_minimum(packed: &[u8], run: usize) -> (u8, u8) {
    match run.checked_sub(4) {
        None => (packed[run] & 63, packed[run + 4] & 63),
        Some(last) => {
            let lower = packed[last + 8];
            (lower & 15 | packed[last] >> 6 << 4, lower >> 4 | packed[last + 4] >> 6 << 4)
        }
    }
}
