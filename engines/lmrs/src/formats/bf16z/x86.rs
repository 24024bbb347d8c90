//! The x86 instruction sets (levels): unpacking of 16 or 32 numbers at a time, and products with one or two tokens.
//!
//! A product with one or two tokens unpacks and multiplies each number in registers, so no unpacked weights are stored. Rows
//! that are packed together are multiplied together, so the activations are read once for all of them. As in the product with
//! plain rows (`kernels::rows::dots`), a lane has one sum over all parts of a row. The lanes are added after the last part.
#![expect(unsafe_code, reason = "vector instructions")]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "the functions are kernels of one level, and each states its requirements"
)]

use std::arch::x86_64::*;
use std::iter::Peekable;

use super::{
    BLOCK_ROWS, Block, Destination, EXPONENTS, Exception, GROUP_ROWS, Group, LINE_BYTES, MAX_FUSED_TOKENS,
    SECTION_BYTES, SECTION_INPUTS, parts, row_bytes,
};
use crate::kernels::Outputs;
use crate::kernels::rows::lanes::Lanes;
use crate::kernels::rows::paired::Paired;
use crate::matrix::Matrix;

#[target_feature(enable = "avx2")]
pub(super) fn unpack_avx2<const ROWS: usize>(
    headers: [&[u8]; ROWS],
    group: &Group,
    first_row: usize,
    destination: &mut Destination,
) {
    let exponents = headers.map(|header| {
        let header = &header[..EXPONENTS];
        // SAFETY: `header` has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(header.as_ptr().cast())) }
    });
    let (sign, mantissa) = (_mm256_set1_epi16(i16::MIN), _mm256_set1_epi16(0x7f));
    let (four_bits, out_of_range) = (_mm256_set1_epi16(15), _mm256_set1_epi16(i16::MIN));
    group.for_each_section::<ROWS>(first_row, destination, |row, section, destination| {
        let decode = |bytes: __m256i, signs: __m256i, indices: __m256i| {
            // The upper byte of each word gets an index out of range, which the shuffle turns into 0.
            let indices = _mm256_or_si256(_mm256_and_si256(indices, four_bits), out_of_range);
            let exponent = _mm256_slli_epi16::<7>(_mm256_shuffle_epi8(exponents[row], indices));
            let sign_and_mantissa =
                _mm256_or_si256(_mm256_and_si256(signs, sign), _mm256_and_si256(bytes, mantissa));
            _mm256_or_si256(exponent, sign_and_mantissa)
        };
        for half in 0..2 {
            // SAFETY: a section has three lines of two halves each; `destination` has 128 numbers.
            unsafe {
                let line = |at: usize| {
                    _mm256_loadu_si256(section.as_ptr().add(at * LINE_BYTES + half * (LINE_BYTES / 2)).cast())
                };
                let (first, second, indices) = (line(0), line(1), line(2));
                let mut store = |at: usize, numbers| {
                    _mm256_storeu_si256(destination.as_mut_ptr().add(at * 32 + half * 16).cast(), numbers);
                };
                store(0, decode(first, _mm256_slli_epi16::<8>(first), indices));
                store(1, decode(_mm256_srli_epi16::<8>(first), first, _mm256_srli_epi16::<4>(indices)));
                store(2, decode(second, _mm256_slli_epi16::<8>(second), _mm256_srli_epi16::<8>(indices)));
                store(3, decode(_mm256_srli_epi16::<8>(second), second, _mm256_srli_epi16::<12>(indices)));
            }
        }
    });
}

const SIGN: i16 = i16::MIN;
const SIGN_AND_MANTISSA: i16 = 0x807f_u16.cast_signed();
/// The ternary operation that selects bits: of the first operand where the third has 0, and of the second where it has 1.
const SELECT_BITS: i32 = 0b1101_1000;
/// The ternary operation `a & b | c`.
const AND_OR: i32 = 0b1110_1010;

/// The constants that decode a row.
#[derive(Clone, Copy)]
struct RowDecoder {
    /// Exponents at their position in a word, listed twice: the lookup uses five bits, and only the lower four are the index.
    exponents: __m512i,
    sign: __m512i,
    sign_and_mantissa: __m512i,
}

