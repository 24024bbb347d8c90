//! The levels of x86.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::avx2::Half;
use super::avx512::Wide;
use super::bf16::Pairs;
use super::packed::{Kind, Packed};
use super::portable::Plain;
use super::{dots, tiles};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Format, Matrix};

/// Activations of bf16 weights are rounded to bf16 too where that pays; all others are computed as f32.
pub fn packing(level: Level, format: Format) -> Kind {
    match (level, format) {
        (Level::Avx512 | Level::Amx, Format::Bf16) if is_x86_feature_detected!("avx512bf16") => Kind::Pairs,
        _ => Kind::Numbers,
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
            (Level::Avx512 | Level::Amx, Kind::Pairs) => prefill_bf16(matrix, packed, out),
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
