//! Attention products of the x86 levels. The sums of up to six rows by a few vectors stay in registers over the whole depth. So
//! each number of the KV cache is read and widened once for these rows.
#![expect(unsafe_code, reason = "reads and writes vectors through pointers")]

use super::Product;

/// The most rows of a register tile: six rows of four AVX-512 vectors of sums take 24 of 32 registers.
const MAX_ROWS: usize = 6;
const LINE_BYTES: usize = 64;

/// A part of the product `c += a * b` with its sums in registers: some rows of `a` and `c`, some columns of `b` and `c`. Strides
/// are in numbers, `ahead` is in bytes.
struct RegisterTile<'a> {
    a: &'a [f32],
    a_stride: usize,
    b: &'a [u8],
    b_stride: usize,
    ahead: usize,
    depth: usize,
    c: &'a mut [f32],
    c_stride: usize,
}

/// Cuts a product into register tiles of 1 to `MAX_ROWS` rows and 1 to `max_vectors` vectors of `lanes` numbers. Calls `multiply`
/// with each tile and its rows and vectors.
#[inline(always)]
fn for_each_tile(
    product: Product,
    lanes: usize,
    max_vectors: usize,
    mut multiply: impl FnMut(RegisterTile, usize, usize),
) {
    let Product { left: a, right: b, depth, sums: c } = product;
    // Equal shares of rows: seven rows become four and three, not six and one.
    let share = a.rows.div_ceil(a.rows.div_ceil(MAX_ROWS));
    for row in (0..a.rows).step_by(share) {
        let rows = share.min(a.rows - row);
        let mut column = 0;
        while column < b.width {
            let vectors = max_vectors.min((b.width - column) / lanes);
            let tile = RegisterTile {
                a: &a.numbers[row * a.stride..],
                a_stride: a.stride,
                b: &b.bytes[column * b.kv_dtype.bytes()..],
                b_stride: b.width,
                // The first rows prefetch for all rows.
                ahead: if row == 0 { b.ahead } else { 0 },
                depth,
                c: &mut c.numbers[row * c.stride + column..],
                c_stride: c.stride,
            };
            multiply(tile, rows, vectors);
            column += vectors * lanes;
        }
    }
}

