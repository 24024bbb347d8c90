//! Activations as the kernels of panels read them: 8 bits, with one scale for 32 activations of a token.

use std::ops::Range;

use crate::matrix::Rows;

/// Inputs of an `ActivationBlock`, which share a scale.
pub const BLOCK_INPUTS: usize = 32;
/// The most tokens of a tile: their blocks are stored side by side, as a kernel reads them. 12 sums fit into AVX-512 registers.
pub const TILE_TOKENS: usize = 12;
/// Zeros fill the inputs up to a multiple of this number: the inputs of a section in the format with the longest sections.
const SECTION_INPUTS: usize = 256;

/// 32 activations of one token, with sums that kernels would otherwise compute again for each panel. One cache line.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub struct ActivationBlock {
    /// Activation i is `numbers[i] * scale`. No number is -128.
    pub numbers: [i8; BLOCK_INPUTS],
    pub scale: f32,
    /// -128 times the sum of the numbers: the correction for weights that are stored plus 128.
    pub minus_128: i32,
    /// -8 times the sum of the numbers: the correction for weights that are stored plus 8.
    pub minus_8: i32,
    /// -32 times the sum of the first 16 numbers, and of the last 16: the corrections for weights that are stored plus 32.
    pub minus_32: [i32; 2],
    /// Minus the sum of the rounded activations: the factor of the weights' minimum (`PanelFormat::minimum`).
    pub minus_sum: f32,
}

impl ActivationBlock {
    const ZERO: Self = Self {
        numbers: [0; BLOCK_INPUTS],
        scale: 0.0,
        minus_128: 0,
        minus_8: 0,
        minus_32: [0; 2],
        minus_sum: 0.0,
    };

    /// Rounds each activation to the nearest multiple of the scale, ties to even.
    pub fn of(x: &[f32; BLOCK_INPUTS]) -> Self {
        let largest_bits = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        let (scale, inverse) = Self::scale_and_inverse(f32::from_bits(largest_bits));
        // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
        let numbers = x.map(|x| (x * inverse + 12_582_912.0).to_bits() as i8);
        let sums = [0, 16].map(|half| numbers[half..half + 16].iter().map(|&x| i32::from(x)).sum::<i32>());
        Self::new(numbers, scale, sums)
    }

    /// The scale and its inverse, for this largest magnitude.
    #[inline(always)]
    pub fn scale_and_inverse(largest: f32) -> (f32, f32) {
        let inverse = 127.0 / largest;
        // If the magnitude is so small that the inverse overflows, all numbers become zero.
        (largest / 127.0, if inverse == f32::INFINITY { 0.0 } else { inverse })
    }

    /// `sums` are the sums of the first 16 numbers and of the last 16.
    #[inline(always)]
    pub fn new(numbers: [i8; BLOCK_INPUTS], scale: f32, sums: [i32; 2]) -> Self {
        let sum = sums[0] + sums[1];
        let mut block = Self { numbers, scale, ..Self::ZERO };
        block.minus_128 = -128 * sum;
        block.minus_8 = -8 * sum;
        block.minus_32 = [-32 * sums[0], -32 * sums[1]];
        block.minus_sum = -(sum as f32) * block.scale;
        block
    }
}

/// The blocks of all tokens: for each tile of up to 12 tokens, block 0 of each of them, block 1 of each, and so on.
#[derive(Debug, Clone, Default)]
pub struct Input {
    tokens: usize,
    inputs: usize,
    blocks: Vec<ActivationBlock>,
}

impl Input {
    /// Changes the shape. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, inputs: usize) {
        (self.tokens, self.inputs) = (tokens, inputs);
        self.blocks.resize(tokens * self.token_blocks(), ActivationBlock::ZERO);
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Blocks of one token, including padding.
    pub fn token_blocks(&self) -> usize {
        self.inputs.div_ceil(SECTION_INPUTS) * (SECTION_INPUTS / BLOCK_INPUTS)
    }

    /// The tokens of each tile, and its blocks.
    pub fn tiles(&self) -> impl Iterator<Item = (Range<usize>, &[ActivationBlock])> {
        let tiles = self.blocks.chunks(TILE_TOKENS * self.token_blocks().max(1));
        tiles.enumerate().map(|(tile, blocks)| {
            (tile * TILE_TOKENS..self.tokens.min(tile * TILE_TOKENS + TILE_TOKENS), blocks)
        })
    }

    pub fn block(&self, token: usize, block: usize) -> &ActivationBlock {
        let start = token / TILE_TOKENS * TILE_TOKENS;
        let tile_tokens = TILE_TOKENS.min(self.tokens - start);
        &self.blocks[start * self.token_blocks() + block * tile_tokens + token - start]
    }

    /// Divides the tokens into at most this number of parts, each of whole tiles, which threads fill.
    pub fn parts(&mut self, parts: usize) -> impl Iterator<Item = InputPart<'_>> {
        let part_tiles = self.tokens.div_ceil(TILE_TOKENS).div_ceil(parts.max(1)).max(1);
        let (tokens, token_blocks) = (self.tokens, self.token_blocks());
        let blocks = self.blocks.chunks_mut((part_tiles * TILE_TOKENS * token_blocks).max(1)).enumerate();
        blocks.map(move |(part, blocks)| {
            let start = part * part_tiles * TILE_TOKENS;
            InputPart { tokens: start..tokens.min(start + part_tiles * TILE_TOKENS), token_blocks, blocks }
        })
    }
}

/// Whole tiles of an input.
#[derive(Debug)]
pub struct InputPart<'a> {
    tokens: Range<usize>,
    /// Blocks of one token.
    token_blocks: usize,
    blocks: &'a mut [ActivationBlock],
}

impl InputPart<'_> {
    pub fn tokens(&self) -> Range<usize> {
        self.tokens.clone()
    }

    /// Fills the blocks from these tokens of `x`, each block with `quantize`.
    #[inline(always)]
    pub fn fill(self, x: &Rows, quantize: impl Fn(&[f32; BLOCK_INPUTS]) -> ActivationBlock) {
        for (tile, blocks) in self.blocks.chunks_mut(TILE_TOKENS * self.token_blocks).enumerate() {
            let start = self.tokens.start + tile * TILE_TOKENS;
            let tile_tokens = blocks.len() / self.token_blocks;
            for token in 0..tile_tokens {
                let (full, rest) = x.row(start + token).as_chunks::<BLOCK_INPUTS>();
                let mut remaining = blocks[token..].iter_mut().step_by(tile_tokens);
                for (x, block) in full.iter().zip(&mut remaining) {
                    *block = quantize(x);
                }
                if !rest.is_empty()
                    && let Some(block) = remaining.next()
                {
                    let mut x = [0.0; BLOCK_INPUTS];
                    x[..rest.len()].copy_from_slice(rest);
                    *block = quantize(&x);
                }
                remaining.for_each(|block| *block = ActivationBlock::ZERO);
            }
        }
    }
}
