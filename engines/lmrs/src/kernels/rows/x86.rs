//! The levels of x86.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::amx::Squares;
use super::avx2::Half;
use super::avx512::Wide;
use super::bf16::Pairs;
use super::packed::{Kind, Line, Packed};
use super::portable::Plain;
use super::{DECODE_TOKENS, dots, tiles};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Format, Matrix};
use crate::rows::Rows;

/// With tiles. `vdpbf16ps` has half the products of the panels' own kernels, which are faster than it for any number of tokens
/// (measured: notes/k2.md), so without tiles only tests take panels this way.
pub fn widens(level: Level, format: Format, tokens: usize) -> bool {
    level == Level::Amx && tokens > DECODE_TOKENS && packing(level, format) == Kind::Pairs
}

/// Activations of bf16 weights, and of those that are widened to it, are rounded to bf16 too where that pays; all others are
/// computed as f32.
pub fn packing(level: Level, format: Format) -> Kind {
    let rounds = !matches!(format, Format::F32 | Format::F16);
    match level {
        Level::Avx512 | Level::Amx if rounds && is_x86_feature_detected!("avx512bf16") => Kind::Pairs,
        _ => Kind::Numbers,
    }
}

pub fn pack(level: Level, kind: Kind, x: &Rows, first: usize, lines: &mut [Line]) {
    // SAFETY: every machine has the portable level, and this one those that `Level` was found to be; `packing` asked for the
    // features of pairs.
    unsafe {
        match (level, kind) {
            (Level::Portable | Level::Avx2, _) => tiles::pack::<Plain>(x, first, lines),
            (Level::Avx512 | Level::Amx, Kind::Numbers) => pack_avx512(x, first, lines),
            (Level::Avx512 | Level::Amx, Kind::Pairs) => pack_bf16(x, first, lines),
        }
    }
}

pub fn decode(level: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: every machine has the portable level, and this one those that `Level` was found to be.
    unsafe {
        match level {
            Level::Portable => dots::decode::<Plain>(matrix, x, outs),
            Level::Avx2 => decode_avx2(matrix, x, outs),
            Level::Avx512 | Level::Amx => decode_avx512(matrix, x, outs),
        }
    }
}

pub fn prefill(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above; the features of pairs were asked for when the activations were packed as such.
    unsafe {
        match (level, packed.kind()) {
            (Level::Portable, _) => tiles::prefill::<Plain>(matrix, packed, out),
            (Level::Avx2, _) => prefill_avx2(matrix, packed, out),
            (Level::Avx512 | Level::Amx, Kind::Numbers) => prefill_avx512(matrix, packed, out),
            (Level::Avx512, Kind::Pairs) => prefill_bf16(matrix, packed, out),
            (Level::Amx, Kind::Pairs) => prefill_amx(matrix, packed, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_avx2(matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller's promise; so below.
    unsafe { dots::decode::<Half>(matrix, x, outs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn decode_avx512(matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: as above.
    unsafe { dots::decode::<Wide>(matrix, x, outs) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn prefill_avx2(matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { tiles::prefill::<Half>(matrix, packed, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn prefill_avx512(matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { tiles::prefill::<Wide>(matrix, packed, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn prefill_bf16(matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { tiles::prefill::<Pairs>(matrix, packed, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn prefill_amx(matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe { tiles::prefill::<Squares>(matrix, packed, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn pack_avx512(x: &Rows, first: usize, lines: &mut [Line]) {
    // SAFETY: as above.
    unsafe { tiles::pack::<Wide>(x, first, lines) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn pack_bf16(x: &Rows, first: usize, lines: &mut [Line]) {
    // SAFETY: as above.
    unsafe { tiles::pack::<Pairs>(x, first, lines) }
}