impl RowDecoder {
    /// # Safety
    ///
    /// The machine has AVX-512.
    #[inline(always)]
    unsafe fn of(header: &[u8]) -> Self {
        let header = &header[..EXPONENTS];
        let doubled = _mm256_broadcastsi128_si256(_mm_loadu_si128(header.as_ptr().cast()));
        Self {
            exponents: _mm512_slli_epi16::<7>(_mm512_cvtepu8_epi16(doubled)),
            sign: _mm512_set1_epi16(SIGN),
            sign_and_mantissa: _mm512_set1_epi16(SIGN_AND_MANTISSA),
        }
    }

    /// The numbers of a section in order, without the exceptions.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512, and `section` points to `SECTION_BYTES`.
    #[inline(always)]
    unsafe fn numbers(self, section: *const u8) -> [__m512i; SECTION_INPUTS / 32] {
        let line = |at: usize| _mm512_loadu_si512(section.add(at * LINE_BYTES).cast());
        let (first, second, indices) = (line(0), line(1), line(2));
        [
            self.decode(first, _mm512_slli_epi16::<8>(first), indices),
            self.decode(_mm512_srli_epi16::<8>(first), first, _mm512_srli_epi16::<4>(indices)),
            self.decode(second, _mm512_slli_epi16::<8>(second), _mm512_srli_epi16::<8>(indices)),
            self.decode(_mm512_srli_epi16::<8>(second), second, _mm512_srli_epi16::<12>(indices)),
        ]
    }

