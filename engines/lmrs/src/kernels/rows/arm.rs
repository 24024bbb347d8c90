//! The ARM levels.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::apart::{Apart, Numbers};
use super::lanes::Float;
use super::neon::Four;
use super::packed::{Line, Packed};
use super::portable::Plain;
use super::{PackedBf16, dots};
use crate::kernels::panels::Numbers as PanelNumbers;
use crate::kernels::{Instructions, Level, Outputs};
use crate::matrix::Rows;
use crate::matrix::{Floats, Matrix};

/// Products of bf16 are not stable in Rust for ARM.
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
pub fn rows(level: Level) -> usize {
    if level.instructions() == Instructions::Neon { 4 } else { 2 }
}

pub fn reads_apart(_: Level) -> bool {
    false
}

pub fn dot<F: Float>(level: Level, floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: a `Level` value exists only on a machine that has the level.
    unsafe {
        match level.instructions() {
            Instructions::Portable => dots::by_groups::<Plain, F>(floats, x, outs),
            Instructions::Neon => dot_neon::<F>(floats, x, outs),
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn dot_neon<F: Float>(floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller guarantees this.
    unsafe { dots::by_groups::<Four, F>(floats, x, outs) }
}
