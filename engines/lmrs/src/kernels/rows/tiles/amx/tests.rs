//! Tests of the tiles on any x86 machine: Rust code emulates the AMX instructions and reads the same operands.

use super::super::{WeightSource, WidenedPanels, multiply, pack};
use super::*;
use crate::formats::BF16;
use crate::kernels::Outputs;
use crate::kernels::panels::PanelFormat;
use crate::kernels::rows::activations::TileInput;
use crate::kernels::rows::tests;
use crate::kernels::test_rng::TestRng;
use crate::matrix::{Matrix, Rows};

/// An emulation of `tdpbf16ps` and of the loads and stores around it, after Intel's manual.
pub struct EmulatedUnit;

impl TileUnit for EmulatedUnit {
    const OUTPUTS: usize = AmxUnit::OUTPUTS;
    const GROUPS: usize = AmxUnit::GROUPS;
    const STEPS: usize = AmxUnit::STEPS;

    unsafe fn add(part: &TileProduct) {
        let operands = Operands::of(part);
        for (a_tile, group) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            if group < part.groups {
                for tile in 0..operands.tiles {
                    // SAFETY: the caller guarantees the memory that the assembly reads and writes.
                    unsafe { add_product(&operands, a_tile, group, tile) };
                }
            }
        }
    }
}

/// Adds one product of tiles: the `tile`th tiles from `operands.a[a_tile]` and from `operands.b[group]`.
///
/// # Safety
/// The same as for `EmulatedUnit::add`.
unsafe fn add_product(operands: &Operands, a_tile: usize, group: usize, tile: usize) {
    let number = |address: *const u8| {
        // SAFETY: the caller guarantees this.
        let bits = unsafe { address.cast::<u16>().read_unaligned() };
        f32::from_bits(u32::from(bits) << 16)
    };
    for (row, column) in (0..TILE_ROWS).flat_map(|row| (0..TILE_ROWS).map(move |column| (row, column))) {
        let c = operands.c[a_tile].wrapping_add(row * operands.c_row + ROW_BYTES * group + 4 * column);
        let c = c.cast::<f32>();
        // SAFETY: as above.
        let mut sum = unsafe { c.read() };
        for step in 0..TILE_ROWS {
            for half in 0..2 {
                let a =
                    operands.a[a_tile].wrapping_add(64 * tile + row * operands.a_row + 4 * step + 2 * half);
                let b =
                    operands.b[group].wrapping_add(1024 * tile + step * ROW_BYTES + 4 * column + 2 * half);
                sum += number(a) * number(b);
            }
        }
        // SAFETY: as above.
        unsafe { c.write(sum) };
    }
}

#[test]
fn operands_are_laid_out_as_the_instruction_reads_them() {
    let mut rng = TestRng::new(8);
    for (outputs, inputs, tokens) in [(1, 1, 1), (33, 70, 17), (100, 1100, 40), (32, 512, 33)] {
        let (matrix, x) = (rng.matrix(&BF16, outputs, inputs), rng.rows(tokens, inputs));
        let out = emulated_product(&matrix.floats(), outputs, &x);
        tests::assert_sums(&x, &matrix, &out, 1.0 / 256.0, "emulated tiles");
    }
}

#[test]
fn widened_panels_are_laid_out_as_the_instruction_reads_them() {
    tests::panels::cases(|case| {
        let kernels = case.matrix.format.panels().unwrap();
        case.assert_sums(&(kernels.emulated_product)(&case.matrix, &case.x), "emulated tiles");
    });
}

/// The product of a matrix in panels of `N` through emulated tiles.
pub fn emulated_panel_product<N: PanelFormat>(matrix: &Matrix, x: &Rows) -> Rows {
    emulated_product(&WidenedPanels::<N>::new(matrix), matrix.outputs, x)
}

fn emulated_product(source: &impl WeightSource, outputs: usize, x: &Rows) -> Rows {
    let (tokens, mut packed) = (x.tokens(), TileInput::default());
    packed.reshape(tokens, x.width);
    for (group, lines) in packed.groups_mut().into_iter().enumerate() {
        // SAFETY: the emulation needs no special instructions.
        unsafe { pack::<EmulatedUnit>(x, group * GROUP_TOKENS, lines.into_inner().unwrap()) };
    }
    let mut out = Rows::new(tokens, outputs);
    let split = Outputs::split(&mut out);
    // SAFETY: the emulation needs no special instructions, and no other code writes to `out`.
    unsafe { multiply::<EmulatedUnit, _>(source, &packed, &mut split.take(0..outputs)) };
    out
}

/// `PairUnit` with one wrong sum.
struct WrongUnit;

impl TileUnit for WrongUnit {
    const OUTPUTS: usize = PairUnit::OUTPUTS;
    const GROUPS: usize = PairUnit::GROUPS;
    const STEPS: usize = PairUnit::STEPS;

    unsafe fn add(part: &TileProduct) {
        // SAFETY: the caller guarantees this.
        unsafe {
            PairUnit::add(part);
            *part.sums.add(part.sums_stride) += 1.0;
        }
    }
}

#[test]
fn the_check_accepts_correct_tiles_and_finds_wrong_ones() {
    if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512vl") {
        return;
    }
    // SAFETY: the machine has the features of `PairUnit`.
    unsafe { assert!(computes_correctly::<PairUnit>() && !computes_correctly::<WrongUnit>()) };
}
