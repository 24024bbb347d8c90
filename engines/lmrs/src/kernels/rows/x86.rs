//! The x86 levels.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::apart::{Apart, Numbers};
use super::avx2::Eight;
use super::avx512::Sixteen;
use super::lanes::Float;
use super::packed::{Line, Packed};
use super::paired::{self, Paired};
use super::portable::Plain;
use super::tiles::amx::Squares;
use super::tiles::pairs::Pairs;
use super::tiles::widened::Widened;
use super::{PackedBf16, dots, near, tiles};
use crate::formats::floats::InBf16;
use crate::kernels::panels::Numbers as PanelNumbers;
use crate::kernels::{Instructions, Level, Outputs};
use crate::matrix::Rows;
use crate::matrix::{Floats, Matrix};

/// # Safety
///
/// The machine has tiles, and this process is allowed to use them.
pub unsafe fn tiles_are_right() -> bool {
    // SAFETY: the caller guarantees this.
    unsafe { tiles::works::<Squares>() }
}

pub fn has_pairs(level: Level) -> bool {
    level.instructions() >= Instructions::Avx512 && is_x86_feature_detected!("avx512bf16")
}

/// True only with AMX tiles. Without AMX, the panels' own kernels and `near` are faster than `vdpbf16ps` tiles for any number
/// of tokens. (Measured: `MEASURED.md`.)
pub fn takes_tiles(level: Level) -> bool {
    level.instructions() == Instructions::Amx && has_pairs(level)
}

/// Rows at once: their sums with a few tokens stay in registers.
pub fn rows(level: Level) -> usize {
    if level.instructions() >= Instructions::Avx512 { 4 } else { 2 }
}

/// Sapphire Rapids, the processor with AMX, reads memory faster from several streams.
pub fn reads_apart(level: Level) -> bool {
    level.instructions() == Instructions::Amx
}

pub fn dot<F: Float>(level: Level, floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: a `Level` value exists only on a machine that has the level.
    unsafe {
        match level.instructions() {
            Instructions::Portable => dots::by_groups::<Plain, F>(floats, x, outs),
            Instructions::Avx2 => dot_avx2::<F>(floats, x, outs),
            Instructions::Avx512 | Instructions::Amx => dot_avx512::<F>(floats, x, outs),
        }
    }
}

pub fn dot_pairs(_: Level, floats: &Floats, x: &[u16], outs: &mut [Outputs]) {
    // SAFETY: callers with bf16 activations have checked for the pair features.
    unsafe { dot_bf16(floats, x, outs) }
}

/// The product with rows of the packed format `P`.
pub fn dot_packed<P: PackedBf16>(_: Level, matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    // SAFETY: callers with bf16 activations have checked for the pair features, and the caller has asserted the rest.
    unsafe { dot_packed_bf16::<P>(matrix, x, out) }
}

pub fn narrow(_: Level, x: &[f32], narrowed: &mut [u16]) {
    // SAFETY: the caller has checked for the pair features.
    unsafe { narrow_bf16(x, narrowed) }
}

pub fn narrow_lines(_: Level, x: &[f32], lines: &mut [Numbers]) {
    // SAFETY: the caller has checked for the pair features.
    unsafe { narrow_lines_bf16(x, lines) }
}

pub fn pass(_: Level, floats: &Floats, x: &Apart, out: &mut Outputs) {
    // SAFETY: the caller has checked for the pair features.
    unsafe { pass_bf16(floats, x, out) }
}

pub fn pass_near(_: Level, floats: &Floats, x: &Apart, next: &[u8], out: &mut Outputs) {
    // SAFETY: the caller has checked for the pair features.
    unsafe { pass_near_bf16(floats, x, next, out) }
}

pub fn pack(_: Level, x: &Rows, first: usize, lines: &mut [Line]) {
    // SAFETY: the caller has checked for the pair features.
    unsafe { pack_bf16(x, first, lines) }
}

pub fn tile(level: Level, floats: &Floats, packed: &Packed, out: &mut Outputs) {
    tile_from(level, floats, packed, out);
}

pub fn tile_panels<N: PanelNumbers>(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    tile_from(level, &Widened::<N>::new(matrix), packed, out);
}

fn tile_from(level: Level, source: &impl tiles::Source, packed: &Packed, out: &mut Outputs) {
    // SAFETY: the caller has checked for the pair features, and for AMX tiles.
    unsafe {
        match level.instructions() {
            Instructions::Amx => tile_amx(source, packed, out),
            _ => tile_bf16(source, packed, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_avx2<F: Float>(floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller guarantees this; the same below.
    unsafe { dots::by_groups::<Eight, F>(floats, x, outs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn dot_avx512<F: Float>(floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: as above.
    unsafe { dots::by_groups::<Sixteen, F>(floats, x, outs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn dot_bf16(floats: &Floats, x: &[u16], outs: &mut [Outputs]) {
    // SAFETY: as above.
    unsafe { dots::by_groups::<Paired, InBf16>(floats, x, outs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn dot_packed_bf16<P: PackedBf16>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { P::dot(matrix, x, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn narrow_bf16(x: &[f32], narrowed: &mut [u16]) {
    // SAFETY: as above.
    unsafe { paired::narrow(x, narrowed) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn narrow_lines_bf16(x: &[f32], lines: &mut [Numbers]) {
    // SAFETY: as above.
    unsafe { paired::narrow_lines(x, lines) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pass_bf16(floats: &Floats, x: &Apart, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { near::multiply(floats, x, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pass_near_bf16(floats: &Floats, x: &Apart, next: &[u8], out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { near::multiply_near(floats, x, next, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack_bf16(x: &Rows, first: usize, lines: &mut [Line]) {
    // SAFETY: as above.
    unsafe { tiles::pack::<Pairs>(x, first, lines) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn tile_bf16(source: &impl tiles::Source, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { tiles::multiply::<Pairs, _>(source, packed, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn tile_amx(source: &impl tiles::Source, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { tiles::multiply::<Squares, _>(source, packed, out) }
}
