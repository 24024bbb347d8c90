//! The levels of processors without kernels of their own.
#![expect(unsafe_code, reason = "the portable level, too, reads weights at any address")]

use super::apart::{Apart, Numbers};
use super::lanes::Float;
use super::packed::{Line, Packed};
use super::portable::Plain;
use super::{PackedBf16, dots};
use crate::kernels::panels::Numbers as PanelNumbers;
use crate::kernels::{Level, Outputs};
use crate::matrix::Rows;
use crate::matrix::{Floats, Matrix};

pub fn has_pairs(_: Level) -> bool {
    false
}

pub fn takes_tiles(_: Level) -> bool {
    false
}

pub fn pack(level: Level, _: &Rows, _: usize, _: &mut [Line]) {
    unreachable!("{level} has no tiles");
}

pub fn tile(level: Level, _: &Floats, _: &Packed, _: &mut Outputs) {
    unreachable!("{level} has no tiles");
}

pub fn tile_panels<N: PanelNumbers>(level: Level, _: &Matrix, _: &Packed, _: &mut Outputs) {
    unreachable!("{level} has no tiles");
}

pub fn dot_pairs(level: Level, _: &Floats, _: &[u16], _: &mut [Outputs]) {
    unreachable!("{level} has no products of pairs");
}

pub fn dot_packed<P: PackedBf16>(level: Level, _: &Matrix, _: &[u16], _: &mut Outputs) {
    unreachable!("{level} has no products of pairs");
}

pub fn narrow(level: Level, _: &[f32], _: &mut [u16]) {
    unreachable!("{level} has no products of pairs");
}

pub fn pass_near(level: Level, _: &Floats, _: &Apart, _: &[u8], _: &mut Outputs) {
    unreachable!("{level} has no products of pairs");
}

pub fn narrow_lines(level: Level, _: &[f32], _: &mut [Numbers]) {
    unreachable!("{level} has no products of pairs");
}

pub fn pass(level: Level, _: &Floats, _: &Apart, _: &mut Outputs) {
    unreachable!("{level} has no products of pairs");
}

/// Rows at once: their sums with three tokens fill the registers.
pub fn rows(_: Level) -> usize {
    2
}

pub fn reads_apart(_: Level) -> bool {
    false
}

pub fn dot<F: Float>(_: Level, floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: every machine has the portable level.
    unsafe { dots::by_groups::<Plain, F>(floats, x, outs) }
}
