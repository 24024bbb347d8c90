//! Tiles of AMX, Intel's matrix unit: 16 rows of 64 bytes. Operand A is rows of weights, operand B lines of activations.
//!
//! `C[output][token] += sum over 16 steps of A[output][step] * B[step][token]`, where a step is a pair of bf16, and a row of A
//! has 16 steps. Two tiles of A and two of B give four tiles of C, so each loaded tile serves two products. The intrinsics are
//! not stable in Rust, and no tile keeps its data between two `asm!` blocks: so one `asm!` block has the loop over all steps.
#![expect(unsafe_code, reason = "assembly")]

#[cfg(test)]
pub mod tests;

use std::arch::asm;

use system::amx::{FULL_TILES, ROW_BYTES, TILE_ROWS};

use super::pairs::PairUnit;
use super::{TileProduct, TileUnit, U32Square};
use crate::kernels::rows::activations::{GROUP_TOKENS, U32Line};

/// Four AMX tiles of sums: two of outputs by two of tokens.
pub struct AmxUnit;

impl TileUnit for AmxUnit {
    const OUTPUTS: usize = 2 * TILE_ROWS;
    const GROUPS: usize = 2;
    const STEPS: usize = 256;

    #[inline(always)]
    unsafe fn add(part: &TileProduct) {
        // SAFETY: the caller guarantees this; `begin` has configured full tiles.
        unsafe {
            match part.groups {
                1 => add_one_group(&Operands::of(part)),
                _ => add_two_groups(&Operands::of(part)),
            }
        }
    }

    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> U32Line {
        // SAFETY: a machine with tiles has AVX-512 and its bf16 products.
        unsafe { PairUnit::line(numbers) }
    }

    #[inline(always)]
    unsafe fn transpose(square: &mut U32Square) {
        // SAFETY: as above.
        unsafe { PairUnit::transpose(square) }
    }

    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], factors: [f32; 2], addends: [f32; 2]) -> U32Line {
        // SAFETY: as above.
        unsafe { PairUnit::widen(numbers, factors, addends) }
    }

    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: the instruction reads `FULL_TILES`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const FULL_TILES, options(nostack, readonly)) }
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: no tile holds data that is still needed.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// The addresses of the first tiles of a `TileProduct`. A and C always have two; B has a second one only with two groups.
pub struct Operands {
    pub a: [*const u8; 2],
    /// Bytes from one row of A to the next; likewise `c_row`.
    pub a_row: usize,
    /// With one group, the second entry equals the first.
    pub b: [*const u8; 2],
    pub c: [*mut u8; 2],
    pub c_row: usize,
    /// Consecutive tiles from each address of A and B, of 16 steps each.
    pub tiles: usize,
}

impl Operands {
    #[inline(always)]
    pub fn of(part: &TileProduct) -> Self {
        let b = part.lines.cast::<u8>();
        let next_group = if part.groups > 1 { part.lines_stride * ROW_BYTES } else { 0 };
        let (a_row, c_row) = (part.weights_stride * 4, part.sums_stride * 4);
        let (a, c) = (part.weights.cast::<u8>(), part.sums.cast::<u8>());
        Self {
            a: [a, a.wrapping_add(TILE_ROWS * a_row)],
            a_row,
            b: [b, b.wrapping_add(next_group)],
            c: [c, c.wrapping_add(TILE_ROWS * c_row)],
            c_row,
            tiles: part.steps / GROUP_TOKENS,
        }
    }
}

