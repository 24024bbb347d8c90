//! NEON: 64 bytes, 16 integers or 16 floats take four registers.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is a few instructions, and `PanelLanes` states the requirements"
)]

use std::arch::aarch64::*;
use std::ops::Range;

use half::f16;

use super::input::Input;
use super::numbers::PanelFormat;
use super::product::{self, PanelLanes};
use crate::kernels::outputs::Outputs;
use crate::matrix::Matrix;

/// # Safety
/// `product::check` has passed, and `N` is the matrix's format.
pub unsafe fn multiply<N: PanelFormat>(
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    // SAFETY: every 64-bit ARM processor that Rust supports has NEON; the shapes were checked.
    unsafe { product::multiply::<Neon, N>(1, matrix, panels, input, out) }
}

struct Neon;

/// Four registers: outputs 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
type Registers<T> = [T; 4];

#[inline(always)]
fn zip_four<A: Copy, B: Copy, C>(
    a: Registers<A>,
    b: Registers<B>,
    operation: impl Fn(A, B) -> C,
) -> Registers<C> {
    [operation(a[0], b[0]), operation(a[1], b[1]), operation(a[2], b[2]), operation(a[3], b[3])]
}

/// Adds to each lane the dot product of its four signed numbers and the four activations at `quad`. No activation is -128, so the
/// sum of two products fits into an i16.
#[inline(always)]
unsafe fn dot_signed(
    sums: Registers<int32x4_t>,
    numbers: Registers<int8x16_t>,
    quad: *const i8,
) -> Registers<int32x4_t> {
    let x = vreinterpretq_s8_s32(vdupq_n_s32(quad.cast::<i32>().read_unaligned()));
    zip_four(sums, numbers, |sums, numbers| {
        let lower = vmull_s8(vget_low_s8(numbers), vget_low_s8(x));
        vpadalq_s16(sums, vpaddq_s16(lower, vmull_high_s8(numbers, x)))
    })
}

impl PanelLanes for Neon {
    type Bytes = Registers<uint8x16_t>;
    type Ints = Registers<int32x4_t>;
    type Floats = Registers<float32x4_t>;

    /// A sum takes four registers of integers and four of floats, so both sums take 16 of the 32 registers.
    const MAX_SUMS: usize = 2;

    #[inline(always)]
    unsafe fn load_bytes(at: *const u8) -> Self::Bytes {
        [0, 16, 32, 48].map(|part| vld1q_u8(at.add(part)))
    }

    #[inline(always)]
    unsafe fn and(bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        bytes.map(|bytes| vandq_u8(bytes, vdupq_n_u8(mask)))
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        zip_four(a, b, |a, b| vorrq_u8(a, b))
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|bytes| vshlq_u8(bytes, vdupq_n_s8(-(BITS as i8))))
    }

    #[inline(always)]
    unsafe fn shift_left<const BITS: u32>(bytes: Self::Bytes) -> Self::Bytes {
        bytes.map(|bytes| vshlq_u8(bytes, vdupq_n_s8(BITS as i8)))
    }

    #[inline(always)]
    unsafe fn splat(number: i32) -> Self::Ints {
        [vdupq_n_s32(number); 4]
    }

    #[inline(always)]
    unsafe fn dot(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints {
        dot_signed(sums, numbers.map(|numbers| vreinterpretq_s8_u8(numbers)), quad)
    }

    #[inline(always)]
    unsafe fn splat_for_dot_128(_: i32) -> Self::Ints {
        Self::splat(0)
    }

    #[inline(always)]
    unsafe fn dot_128(sums: Self::Ints, numbers: Self::Bytes, quad: *const i8) -> Self::Ints {
        let signed = numbers.map(|numbers| vreinterpretq_s8_u8(veorq_u8(numbers, vdupq_n_u8(128))));
        dot_signed(sums, signed, quad)
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> Self::Floats {
        // Intrinsics for f16 are not stable yet.
        let bits: [u16; 16] = at.cast::<[u16; 16]>().read_unaligned();
        Self::load_f32(bits.map(|bits| f16::from_bits(bits).to_f32()).as_ptr())
    }

    #[inline(always)]
    unsafe fn load_u8(at: *const u8) -> Self::Floats {
        Self::load_f32(at.cast::<[u8; 16]>().read().map(f32::from).as_ptr())
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const u8) -> Self::Floats {
        Self::load_f32(at.cast::<[i8; 16]>().read().map(f32::from).as_ptr())
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> Self::Floats {
        [0, 4, 8, 12].map(|part| vld1q_f32(at.add(part)))
    }

    #[inline(always)]
    unsafe fn store(floats: Self::Floats, at: *mut f32) {
        vst1q_f32(at, floats[0]);
        vst1q_f32(at.add(4), floats[1]);
        vst1q_f32(at.add(8), floats[2]);
        vst1q_f32(at.add(12), floats[3]);
    }

    #[inline(always)]
    unsafe fn multiply_floats(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        zip_four(a, b, |a, b| vmulq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn add_scaled(sums: Self::Floats, a: Self::Floats, b: f32) -> Self::Floats {
        zip_four(sums, a, |sums, a| vfmaq_n_f32(sums, a, b))
    }

    #[inline(always)]
    unsafe fn add_dot(sums: Self::Floats, ints: Self::Ints, scale: Self::Floats, b: f32) -> Self::Floats {
        let scale = scale.map(|scale| vmulq_n_f32(scale, b));
        [0, 1, 2, 3].map(|part| vfmaq_f32(sums[part], vcvtq_f32_s32(ints[part]), scale[part]))
    }
}
