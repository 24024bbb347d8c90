//! Selects the code of the row kernels for each level (instruction set).
#![expect(unsafe_code, reason = "SIMD instructions")]

use super::activations::{Bf16Line, PaddedRows, TileInput, U32Line};
use super::lanes::{Float, PortableLanes};
use super::{PackedBf16, dots};
use crate::kernels::panels::PanelFormat;
use crate::kernels::{Instructions, Level, Outputs};
use crate::matrix::{Floats, Matrix, Rows};

#[cfg(target_arch = "aarch64")]
use super::lanes::F32x4;
#[cfg(target_arch = "x86_64")]
use {
    super::blocked,
    super::lanes::{F32x8, F32x16},
    super::paired::{self, Paired},
    super::tiles::{self, WidenedPanels, amx::AmxUnit, pairs::PairUnit},
    crate::formats::floats::InBf16,
};

/// Whether a level multiplies pairs of bf16. On ARM none does: Rust has no stable intrinsics for such products there.
pub fn has_pairs(level: Level) -> bool {
    #[cfg(target_arch = "x86_64")]
    return level.instructions() >= Instructions::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return level.instructions() < Instructions::Portable; // never
}

/// Whether a level has AMX tiles. Without AMX, the panels' own kernels and `blocked` are faster than `vdpbf16ps` tiles for any
/// number of tokens (`MEASURED.md`).
pub fn has_tiles(level: Level) -> bool {
    #[cfg(target_arch = "x86_64")]
    return level.instructions() == Instructions::Amx && has_pairs(level);
    #[cfg(not(target_arch = "x86_64"))]
    return level.instructions() < Instructions::Portable; // never
}

/// Whether the processor reads memory faster from several streams: measured on Sapphire Rapids, which has AMX.
pub fn several_streams_are_faster(level: Level) -> bool {
    level.name() == "amx"
}

/// The most rows that `dot` multiplies at once: so few that the sums of all these rows for a few tokens stay in registers.
pub fn rows_at_once(level: Level) -> usize {
    match level.instructions() {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 | Instructions::Amx => 4,
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon => 4,
        _ => 2,
    }
}

pub fn dot<F: Float>(level: Level, floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: a `Level` value exists only on a machine that has the level.
    unsafe {
        match level.instructions() {
            Instructions::Portable => dots::multiply_groups::<PortableLanes, F>(floats, x, outs),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => dot_neon::<F>(floats, x, outs),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => dot_avx2::<F>(floats, x, outs),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Amx => dot_avx512::<F>(floats, x, outs),
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn dot_neon<F: Float>(floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller guarantees this.
    unsafe { dots::multiply_groups::<F32x4, F>(floats, x, outs) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_avx2<F: Float>(floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller guarantees this.
    unsafe { dots::multiply_groups::<F32x8, F>(floats, x, outs) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn dot_avx512<F: Float>(floats: &Floats, x: &[f32], outs: &mut [Outputs]) {
    // SAFETY: the caller guarantees this.
    unsafe { dots::multiply_groups::<F32x16, F>(floats, x, outs) }
}

/// Functions for levels that have products of pairs. Callers check `has_pairs` first.
macro_rules! with_pairs {
    ($($(#[$documentation:meta])* fn $name:ident $(<$type:ident: $bound:path>)? ($($input:ident: $kind:ty),*) $work:block)*) => {$(
        $(#[$documentation])*
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only x86 has products of pairs"))]
        pub fn $name $(<$type: $bound>)? (level: Level, $($input: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
                unsafe fn compiled $(<$type: $bound>)? ($($input: $kind),*) {
                    // SAFETY: the caller guarantees this.
                    unsafe { $work }
                }
                debug_assert!(has_pairs(level), "{level} has no products of pairs");
                // SAFETY: the caller has checked `has_pairs`. The asserts in `rows`, and `has_tiles` for AMX, cover what `$work`
                // needs.
                unsafe { compiled $(::<$type>)? ($($input),*) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{level} has no products of pairs")
        }
    )*};
}

with_pairs! {
    fn dot_pairs(floats: &Floats, x: &[u16], outs: &mut [Outputs]) {
        dots::multiply_groups::<Paired, InBf16>(floats, x, outs)
    }

    /// The product with rows of the packed format `P`.
    fn dot_packed<P: PackedBf16>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
        P::dot(matrix, x, out)
    }

    fn narrow(x: &[f32], narrowed: &mut [u16]) {
        paired::narrow(x, narrowed)
    }

    fn narrow_lines(x: &[f32], lines: &mut [Bf16Line]) {
        paired::narrow_lines(x, lines)
    }

    fn multiply_blocked(floats: &Floats, x: &PaddedRows, out: &mut Outputs) {
        blocked::multiply(floats, x, out)
    }

    fn multiply_cached(floats: &Floats, x: &PaddedRows, next: &[u8], out: &mut Outputs) {
        blocked::multiply_cached(floats, x, next, out)
    }

    fn pack(x: &Rows, first: usize, lines: &mut [U32Line]) {
        tiles::pack::<PairUnit>(x, first, lines)
    }

    fn tile_with_pairs(floats: &Floats, packed: &TileInput, out: &mut Outputs) {
        tiles::multiply::<PairUnit, _>(floats, packed, out)
    }

    fn tile_with_amx(floats: &Floats, packed: &TileInput, out: &mut Outputs) {
        tiles::multiply::<AmxUnit, _>(floats, packed, out)
    }

    fn tile_panels_with_pairs<N: PanelFormat>(matrix: &Matrix, packed: &TileInput, out: &mut Outputs) {
        tiles::multiply::<PairUnit, _>(&WidenedPanels::<N>::new(matrix), packed, out)
    }

    fn tile_panels_with_amx<N: PanelFormat>(matrix: &Matrix, packed: &TileInput, out: &mut Outputs) {
        tiles::multiply::<AmxUnit, _>(&WidenedPanels::<N>::new(matrix), packed, out)
    }
}

/// Multiplies through tiles of AMX, or otherwise of `vdpbf16ps`; likewise `tile_panels`.
pub fn tile(level: Level, floats: &Floats, packed: &TileInput, out: &mut Outputs) {
    if has_tiles(level) {
        tile_with_amx(level, floats, packed, out)
    } else {
        tile_with_pairs(level, floats, packed, out)
    }
}

pub fn tile_panels<N: PanelFormat>(level: Level, matrix: &Matrix, packed: &TileInput, out: &mut Outputs) {
    if has_tiles(level) {
        tile_panels_with_amx::<N>(level, matrix, packed, out);
    } else {
        tile_panels_with_pairs::<N>(level, matrix, packed, out);
    }
}

/// Whether AMX tiles compute a test product correctly.
///
/// # Safety
/// The machine has tiles, and this process is allowed to use them.
#[cfg(target_arch = "x86_64")]
pub unsafe fn tiles_compute_correctly() -> bool {
    // SAFETY: the caller guarantees this.
    unsafe { tiles::amx::computes_correctly::<AmxUnit>() }
}
