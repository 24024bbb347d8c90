//! Attention products, 8 numbers at a time. Sums of 6 rows by up to 2 vectors stay in registers over the whole depth. So each
//! number of the cache is read and widened once for all rows.
#![expect(unsafe_code, reason = "reads and writes vectors through pointers")]

use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_add_ps, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};
use std::ops::Range;

use super::{Product, Softmax, Stored, Sums, TILE, portable};

const LANES: usize = 8;
const ROWS: usize = 6;
/// Bytes of a cache line.
const LINE: usize = 64;

/// # Safety
/// The processor has the features. `left` has `(rows - 1) * stride + depth` numbers; `right` has `depth` rows of `width`, a
/// multiple of 16; `sums` has `(rows - 1) * stride + width` numbers.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn accumulate(product: Product) {
    let Product { left: a, right: b, depth, sums: Sums { numbers: c, stride: c_stride } } = product;
    // Equal shares of rows: 7 are 4 and 3, not 6 and 1.
    let shares = a.rows.div_ceil(ROWS);
    let share = a.rows.div_ceil(shares);
    for row in (0..a.rows).step_by(share) {
        let rows = share.min(a.rows - row);
        let mut column = 0;
        while column < b.width {
            let vectors = 2.min((b.width - column) / LANES);
            let block = Block {
                a: &a.numbers[row * a.stride..],
                a_stride: a.stride,
                b: &b.bytes[column * b.stored.bytes()..],
                b_stride: b.width,
                // Prefetches once for all rows.
                ahead: if row == 0 { b.ahead } else { 0 },
                depth,
                c: &mut c[row * c_stride + column..],
                c_stride,
            };
            // SAFETY: there are 1 to `ROWS` rows and whole vectors, within the memory that the caller guarantees.
            unsafe {
                match b.stored {
                    Stored::F16 => by_rows::<true>(block, rows, vectors),
                    Stored::F32 => by_rows::<false>(block, rows, vectors),
                }
            }
            column += vectors * LANES;
        }
    }
}

/// Some rows of `a` and `c`, and some columns of `b` and `c`.
struct Block<'a> {
    a: &'a [f32],
    a_stride: usize,
    b: &'a [u8],
    b_stride: usize,
    ahead: usize,
    depth: usize,
    c: &'a mut [f32],
    c_stride: usize,
}

/// # Safety
/// As of `product`, with `rows` for `M`, 1 to `ROWS`, and `vectors` for `N`, 1 to 2.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_rows<const HALF: bool>(block: Block, rows: usize, vectors: usize) {
    // SAFETY: `M` is `rows`; the caller guarantees the rest.
    unsafe {
        match rows {
            1 => by_vectors::<HALF, 1>(block, vectors),
            2 => by_vectors::<HALF, 2>(block, vectors),
            3 => by_vectors::<HALF, 3>(block, vectors),
            4 => by_vectors::<HALF, 4>(block, vectors),
            5 => by_vectors::<HALF, 5>(block, vectors),
            _ => by_vectors::<HALF, ROWS>(block, vectors),
        }
    }
}

/// # Safety
/// As of `product`, with `vectors` for `N`, 1 to 2.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_vectors<const HALF: bool, const M: usize>(block: Block, vectors: usize) {
    // SAFETY: `N` is `vectors`; the caller guarantees the rest.
    unsafe {
        match vectors {
            1 => product::<HALF, M, 1>(block),
            _ => product::<HALF, M, 2>(block),
        }
    }
}

/// # Safety
/// The processor has the features. In the block, `a` has `(M - 1) * a_stride + depth` numbers; `b` has `N` vectors at the start
/// of each of `depth` rows that are `b_stride` numbers apart, in f16 if `HALF`; `c` has `N` vectors in each of `M` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const HALF: bool, const M: usize, const N: usize>(block: Block) {
    let Block { a, a_stride, b, b_stride, ahead, depth, c, c_stride } = block;
    let size = if HALF { 2 } else { 4 };
    let mut sums = [[_mm256_setzero_ps(); N]; M];
    for k in 0..depth {
        if ahead != 0 {
            for line in 0..(N * LANES * size).div_ceil(LINE) {
                let at = b.as_ptr().wrapping_add(ahead + k * b_stride * size + line * LINE);
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
        }
        let mut numbers = [_mm256_setzero_ps(); N];
        for (vector, numbers) in numbers.iter_mut().enumerate() {
            // SAFETY: row `k` is one of the `depth` rows of `b`, and the vector is within its width.
            *numbers = unsafe { load::<HALF>(b.as_ptr().add((k * b_stride + vector * LANES) * size)) };
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: row `row` of `a` has `depth` numbers.
            let factor = _mm256_set1_ps(unsafe { *a.as_ptr().add(row * a_stride + k) });
            for (sum, numbers) in sums.iter_mut().zip(numbers) {
                *sum = _mm256_fmadd_ps(factor, numbers, *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (vector, sum) in sums.iter().enumerate() {
            // SAFETY: row `row` of `c` is as wide as the block.
            unsafe {
                let at = c.as_mut_ptr().add(row * c_stride + vector * LANES);
                _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), *sum));
            }
        }
    }
}

/// # Safety
/// `at` points to a vector of numbers, in f16 or f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const HALF: bool>(at: *const u8) -> __m256 {
    // SAFETY: the caller guarantees this; neither load requires alignment.
    unsafe { if HALF { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) } else { _mm256_loadu_ps(at.cast()) } }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn step(state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    portable::step(state, scores, seen)
}
