//! Rows of f32, f16 or bf16, stored as in files. Products widen the numbers to f32, except those that use
//! instructions for pairs of bf16.
#![expect(unsafe_code, reason = "unaligned weights, and SIMD instructions")]

use half::f16;
use model_files::Dtype;

use super::{Format, Storage};
use crate::kernels::rows::lanes::{Float, Number as _, Wide};
use crate::kernels::rows::{RowKernels, TileKernel};

pub static F32: Format = Format {
    name: "f32",
    dtype: Dtype::F32,
    is_requestable: true,
    storage: Storage::Rows(RowKernels::of::<InF32>()),
    tile: None,
    packed: None,
};

pub static F16: Format = Format {
    name: "f16",
    dtype: Dtype::F16,
    is_requestable: true,
    storage: Storage::Rows(RowKernels::of::<InF16>()),
    tile: None,
    packed: None,
};

pub static BF16: Format = Format {
    name: "bf16",
    dtype: Dtype::BF16,
    is_requestable: true,
    storage: Storage::Rows(RowKernels::of::<InBf16>().with_pairs()),
    tile: Some(TileKernel::OF_BF16_ROWS),
    packed: None,
};

/// The type parameter of generic kernels for weights in f32. The next two are for f16 and bf16.
pub struct InF32;
pub struct InF16;
pub struct InBf16;

impl Float for InF32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<L: Wide>(bytes: *const u8) -> L {
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe { L::load(bytes.cast()) }
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Float for InF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Wide>(bytes: *const u8) -> L {
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe { L::from_f16(bytes) }
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Float for InBf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Wide>(bytes: *const u8) -> L {
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe { L::from_bf16(bytes) }
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        u16::from_le_bytes([bytes[0], bytes[1]]).widen()
    }
}