/// Adds the products for two groups. tmm0 to tmm3 are C, tmm4 and tmm5 A, tmm6 and tmm7 B.
///
/// # Safety
/// The machine has tiles, `begin` has configured them, and the memory of `operands` is valid.
#[inline(always)]
unsafe fn add_two_groups(operands: &Operands) {
    if operands.tiles == 0 {
        return;
    }
    // SAFETY: the code reads `tiles` tiles of A and of B and changes four tiles of C; the caller guarantees this memory.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c0} + {c_row}*1]",
            "tileloadd tmm1, [{c0} + {c_row}*1 + 64]",
            "tileloadd tmm2, [{c1} + {c_row}*1]",
            "tileloadd tmm3, [{c1} + {c_row}*1 + 64]",
            "2:",
            "tileloadd tmm4, [{a0} + {a_row}*1]",
            "tileloadd tmm6, [{b0} + {b_row}*1]",
            "tileloadd tmm7, [{b1} + {b_row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a1} + {a_row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a0}, 64",
            "add {a1}, 64",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "dec {tiles}",
            "jnz 2b",
            "tilestored [{c0} + {c_row}*1], tmm0",
            "tilestored [{c0} + {c_row}*1 + 64], tmm1",
            "tilestored [{c1} + {c_row}*1], tmm2",
            "tilestored [{c1} + {c_row}*1 + 64], tmm3",
            a0 = inout(reg) operands.a[0] => _,
            a1 = inout(reg) operands.a[1] => _,
            a_row = in(reg) operands.a_row,
            b0 = inout(reg) operands.b[0] => _,
            b1 = inout(reg) operands.b[1] => _,
            b_row = in(reg) ROW_BYTES,
            c0 = in(reg) operands.c[0],
            c1 = in(reg) operands.c[1],
            c_row = in(reg) operands.c_row,
            tiles = inout(reg) operands.tiles => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Adds the products for one group: the left half of C.
///
/// # Safety
/// The same as for `add_two_groups`.
#[inline(always)]
unsafe fn add_one_group(operands: &Operands) {
    if operands.tiles == 0 {
        return;
    }
    // SAFETY: as in `add_two_groups`, for one tile of B and two of C.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c0} + {c_row}*1]",
            "tileloadd tmm2, [{c1} + {c_row}*1]",
            "2:",
            "tileloadd tmm4, [{a0} + {a_row}*1]",
            "tileloadd tmm6, [{b0} + {b_row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a1} + {a_row}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {a0}, 64",
            "add {a1}, 64",
            "add {b0}, 1024",
            "dec {tiles}",
            "jnz 2b",
            "tilestored [{c0} + {c_row}*1], tmm0",
            "tilestored [{c1} + {c_row}*1], tmm2",
            a0 = inout(reg) operands.a[0] => _,
            a1 = inout(reg) operands.a[1] => _,
            a_row = in(reg) operands.a_row,
            b0 = inout(reg) operands.b[0] => _,
            b_row = in(reg) ROW_BYTES,
            c0 = in(reg) operands.c[0],
            c1 = in(reg) operands.c[1],
            c_row = in(reg) operands.c_row,
            tiles = inout(reg) operands.tiles => _,
            out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack),
        );
    }
}

/// The steps of the check: two consecutive tiles, so that the products of the second are added to those of the first.
const CHECKED_STEPS: usize = 2 * GROUP_TOKENS;

/// Whether `T` computes correctly. A hypervisor or an emulator may report AMX and compute it wrongly. The check is a product of
/// small integers, exact in bf16 and f32, with each number of groups of tokens that a register tile of `T` can have.
///
/// # Safety
/// The machine has the instructions of `T`, and this process is allowed to use them.
pub unsafe fn computes_correctly<T: TileUnit>() -> bool {
    let weights: Vec<u32> = (0..T::OUTPUTS * CHECKED_STEPS).map(|at| pair(at * 7)).collect();
    let lines: Vec<U32Line> = (0..T::GROUPS * CHECKED_STEPS)
        .map(|line| U32Line(std::array::from_fn(|token| pair(line * 5 + token * 3))))
        .collect();
    (1..=T::GROUPS).all(|groups| {
        let mut sums = vec![1.0_f32; T::OUTPUTS * T::GROUPS * GROUP_TOKENS];
        let part = TileProduct {
            weights: weights.as_ptr(),
            weights_stride: CHECKED_STEPS,
            lines: lines.as_ptr(),
            lines_stride: CHECKED_STEPS,
            groups,
            steps: CHECKED_STEPS,
            sums: sums.as_mut_ptr(),
            sums_stride: T::GROUPS * GROUP_TOKENS,
        };
        // SAFETY: the caller guarantees this; the weights, lines and sums have the sizes of `part`.
        unsafe {
            T::begin();
            T::add(&part);
            T::end();
        }
        sums.iter().enumerate().all(|(at, sum)| {
            let (output, group, token) =
                (at / (T::GROUPS * GROUP_TOKENS), at / GROUP_TOKENS % T::GROUPS, at % GROUP_TOKENS);
            let step = |step: usize| {
                let (weight, activation) =
                    (weights[output * CHECKED_STEPS + step], lines[group * CHECKED_STEPS + step].0[token]);
                numbers(weight).iter().zip(numbers(activation)).map(|(a, b)| a * b).sum::<f32>()
            };
            let products = if group < groups { (0..CHECKED_STEPS).map(step).sum::<f32>() } else { 0.0 };
            *sum == 1.0 + products
        })
    })
}

/// A pair of integers from -3 to 3, as bf16.
fn pair(seed: usize) -> u32 {
    let bits = |seed: usize| (((seed * seed + seed) % 7) as f32 - 3.0).to_bits() >> 16;
    bits(seed) | bits(seed + 11) << 16
}

/// The two numbers of a pair.
fn numbers(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}
