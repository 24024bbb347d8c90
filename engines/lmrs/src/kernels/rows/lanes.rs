//! Registers of numbers side by side (lanes): the trait `Lanes`, over which products are written, and each level's type.
#![expect(unsafe_code, reason = "unaligned weights, and SIMD instructions")]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is a few instructions, and `Lanes` states the requirements"
)]

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::f16;

/// A register of f32 sums, or of numbers that are multiplied and added to such sums.
///
/// Each method is a few instructions of its level, inlined into a function that enables the level's features. Methods take
/// pointers because weights lie at any address.
///
/// # Safety
/// The machine has the level. Pointers lead to `LANES` numbers of their type, at any alignment.
pub trait Lanes: Copy {
    /// Numbers that are multiplied at once.
    const LANES: usize;
    /// The number of alternating sums for a row and a token, 1 or 2. Two are faster where additions to one sum would wait longer
    /// for each other than for memory.
    const CHAINS: usize = 2;
    /// Tokens that share each read of a row, at most 4: their sums stay in registers.
    const TOKENS_PER_READ: usize = 3;
    type Number: Number;

    unsafe fn zero() -> Self;
    unsafe fn load(numbers: *const Self::Number) -> Self;
    unsafe fn from_bf16(bits: *const u8) -> Self;
    /// `self + a * b`, rounded once if the level has FMA.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// Sums the lanes, always in the same order.
    unsafe fn sum(self) -> f32;

    /// Prefetches the line at an address, which need not be valid memory.
    #[inline(always)]
    fn prefetch_line(_: *const u8) {}
}

/// Lanes of f32. Floats of any format can be widened to them.
pub trait Wide: Lanes<Number = f32> {
    /// # Safety
    /// The same as for `Lanes`.
    unsafe fn from_f16(bits: *const u8) -> Self;
}

/// The number type of activations.
pub trait Number: Copy {
    fn widen(self) -> f32;
}

impl Number for f32 {
    fn widen(self) -> f32 {
        self
    }
}

/// The bits of a bf16 number.
impl Number for u16 {
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

/// Weights of a format that load as lanes of type `L`.
pub trait Weight<L> {
    const BYTES: usize;

    /// # Safety
    /// The same as for `Lanes`.
    unsafe fn load(bytes: *const u8) -> L;

    /// Widens the first number of `bytes`.
    fn widen(bytes: &[u8]) -> f32;
}

/// Weights of a format in row layout, for lanes of any `Wide` type. The implementations are in `crate::formats`.
pub trait Float {
    const BYTES: usize;

    /// # Safety
    /// The same as for `Lanes`.
    unsafe fn load<L: Wide>(bytes: *const u8) -> L;

    fn widen(bytes: &[u8]) -> f32;
}

impl<L: Wide, F: Float> Weight<L> for F {
    const BYTES: usize = F::BYTES;

    #[inline(always)]
    unsafe fn load(bytes: *const u8) -> L {
        F::load(bytes)
    }

    #[inline(always)]
    fn widen(bytes: &[u8]) -> f32 {
        F::widen(bytes)
    }
}

/// The portable level: plain loops for the compiler to vectorize. It has sixteen lanes, so that sums have the same order as in
/// AVX-512.
#[derive(Clone, Copy)]
pub struct PortableLanes([f32; 16]);

// Multiplication and addition round separately: without an FMA instruction, `f32::mul_add` would be slow.
impl Lanes for PortableLanes {
    const LANES: usize = 16;
    type Number = f32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 16])
    }

    #[inline(always)]
    unsafe fn load(numbers: *const f32) -> Self {
        Self(numbers.cast::<[f32; 16]>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        let mut sums = self.0;
        for (sum, (a, b)) in sums.iter_mut().zip(a.0.iter().zip(b.0)) {
            *sum += a * b;
        }
        Self(sums)
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    unsafe fn from_bf16(bits: *const u8) -> Self {
        let bits = bits.cast::<[u16; 16]>().read_unaligned();
        Self(bits.map(|bits| f32::from_bits(u32::from(u16::from_le(bits)) << 16)))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut sums = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
        }
        sums[0]
    }
}