    /// Joins 32 mantissas (the lower bits of `mantissas`), signs (the highest bits of `signs`) and exponents to numbers.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512.
    #[inline(always)]
    unsafe fn decode(self, mantissas: __m512i, signs: __m512i, indices: __m512i) -> __m512i {
        let word = _mm512_ternarylogic_epi64::<SELECT_BITS>(mantissas, signs, self.sign);
        let exponent = _mm512_permutexvar_epi16(indices, self.exponents);
        _mm512_ternarylogic_epi64::<AND_OR>(word, self.sign_and_mantissa, exponent)
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn unpack_avx512<const ROWS: usize>(
    headers: [&[u8]; ROWS],
    group: &Group,
    first_row: usize,
    destination: &mut Destination,
) {
    // SAFETY: this function has the features.
    let decoders = headers.map(|header| unsafe { RowDecoder::of(header) });
    group.for_each_section::<ROWS>(first_row, destination, |row, section, destination| {
        // SAFETY: this function has the features.
        let numbers = unsafe { decoders[row].numbers(section.as_ptr()) };
        for (numbers, destination) in numbers.into_iter().zip(destination.as_chunks_mut::<32>().0) {
            // SAFETY: 32 numbers are one register.
            unsafe { _mm512_storeu_si512(destination.as_mut_ptr().cast(), numbers) };
        }
    });
}

/// The number of registers that hold the numbers of a section.
const STEPS: usize = SECTION_INPUTS / Paired::LANES;
type Numbers = [__m512i; STEPS];

/// # Safety
///
/// The machine has AVX-512 with bf16 products; the matrix has this format; `x` has the inputs of at most `MAX_FUSED_TOKENS`
/// tokens.
#[inline(always)]
pub unsafe fn multiply(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    match out.tokens() {
        1 => multiply_blocks::<1>(matrix, x, out),
        MAX_FUSED_TOKENS => multiply_blocks::<MAX_FUSED_TOKENS>(matrix, x, out),
        tokens => unreachable!("{tokens} tokens, of at most {MAX_FUSED_TOKENS}"),
    }
}

/// # Safety
///
/// The same as for `multiply`, with `TOKENS` tokens.
#[inline(always)]
unsafe fn multiply_blocks<const TOKENS: usize>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    let outputs = out.outputs();
    assert!(x.len() == TOKENS * matrix.inputs, "`x` does not have the inputs of each token");
    let mut output = outputs.start;
    while output < outputs.end {
        let block = Block::of(matrix.block(BLOCK_ROWS, row_bytes(matrix.inputs), output));
        let first_row = output % BLOCK_ROWS;
        let rows_of_block = first_row..block.rows().min(first_row + outputs.end - output);
        let mut sums = [[Paired::zero(); TOKENS]; BLOCK_ROWS];
        for part in parts(matrix.inputs) {
            let x: [_; TOKENS] = std::array::from_fn(|token| &x[token * matrix.inputs..][part.clone()]);
            let mut row = rows_of_block.start;
            while row < rows_of_block.end {
                let group = block.group(&part, row);
                let is_full = row % GROUP_ROWS == 0
                    && group.rows() == GROUP_ROWS
                    && rows_of_block.end - row >= GROUP_ROWS;
                if is_full {
                    add_rows::<GROUP_ROWS, TOKENS>(&group, 0, x, &mut sums[row..]);
                    row += GROUP_ROWS;
                } else {
                    add_rows::<1, TOKENS>(&group, row % GROUP_ROWS, x, &mut sums[row..]);
                    row += 1;
                }
            }
        }
        for token in 0..TOKENS {
            let token_outputs = &mut out.row_mut(token)[output - outputs.start..][..rows_of_block.len()];
            for (output, sums) in token_outputs.iter_mut().zip(&sums[rows_of_block.clone()]) {
                *output = sums[token].sum();
            }
        }
        output += rows_of_block.len();
    }
}

/// Multiplies `ROWS` rows of the group, from `first_row` on, with each token's part `x`, and adds the products to `totals`.
///
/// # Safety
///
/// The machine has AVX-512 and its products of bf16.
#[inline(always)]
unsafe fn add_rows<const ROWS: usize, const TOKENS: usize>(
    group: &Group,
    first_row: usize,
    x: [&[u16]; TOKENS],
    totals: &mut [[Paired; TOKENS]],
) {
    let inputs = group.inputs();
    assert!(
        x.iter().all(|x| x.len() == inputs) && first_row + ROWS <= group.rows(),
        "the inputs of `x` or the rows do not match the group"
    );
    let decoders = std::array::from_fn::<_, ROWS, _>(|row| RowDecoder::of(group.header(first_row + row)));
    let mut exceptions =
        std::array::from_fn::<_, ROWS, _>(|row| group.exceptions(first_row + row).peekable());
    let mut next_exception = next_position(&mut exceptions);
    let mut sums: [_; ROWS] = std::array::from_fn(|row| totals[row]);
    let x = x.map(<[u16]>::as_ptr);
    let sections = group.sections(first_row).chunks(group.section_distance()).take(inputs / SECTION_INPUTS);
    for (index, sections) in sections.enumerate() {
        let first_input = index * SECTION_INPUTS;
        let sections = &sections[..ROWS * SECTION_BYTES];
        let load = |token: usize, step: usize| Paired::load(x[token].add(first_input + step * Paired::LANES));
        let x: [[Paired; STEPS]; TOKENS] =
            std::array::from_fn(|token| std::array::from_fn(|step| load(token, step)));
        let has_exception = next_exception < first_input + SECTION_INPUTS;
        for row in 0..ROWS {
            let mut numbers = decoders[row].numbers(sections[row * SECTION_BYTES..].as_ptr());
            if has_exception {
                while let Some(exception) =
                    exceptions[row].next_if(|exception| exception.position() < first_input + SECTION_INPUTS)
                {
                    numbers = write_exception(numbers, exception, first_input);
                }
            }
            for (step, numbers) in numbers.into_iter().enumerate() {
                for (sum, x) in sums[row].iter_mut().zip(&x) {
                    *sum = sum.add_product(Paired::of(numbers), x[step]);
                }
            }
        }
        if has_exception {
            next_exception = next_position(&mut exceptions);
        }
    }
    // Without `black_box`, the compiler orders these instructions differently, which is slower. (Measured.)
    totals[..ROWS].copy_from_slice(&std::hint::black_box(sums));
}

/// The position of the next exception of any row.
#[inline(always)]
fn next_position(exceptions: &mut [Peekable<impl Iterator<Item = Exception>>]) -> usize {
    exceptions
        .iter_mut()
        .filter_map(|exceptions| exceptions.peek().map(|exception| exception.position()))
        .min()
        .unwrap_or(usize::MAX)
}

/// Writes an exception to its position among the numbers from `first_input` on.
///
/// # Safety
///
/// The machine has AVX-512.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f")]
unsafe fn write_exception(mut numbers: Numbers, exception: Exception, first_input: usize) -> Numbers {
    // SAFETY: any bits are valid in these registers, which have as many numbers as a section.
    let all = unsafe { &mut *std::ptr::from_mut(&mut numbers).cast::<[u16; SECTION_INPUTS]>() };
    // A position before `first_input` comes only from damaged data.
    if let Some(number) = exception.position().checked_sub(first_input).and_then(|index| all.get_mut(index)) {
        *number = exception.bits();
    }
    numbers
}
