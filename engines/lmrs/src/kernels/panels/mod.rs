//! Products with weights of 8, 6 and 4 bits, which lie in panels of 16 outputs as `crate::matrix` says.
//!
//! ```text
//! pack      rows as files have them -> a panel
//! unpack    a row of a panel -> numbers
//! input     activations -> 8 bits, one scale for 32 of them
//! portable  what a product is, number by number: the reference
//! lanes     what a level must be able to do with 64 bytes
//! numbers   each format in those words
//! tile      some tokens times some panels, in registers
//! walk      in which order panels and tokens are visited
//! levels    which code a level is: avx512, avx2, neon, portable
//! ```
//!
//! Many tokens go another way where a level has tiles of bf16: `kernels::rows` widens panels for them.
//!
//! Weights and activations are multiplied as integers, exactly, over each run of inputs that has one scale; the runs are
//! added up as f32. So all levels agree in the integers, and differ only in the rounding of the sum.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod input;
mod lanes;
#[cfg_attr(target_arch = "x86_64", path = "x86.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arm.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "other.rs")]
mod levels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod numbers;
mod pack;
mod portable;
#[cfg(test)]
pub(super) mod tests;
mod tile;
mod unpack;
mod walk;

use std::ops::Range;

pub use input::{Block, Input, InputPart};
pub use pack::pack;
pub use unpack::row;

use super::Level;
use super::outputs::Outputs;
use crate::matrix::Matrix;
use crate::rows::Rows;

/// All tokens of `x`, quantised.
pub fn prepare(level: Level, x: &Rows, input: &mut Input) {
    input.reshape(x.tokens(), x.width);
    for part in input.parts(1) {
        prepare_part(level, x, part);
    }
}

/// Some tokens of `x`: one of the parts that `Input::parts` divides an input of the right size into.
pub fn prepare_part(level: Level, x: &Rows, part: InputPart<'_>) {
    levels::prepare_part(level, x, part);
}

/// The outputs of these panels, `16 * panels.start ..` and so on, which are just the columns of `out`.
pub fn multiply(level: Level, matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    walk::check(matrix, &panels, input, out);
    levels::multiply(level, matrix, panels, input, out);
}