impl Wide for PortableLanes {
    #[inline(always)]
    unsafe fn from_f16(bits: *const u8) -> Self {
        let bits = bits.cast::<[u16; 16]>().read_unaligned();
        Self(bits.map(|bits| f16::from_bits(u16::from_le(bits)).to_f32()))
    }
}

/// A level's registers of f32.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! lanes {
    (
        $(#[$documentation:meta])* $name:ident($register:ty), $lanes:literal, zero $zero:expr, load $load:ident,
        add_product |$sum:ident, $a:ident, $b:ident| $add_product:expr, add $add:ident, sum |$all:ident| $total:expr,
        from_bf16 |$bf16:ident| $from_bf16:expr, from_f16 |$f16:ident| $from_f16:expr, prefetch |$at:ident| $prefetch:expr
    ) => {
        $(#[$documentation])*
        #[derive(Clone, Copy)]
        pub struct $name($register);

        // SAFETY (for every method): the caller guarantees the level and the pointers, as `Lanes` demands.
        impl Lanes for $name {
            const LANES: usize = $lanes;
            type Number = f32;

            #[inline(always)]
            unsafe fn zero() -> Self {
                Self($zero)
            }

            #[inline(always)]
            unsafe fn load(numbers: *const f32) -> Self {
                Self($load(numbers))
            }

            #[inline(always)]
            unsafe fn add_product(self, a: Self, b: Self) -> Self {
                let ($sum, $a, $b) = (self.0, a.0, b.0);
                Self($add_product)
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                Self($add(self.0, other.0))
            }

            #[inline(always)]
            unsafe fn from_bf16($bf16: *const u8) -> Self {
                Self($from_bf16)
            }

            #[inline(always)]
            unsafe fn sum(self) -> f32 {
                let $all = self.0;
                $total
            }

            #[inline(always)]
            fn prefetch_line($at: *const u8) {
                $prefetch
            }
        }

        impl Wide for $name {
            #[inline(always)]
            unsafe fn from_f16($f16: *const u8) -> Self {
                Self($from_f16)
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
lanes!(
    /// AVX2 registers of 256 bits, with FMA and F16C.
    F32x8(__m256), 8,
    zero _mm256_setzero_ps(),
    load _mm256_loadu_ps,
    add_product |sum, a, b| _mm256_fmadd_ps(a, b, sum),
    add _mm256_add_ps,
    sum |all| {
        let fours = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
        let twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
        _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)))
    },
    from_bf16 |bits| {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(bits.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    },
    from_f16 |bits| _mm256_cvtph_ps(_mm_loadu_si128(bits.cast())),
    prefetch |at| prefetch(at)
);

#[cfg(target_arch = "x86_64")]
lanes!(
    /// AVX-512 registers of 512 bits.
    F32x16(__m512), 16,
    zero _mm512_setzero_ps(),
    load _mm512_loadu_ps,
    add_product |sum, a, b| _mm512_fmadd_ps(a, b, sum),
    add _mm512_add_ps,
    sum |all| _mm512_reduce_add_ps(all),
    from_bf16 |bits| {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bits.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    },
    from_f16 |bits| _mm512_cvtph_ps(_mm256_loadu_si256(bits.cast())),
    prefetch |at| prefetch(at)
);

#[cfg(target_arch = "aarch64")]
lanes!(
    /// NEON registers of 128 bits.
    F32x4(float32x4_t), 4,
    zero vdupq_n_f32(0.0),
    load vld1q_f32,
    add_product |sum, a, b| vfmaq_f32(sum, a, b),
    add vaddq_f32,
    sum |all| vaddvq_f32(all),
    // Loaded as bytes, because weights of a file may lie at odd addresses.
    from_bf16 |bits| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vreinterpret_u16_u8(vld1_u8(bits))))),
    // Rust has no stable intrinsics for f16 on ARM.
    from_f16 |bits| vld1q_f32(bits.cast::<[u16; 4]>().read_unaligned().map(|bits| f16::from_bits(bits).to_f32()).as_ptr()),
    prefetch |_at| ()
);

/// Prefetches into the second-level cache.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing, and every x86-64 has the instruction.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}
