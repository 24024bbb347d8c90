//! AVX2 with FMA and F16C: 64 bytes, 16 integers or 16 floats take two registers.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is a few instructions, and `PanelLanes` states the requirements"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::input::{ActivationBlock, Input, InputPart};
use super::numbers::PanelFormat;
use super::product::{self, PanelLanes};
use crate::kernels::outputs::Outputs;
use crate::matrix::{Matrix, Rows};

#[target_feature(enable = "avx2,fma,f16c")]
pub fn prepare_part(x: &Rows, part: InputPart<'_>) {
    part.fill(x, ActivationBlock::of);
}

/// # Safety
/// `product::check` has passed, and `N` is the matrix's format.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn multiply<N: PanelFormat>(
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    // SAFETY: the processor has the features of this function; the shapes were checked.
    unsafe { product::multiply::<Avx2, N>(1, matrix, panels, input, out) }
}

struct Avx2;

/// Two registers: outputs 0 to 7, and outputs 8 to 15.
type Registers<T> = [T; 2];

#[inline(always)]
fn map_two<A: Copy, B>(a: Registers<A>, operation: impl Fn(A) -> B) -> Registers<B> {
    [operation(a[0]), operation(a[1])]
}

#[inline(always)]
fn zip_two<A: Copy, B: Copy, C>(
    a: Registers<A>,
    b: Registers<B>,
    operation: impl Fn(A, B) -> C,
) -> Registers<C> {
    [operation(a[0], b[0]), operation(a[1], b[1])]
}

/// The four numbers at `at`, repeated in each lane.
#[inline(always)]
unsafe fn quad(at: *const i8) -> __m256i {
    // SAFETY: the caller guarantees four numbers at `at`.
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

impl PanelLanes for Avx2 {
    type Bytes = Registers<__m256i>;
    type Ints = Registers<__m256i>;
    type Floats = Registers<__m256>;

    /// A sum takes two registers of integers and two of floats, so both sums take 8 of the 16 registers.
    const MAX_SUMS: usize = 2;

    #[inline(always)]
    unsafe fn load_bytes(at: *const u8) -> Self::Bytes {
        [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())]
    }

    #[inline(always)]
    unsafe fn and(bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        map_two(bytes, |bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(mask.cast_signed())))
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        zip_two(a, b, |a, b| _mm256_or_si256(a, b))
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes {
        // The shift by an immediate takes an `i32` constant, and Rust cannot convert the `u32` constant `BITS`.
        map_two(bytes, |bytes| _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(BITS.cast_signed())))
    }

    #[inline(always)]
    unsafe fn shift_left<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes {
        map_two(bytes, |bytes| _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(BITS.cast_signed())))
    }

    #[inline(always)]
    unsafe fn splat(number: i32) -> Self::Ints {
        [_mm256_set1_epi32(number); 2]
    }

    #[inline(always)]
    unsafe fn dot(sums: Self::Ints, numbers: Self::Bytes, at: *const i8) -> Self::Ints {
        // The sum of two products of at most 63 * 127 fits into an i16.
        zip_two(sums, numbers, |sums, numbers| {
            let twos = _mm256_maddubs_epi16(numbers, quad(at));
            _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)))
        })
    }

    #[inline(always)]
    unsafe fn splat_for_dot_128(_: i32) -> Self::Ints {
        Self::splat(0)
    }

    #[inline(always)]
    unsafe fn dot_128(sums: Self::Ints, numbers: Self::Bytes, at: *const i8) -> Self::Ints {
        // The sum of two products of 255 * 127 would not fit into an i16. After the subtraction of 128, and with the sign moved
        // to the other factor, a product is at most 128 * 127, and the sum fits. No activation is -128, whose
        // negative would not fit into an i8.
        zip_two(sums, numbers, |sums, numbers| {
            let signed = _mm256_xor_si256(numbers, _mm256_set1_epi8(-128));
            let twos = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(quad(at), signed));
            _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)))
        })
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> Self::Floats {
        map_two([at, at.wrapping_add(16)], |at| _mm256_cvtph_ps(_mm_loadu_si128(at.cast())))
    }

    #[inline(always)]
    unsafe fn load_u8(at: *const u8) -> Self::Floats {
        map_two([at, at.wrapping_add(8)], |at| {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())))
        })
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const u8) -> Self::Floats {
        map_two([at, at.wrapping_add(8)], |at| {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())))
        })
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> Self::Floats {
        map_two([at, at.wrapping_add(8)], |at| _mm256_loadu_ps(at))
    }

    #[inline(always)]
    unsafe fn store(floats: Self::Floats, at: *mut f32) {
        _mm256_storeu_ps(at, floats[0]);
        _mm256_storeu_ps(at.add(8), floats[1]);
    }

    #[inline(always)]
    unsafe fn multiply_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        zip_two(a, b, |a, b| _mm256_mul_ps(a, b))
    }

    #[inline(always)]
    unsafe fn add_scaled(sums: Self::Floats, a: Self::Floats, b: f32) -> Self::Floats {
        zip_two(sums, a, |sums, a| _mm256_fmadd_ps(a, _mm256_set1_ps(b), sums))
    }

    #[inline(always)]
    unsafe fn add_dot(sums: Self::Floats, ints: Self::Ints, scale: Self::Floats, b: f32) -> Self::Floats {
        let scale = map_two(scale, |scale| _mm256_mul_ps(scale, _mm256_set1_ps(b)));
        [0, 1].map(|half| _mm256_fmadd_ps(_mm256_cvtepi32_ps(ints[half]), scale[half], sums[half]))
    }
}
