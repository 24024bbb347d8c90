//! The product of panels with tokens, written once over `PanelLanes` (a level) and `PanelFormat` (a format).
//!
//! With few tokens, memory limits the speed. A Zen 4 reads fastest sequentially, panel by panel. For a processor that reads
//! faster from several streams, a range of panels is divided into eight parts; one panel of each part is read at once, line
//! by line in turn.
//!
//! With many tokens, arithmetic limits the speed. As many panels as fill half of a second-level cache are multiplied with all
//! tokens before the next panels are read.
#![expect(unsafe_code, reason = "registers of a level, and addresses within a panel")]

use std::marker::PhantomData;
use std::ops::Range;

use super::input::{ActivationBlock, BLOCK_INPUTS, Input, TILE_TOKENS};
use super::numbers::PanelFormat;
use crate::kernels::outputs::Outputs;
use crate::matrix::{GROUP_INPUTS, Matrix, PANEL_OUTPUTS};

/// The interface of a level to panels: operations on 64 bytes, 16 integers or 16 floats, in one or more registers. A lane
/// belongs to one output of a panel: four bytes, an i32 or an f32.
///
/// All methods are `unsafe`: the processor must have the level's features, and addresses must be valid. They are inlined into
/// functions that enable these features.
pub trait PanelLanes {
    /// Four numbers of each of 16 outputs.
    type Bytes: Copy;
    type Ints: Copy;
    type Floats: Copy;

    /// The most sums that stay in registers. A sum has 16 lanes: the outputs of one panel for one token.
    const MAX_SUMS: usize;

    unsafe fn load_bytes(at: *const u8) -> Self::Bytes;
    unsafe fn and(bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts each byte right by this number of bits; the bits from the neighbouring byte are unspecified.
    unsafe fn shift_right<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn shift_left<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes;

    /// The same number in each lane.
    unsafe fn splat(number: i32) -> Self::Ints;
    /// Adds to each lane the dot product of its four numbers, which are below 64, and the four activations at `quad`.
    unsafe fn dot(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints;
    /// The initial value of sums for `dot_128`. `minus_128` is -128 times the sum of the activations; a level whose `dot_128`
    /// subtracts 128 from each number ignores it.
    unsafe fn splat_for_dot_128(minus_128: i32) -> Self::Ints;
    /// Like `dot`, for numbers from 0 to 255 that are stored plus 128.
    unsafe fn dot_128(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints;

    /// 16 floats from f16.
    unsafe fn load_f16(at: *const u8) -> Self::Floats;
    unsafe fn load_u8(at: *const u8) -> Self::Floats;
    unsafe fn load_i8(at: *const u8) -> Self::Floats;
    /// Returns the floats unchanged. A level can use this to make the compiler load them before the code that follows.
    #[inline(always)]
    unsafe fn load_first(floats: Self::Floats) -> Self::Floats {
        floats
    }
    unsafe fn load_f32(at: *const f32) -> Self::Floats;
    unsafe fn store(floats: Self::Floats, at: *mut f32);
    unsafe fn multiply_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `sums + a * b`, with the same `b` for all lanes.
    unsafe fn add_scaled(sums: Self::Floats, a: Self::Floats, b: f32) -> Self::Floats;
    /// `sums + ints * (scale * b)`, with the same `b` for all lanes.
    unsafe fn add_dot(sums: Self::Floats, ints: Self::Ints, scale: Self::Floats, b: f32) -> Self::Floats;
}

/// Bytes of panels that stay in the second-level cache: half of a small one, of 1 MiB.
const CACHED_BYTES: usize = 512 << 10;

/// Asserts the preconditions of all levels.
pub fn check(matrix: &Matrix, panels: &Range<usize>, input: &Input, out: &Outputs<'_>) {
    assert_eq!(matrix.inputs, input.inputs(), "inputs of the matrix and of `input`");
    assert_eq!(input.tokens(), out.tokens(), "tokens of `input` and of `out`");
    let outputs = panels.start * PANEL_OUTPUTS..matrix.outputs.min(panels.end * PANEL_OUTPUTS);
    assert_eq!(outputs, out.outputs(), "columns of panels {panels:?}");
}

/// Multiplies panels with the tokens of `input`. `streams`, 8 or 1, is the number of panels that are read at once. If the sums
/// of all tokens do not fit into registers for 8 panels, one panel is read at once.
///
/// # Safety
/// The processor has the features of `L`, `check` has passed, and `N` is the matrix's format.
#[inline(always)]
pub unsafe fn multiply<L: PanelLanes, N: PanelFormat>(
    streams: usize,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    let product = Product::<N> {
        panels: matrix.panels(),
        sections: matrix.inputs.div_ceil(N::GROUPS * GROUP_INPUTS),
        format: PhantomData,
    };
    // SAFETY: the caller guarantees this.
    unsafe {
        if input.tokens() <= TILE_TOKENS {
            for tile in input.tiles() {
                product.multiply_range::<L>(
                    streams.min(L::MAX_SUMS / tile.0.len()),
                    panels.clone(),
                    &tile,
                    out,
                );
            }
        } else {
            let cached_panels = (CACHED_BYTES / (product.sections * N::SECTION_BYTES).max(1)).max(1);
            for start in panels.clone().step_by(cached_panels) {
                for tile in input.tiles() {
                    for panel in start..panels.end.min(start + cached_panels) {
                        product.multiply_panels::<L, 1>([panel], &tile, out);
                    }
                }
            }
        }
    }
}

/// The tokens of a tile, and its blocks.
type Tile<'a> = (Range<usize>, &'a [ActivationBlock]);

/// A matrix whose format is `N`.
struct Product<'a, N> {
    /// All panels, one after the other.
    panels: &'a [u8],
    /// Sections of a panel.
    sections: usize,
    format: PhantomData<N>,
}

impl<N: PanelFormat> Product<'_, N> {
    /// Multiplies all panels of the range: eight at once if `streams` is 8, the remaining ones (otherwise all) one by one.
    ///
    /// # Safety
    /// The same as for `multiply_panels`.
    #[inline(always)]
    unsafe fn multiply_range<L: PanelLanes>(
        &self,
        streams: usize,
        mut panels: Range<usize>,
        tile: &Tile<'_>,
        out: &mut Outputs<'_>,
    ) {
        // SAFETY: the caller guarantees this.
        unsafe {
            if streams >= 8 {
                self.multiply_streams::<L, 8>(&mut panels, tile, out);
            }
            self.multiply_streams::<L, 1>(&mut panels, tile, out);
        }
    }

