//! The levels of ARM.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::neon::Quarter;
use super::packed::{Kind, Line, Packed};
use super::portable::Plain;
use super::{dots, tiles};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Format, Matrix};
use crate::rows::Rows;

/// It has no products of pairs.
pub fn widens(_: Level, _: Format, _: usize) -> bool {
    false
}

pub fn packing(_: Level, _: Format) -> Kind {
    Kind::Numbers
}

pub fn pack(_: Level, _: Kind, x: &Rows, first: usize, lines: &mut [Line]) {
    // SAFETY: every machine has the portable level, and what it packs is what all read.
    unsafe { tiles::pack::<Plain>(x, first, lines) }
}

pub fn decode(level: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: every machine has the portable level, and every ARM of 64 bits these registers.
    unsafe {
        match level {
            Level::Portable => dots::decode::<Plain>(matrix, x, outs),
            Level::Neon => decode_neon(matrix, x, outs),
        }
    }
}

pub fn prefill(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: as above.
    unsafe {
        match level {
            Level::Portable => tiles::prefill::<Plain>(matrix, packed, out),
            Level::Neon => prefill_neon(matrix, packed, out),
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn decode_neon(matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller's promise.
    unsafe { dots::decode::<Quarter>(matrix, x, outs) }
}

#[target_feature(enable = "neon")]
unsafe fn prefill_neon(matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: the caller's promise.
    unsafe { tiles::prefill::<Quarter>(matrix, packed, out) }
}
