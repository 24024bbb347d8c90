//! AVX-512 with VNNI: 64 bytes, 16 integers or 16 floats take one register.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is a few instructions, and `PanelLanes` states the requirements"
)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::input::{ActivationBlock, BLOCK_INPUTS, Input, InputPart};
use super::numbers::PanelFormat;
use super::product::{self, PanelLanes};
use crate::kernels::outputs::Outputs;
use crate::matrix::{Matrix, Rows};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub fn prepare_part(x: &Rows, part: InputPart<'_>) {
    part.fill(x, |x| quantize(x));
}

/// Quantizes a block to the same bits as `ActivationBlock::of`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn quantize(x: &[f32; BLOCK_INPUTS]) -> ActivationBlock {
    // SAFETY: each address is followed by 16 numbers.
    let halves = unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] };
    let magnitudes =
        halves.map(|half| _mm512_and_si512(_mm512_castps_si512(half), _mm512_set1_epi32(i32::MAX)));
    let largest = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitudes[0], magnitudes[1]));
    let (scale, inverse) = ActivationBlock::scale_and_inverse(f32::from_bits(largest.cast_unsigned()));
    let rounded = halves.map(|half| _mm512_cvtps_epi32(_mm512_mul_ps(half, _mm512_set1_ps(inverse))));
    let mut numbers = [0; BLOCK_INPUTS];
    let (first, last) = numbers.split_at_mut(16);
    // SAFETY: each address is followed by 16 bytes.
    unsafe {
        _mm_storeu_si128(first.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(rounded[0]));
        _mm_storeu_si128(last.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(rounded[1]));
    }
    ActivationBlock::new(numbers, scale, rounded.map(|half| _mm512_reduce_add_epi32(half)))
}

/// # Safety
/// `product::check` has passed, and `N` is the matrix's format.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn multiply<N: PanelFormat>(
    streams: usize,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    // SAFETY: the processor has the features of this function; the shapes were checked.
    unsafe { product::multiply::<Vnni, N>(streams, matrix, panels, input, out) }
}

struct Vnni;

impl PanelLanes for Vnni {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    /// A sum takes a register of integers and one of floats, so 12 sums take 24 of the 32 registers. A line, scales and masks
    /// need the others.
    const MAX_SUMS: usize = 12;

    #[inline(always)]
    unsafe fn load_bytes(at: *const u8) -> __m512i {
        _mm512_loadu_si512(at.cast())
    }

    #[inline(always)]
    unsafe fn and(bytes: __m512i, mask: u8) -> __m512i {
        _mm512_and_si512(bytes, _mm512_set1_epi8(mask.cast_signed()))
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(bytes: __m512i) -> __m512i {
        _mm512_srli_epi16::<BITS>(bytes)
    }

    #[inline(always)]
    unsafe fn shift_left<const BITS: u32>(bytes: __m512i) -> __m512i {
        _mm512_slli_epi16::<BITS>(bytes)
    }

    #[inline(always)]
    unsafe fn splat(number: i32) -> __m512i {
        _mm512_set1_epi32(number)
    }

    #[inline(always)]
    unsafe fn dot(sums: __m512i, numbers: __m512i, quad: *const i8) -> __m512i {
        let quad = _mm512_set1_epi32(quad.cast::<i32>().read_unaligned());
        keep_order(_mm512_dpbusd_epi32(sums, numbers, quad))
    }

    #[inline(always)]
    unsafe fn splat_for_dot_128(minus_128: i32) -> __m512i {
        Self::splat(minus_128)
    }

    #[inline(always)]
    unsafe fn dot_128(sums: __m512i, numbers: __m512i, quad: *const i8) -> __m512i {
        Self::dot(sums, numbers, quad)
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))
    }

    #[inline(always)]
    unsafe fn load_first(floats: __m512) -> __m512 {
        _mm512_castsi512_ps(keep_order(_mm512_castps_si512(floats)))
    }

    #[inline(always)]
    unsafe fn load_u8(at: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())))
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())))
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> __m512 {
        _mm512_loadu_ps(at)
    }

    #[inline(always)]
    unsafe fn store(floats: __m512, at: *mut f32) {
        _mm512_storeu_ps(at, floats)
    }

    #[inline(always)]
    unsafe fn multiply_floats(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn add_scaled(sums: __m512, a: __m512, b: f32) -> __m512 {
        _mm512_fmadd_ps(a, _mm512_set1_ps(b), sums)
    }

    #[inline(always)]
    unsafe fn add_dot(sums: __m512, ints: __m512i, scale: __m512, b: f32) -> __m512 {
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(ints), _mm512_mul_ps(scale, _mm512_set1_ps(b)), sums)
    }
}

/// Emits no instruction, but keeps the order of the source. The compiler would otherwise finish one sum after the other, and
/// each addition would wait for the previous one. During this wait, four additions to other sums can start.
#[inline]
#[target_feature(enable = "avx512f")]
fn keep_order(mut sums: __m512i) -> __m512i {
    // SAFETY: the assembly is empty.
    unsafe { asm!("/* {0} */", inout(zmm_reg) sums, options(nomem, nostack, preserves_flags)) };
    sums
}