    /// Divides the range into `PANELS` parts of equal length, and multiplies one panel of each part at a time. The remaining
    /// panels stay in the range.
    ///
    /// # Safety
    /// The same as for `multiply_panels`.
    #[inline(always)]
    unsafe fn multiply_streams<L: PanelLanes, const PANELS: usize>(
        &self,
        panels: &mut Range<usize>,
        tile: &Tile<'_>,
        out: &mut Outputs<'_>,
    ) {
        let part_panels = panels.len() / PANELS;
        for step in 0..part_panels {
            let selected = std::array::from_fn(|part| panels.start + part * part_panels + step);
            // SAFETY: the caller guarantees this.
            unsafe { self.multiply_panels::<L, PANELS>(selected, tile, out) };
        }
        panels.start += part_panels * PANELS;
    }

    /// Multiplies these panels with all tokens of a tile, as many tokens at once as registers allow.
    ///
    /// # Safety
    /// The processor has the features of `L`. The function checks everything else.
    #[inline(always)]
    unsafe fn multiply_panels<L: PanelLanes, const PANELS: usize>(
        &self,
        panels: [usize; PANELS],
        (tokens, blocks): &Tile<'_>,
        out: &mut Outputs<'_>,
    ) {
        let tile_tokens = tokens.len();
        let bytes = self.sections * N::SECTION_BYTES;
        let starts = panels.map(|panel| self.panels[panel * bytes..][..bytes].as_ptr());
        assert!(
            blocks.len() >= self.sections * N::GROUPS * (GROUP_INPUTS / BLOCK_INPUTS) * tile_tokens,
            "the blocks of a tile"
        );
        let mut done = 0;
        macro_rules! multiply_tokens {
            ($($count:literal)*) => {
                match tile_tokens - done {
                    $(remaining if remaining >= $count && $count * PANELS <= L::MAX_SUMS => {
                        let blocks = blocks[done..].as_ptr();
                        // SAFETY: the lengths of panels and blocks were just checked, and the tile has these tokens.
                        let sums = unsafe {
                            multiply_tile::<L, N, PANELS, $count>(starts, self.sections, blocks, tile_tokens)
                        };
                        for (panel, sums) in panels.into_iter().zip(&sums) {
                            write(panel, tokens.start + done, sums, out);
                        }
                        done += $count;
                    })*
                    _ => break,
                }
            };
        }
        loop {
            multiply_tokens!(12 8 6 4 3 2 1);
        }
    }
}

/// Writes a panel's sums of tokens from `token` on. No weights are read meanwhile, so this must be fast: for whole panels it
/// calls no function.
#[inline(always)]
fn write(panel: usize, token: usize, sums: &[[f32; PANEL_OUTPUTS]], out: &mut Outputs<'_>) {
    let first = panel * PANEL_OUTPUTS - out.outputs().start;
    for (token, sums) in (token..).zip(sums) {
        let outputs = &mut out.row_mut(token)[first..];
        match outputs.first_chunk_mut() {
            Some(outputs) => *outputs = *sums,
            None => outputs.copy_from_slice(&sums[..outputs.len()]),
        }
    }
}

