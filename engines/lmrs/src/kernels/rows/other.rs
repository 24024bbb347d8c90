//! The levels of a processor that nothing was written for.
#![expect(unsafe_code, reason = "the portable level, too, reads weights at any address")]

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
    // SAFETY: every machine has the portable level.
    unsafe { tiles::pack::<Plain>(x, first, lines) }
}

pub fn decode(_: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: every machine has the portable level.
    unsafe { dots::decode::<Plain>(matrix, x, outs) }
}

pub fn prefill(_: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    // SAFETY: every machine has the portable level.
    unsafe { tiles::prefill::<Plain>(matrix, packed, out) }
}