/// The kernels of a level, from its features, its vector type, the lanes of a vector, the possible numbers of vectors in a
/// register tile (the largest first), and the intrinsics.
macro_rules! level {
    (
        $features:literal, $vector:ident, $lanes:literal, $max:literal: $($fewer:literal)*,
        $zero:ident, $set:ident, $add:ident, $fma:ident, $load:ident, $store:ident, $widen:ident($load_half:ident)
    ) => {
        use std::arch::x86_64::*;
        use std::ops::Range;

        use super::super::{Product, Softmax, KvDtype, BLOCK_POSITIONS};
        use super::{RegisterTile, LINE_BYTES, MAX_ROWS, for_each_tile};

        const LANES: usize = $lanes;

        /// # Safety
        /// The processor has the features. `left` has `(rows - 1) * stride + depth` numbers; `right` has `depth` rows of
        /// `width`, a multiple of 16; `sums` has `(rows - 1) * stride + width` numbers.
        #[target_feature(enable = $features)]
        pub unsafe fn accumulate(product: Product) {
            let kv_dtype = product.right.kv_dtype;
            for_each_tile(product, LANES, $max, |tile, rows, vectors| {
                // SAFETY: there are 1 to `MAX_ROWS` rows and whole vectors, within the memory that the caller guarantees.
                unsafe {
                    match kv_dtype {
                        KvDtype::F16 => dispatch_rows::<true>(tile, rows, vectors),
                        KvDtype::F32 => dispatch_rows::<false>(tile, rows, vectors),
                    }
                }
            });
        }

        /// # Safety
        /// The same as for `product`, with `rows` for `M` and `vectors` for `N`.
        #[target_feature(enable = $features)]
        unsafe fn dispatch_rows<const F16: bool>(tile: RegisterTile, rows: usize, vectors: usize) {
            // SAFETY: `M` is `rows`; the caller guarantees the other conditions.
            unsafe {
                match rows {
                    1 => dispatch_vectors::<F16, 1>(tile, vectors),
                    2 => dispatch_vectors::<F16, 2>(tile, vectors),
                    3 => dispatch_vectors::<F16, 3>(tile, vectors),
                    4 => dispatch_vectors::<F16, 4>(tile, vectors),
                    5 => dispatch_vectors::<F16, 5>(tile, vectors),
                    _ => dispatch_vectors::<F16, MAX_ROWS>(tile, vectors),
                }
            }
        }

        /// # Safety
        /// The same as for `product`, with `vectors` for `N`.
        #[target_feature(enable = $features)]
        unsafe fn dispatch_vectors<const F16: bool, const M: usize>(tile: RegisterTile, vectors: usize) {
            // SAFETY: `N` is `vectors`; the caller guarantees the other conditions.
            unsafe {
                match vectors {
                    $($fewer => product::<F16, M, $fewer>(tile),)*
                    _ => product::<F16, M, $max>(tile),
                }
            }
        }

        /// # Safety
        /// The processor has the features. In the tile, `a` has `(M - 1) * a_stride + depth` numbers; `b` has `N` vectors at
        /// the start of each of `depth` rows that are `b_stride` numbers apart, in f16 if `F16`; `c` has `N` vectors in each
        /// of `M` rows.
        #[target_feature(enable = $features)]
        unsafe fn product<const F16: bool, const M: usize, const N: usize>(tile: RegisterTile) {
            let RegisterTile { a, a_stride, b, b_stride, ahead, depth, c, c_stride } = tile;
            let size = if F16 { 2 } else { 4 };
            let mut sums = [[$zero(); N]; M];
            for k in 0..depth {
                if ahead != 0 {
                    for line in 0..(N * LANES * size).div_ceil(LINE_BYTES) {
                        let at = b.as_ptr().wrapping_add(ahead + k * b_stride * size + line * LINE_BYTES);
                        _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    }
                }
                let mut numbers = [$zero(); N];
                for (vector, numbers) in numbers.iter_mut().enumerate() {
                    // SAFETY: row `k` is one of the `depth` rows of `b`, and the vector is within its width.
                    *numbers = unsafe { load::<F16>(b.as_ptr().add((k * b_stride + vector * LANES) * size)) };
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: row `row` of `a` has `depth` numbers.
                    let factor = $set(unsafe { *a.as_ptr().add(row * a_stride + k) });
                    for (sum, numbers) in sums.iter_mut().zip(numbers) {
                        *sum = $fma(factor, numbers, *sum);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    // SAFETY: row `row` of `c` is as wide as the tile.
                    unsafe {
                        let at = c.as_mut_ptr().add(row * c_stride + vector * LANES);
                        $store(at, $add($load(at), *sum));
                    }
                }
            }
        }

        /// # Safety
        /// `at` points to a vector of numbers, in f16 or f32, at any alignment.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load<const F16: bool>(at: *const u8) -> $vector {
            // SAFETY: the caller guarantees this.
            unsafe { if F16 { $widen($load_half(at.cast())) } else { $load(at.cast()) } }
        }

        #[target_feature(enable = $features)]
        pub fn step(state: &mut Softmax, scores: &mut [f32; BLOCK_POSITIONS], visible: Range<usize>) -> f32 {
            super::super::step(state, scores, visible)
        }
    };
}

pub mod avx2 {
    level!(
        "avx2,fma,f16c", __m256, 8, 2: 1,
        _mm256_setzero_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_storeu_ps,
        _mm256_cvtph_ps(_mm_loadu_si128)
    );
}

pub mod avx512 {
    level!(
        "avx512f", __m512, 16, 4: 1 2 3,
        _mm512_setzero_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_cvtph_ps(_mm256_loadu_si256)
    );
}