/// The sums of a panel's outputs, for each token.
type Sums<const TOKENS: usize> = [[f32; PANEL_OUTPUTS]; TOKENS];

/// The products of whole panels with the tokens of a tile. A line of each panel is read in turn, so several panels are several
/// memory streams. Only the AMX level multiplies several panels at once.
///
/// # Safety
/// The processor has the features of `L`. Each of `panels` points to `sections` sections of `N`. `blocks` points to the first
/// blocks of `TOKENS` consecutive tokens; `tile_tokens` blocks later are their second blocks, and so on for all sections.
#[inline(always)]
unsafe fn multiply_tile<L: PanelLanes, N: PanelFormat, const PANELS: usize, const TOKENS: usize>(
    panels: [*const u8; PANELS],
    sections: usize,
    mut blocks: *const ActivationBlock,
    tile_tokens: usize,
) -> [Sums<TOKENS>; PANELS] {
    // SAFETY: a section has `N::GROUPS` groups of `GROUP_INPUTS` inputs; the caller guarantees the other conditions.
    unsafe {
        let mut totals = [[L::load_f32([0.0; PANEL_OUTPUTS].as_ptr()); TOKENS]; PANELS];
        for section in 0..sections {
            let section = panels.map(|panel| panel.add(section * N::SECTION_BYTES));
            for group in 0..N::GROUPS {
                let group = Group::<PANELS> {
                    starts: section.map(|section| section.add(N::HEAD_BYTES + group * N::GROUP_BYTES)),
                    heads: section,
                };
                if N::RUNS == 2 {
                    add_run::<L, N, PANELS, TOKENS, 0>(&group, blocks, &mut totals);
                    add_run::<L, N, PANELS, TOKENS, 1>(&group, blocks.add(tile_tokens), &mut totals);
                } else {
                    add_run::<L, N, PANELS, TOKENS, 0>(&group, blocks, &mut totals);
                    add_run::<L, N, PANELS, TOKENS, 1>(&group, blocks, &mut totals);
                    add_run::<L, N, PANELS, TOKENS, 2>(&group, blocks.add(tile_tokens), &mut totals);
                    add_run::<L, N, PANELS, TOKENS, 3>(&group, blocks.add(tile_tokens), &mut totals);
                }
                blocks = blocks.wrapping_add(GROUP_INPUTS / BLOCK_INPUTS * tile_tokens);
            }
        }
        totals.map(|totals| {
            totals.map(|total| {
                let mut sums = [0.0; PANEL_OUTPUTS];
                L::store(total, sums.as_mut_ptr());
                sums
            })
        })
    }
}

/// The same group of several panels: its address, and that of its section.
struct Group<const PANELS: usize> {
    starts: [*const u8; PANELS],
    heads: [*const u8; PANELS],
}

/// Adds the products of one run (inputs that share a scale) of each panel.
///
/// # Safety
/// The processor has the features of `L`; in each panel, `group` points to a group of `N` and to the head of its section;
/// `blocks` points to a block of each of `TOKENS` tokens, with the inputs of run `RUN`.
#[inline(always)]
unsafe fn add_run<
    L: PanelLanes,
    N: PanelFormat,
    const PANELS: usize,
    const TOKENS: usize,
    const RUN: usize,
>(
    group: &Group<PANELS>,
    blocks: *const ActivationBlock,
    totals: &mut [[L::Floats; TOKENS]; PANELS],
) {
    // SAFETY: the lines of a run are within its group, and their inputs within a block; the caller guarantees the rest.
    unsafe {
        let x = |token: usize| &*blocks.add(token);
        // The scales precede the lines in memory, and are read first.
        let scales: [L::Floats; PANELS] = std::array::from_fn(|panel| {
            L::load_first(N::scale::<L, RUN>(group.starts[panel], group.heads[panel]))
        });
        let mut dots: [[L::Ints; TOKENS]; PANELS] = [std::array::from_fn(|token| {
            let correction = N::correction::<RUN>(x(token));
            if N::STORED_PLUS_128 { L::splat_for_dot_128(correction) } else { L::splat(correction) }
        }); PANELS];
        // A group has 16 quads (four inputs each), and a block of activations has eight. A line has one quad of each output.
        let lines = 16 / N::RUNS;
        let first_quad = if N::RUNS == 2 { 0 } else { RUN % 2 * lines };
        for line in 0..lines {
            for (start, dots) in group.starts.iter().zip(&mut dots) {
                let numbers = N::line::<L, RUN>(*start, line);
                for (token, dot) in dots.iter_mut().enumerate() {
                    let quad = x(token).numbers.as_ptr().add((first_quad + line) * 4);
                    *dot = if N::STORED_PLUS_128 {
                        L::dot_128(*dot, numbers, quad)
                    } else {
                        L::dot(*dot, numbers, quad)
                    };
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
                    *total = L::add_scaled(*total, minimum, x(token).minus_sum);
                }
            }
        }
    }
}
