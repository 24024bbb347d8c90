//! Random weights that are the same on every machine, in any order of access, and in every float dtype.
//!
//! A number depends only on the seed, its tensor's name and its index. So threads need no coordination, and a row needs no
//! rows before it. The code uses only integers and exactly defined operations, not the system's math library.

use std::ops::Range;

use anyhow::{Context, Result};

use crate::architecture::{Kind, Layout, Order, Part};
use crate::weights::{Weights, transposed};
use crate::{Dtype, blocks};

/// Untrained weights.
pub struct RandomWeights {
    pub seed: u64,
}

impl Weights for RandomWeights {
    fn encode(
        &self,
        part: &Part,
        layout: Layout,
        rows: Range<u64>,
        dtype: Dtype,
        bytes: &mut [u8],
    ) -> Result<()> {
        let (_, columns) = part.rows_in(layout);
        let mut values = vec![0.0; usize::try_from((rows.end - rows.start) * columns)?];
        let normal = Normal::of(self.seed, part);
        match (part.kind, part.order) {
            (Kind::Norm, order) => {
                // The factor in the network is 1; the stored value depends on the layout.
                let stored = if order == Order::PlusOne && layout == Layout::HuggingFace { 0.0 } else { 1.0 };
                values.fill(stored);
            }
            (Kind::NormBias, _) => {}
            (Kind::Bias, Order::Pairs { .. }) if layout == Layout::Gguf => {
                for (place, value) in values.iter_mut().enumerate() {
                    *value = normal.at(part.row_in_other_layout(place as u64, layout));
                }
            }
            (_, Order::Pairs { .. }) if layout == Layout::Gguf => {
                let width = usize::try_from(columns)?;
                for (row, values) in rows.zip(values.chunks_exact_mut(width)) {
                    normal.fill(part.row_in_other_layout(row, layout) * columns, values);
                }
            }
            (_, Order::Transposed) if layout == Layout::Gguf => {
                normal.fill(0, &mut values);
                values = transposed(&values, part.rows_in(Layout::HuggingFace))?;
            }
            _ => normal.fill(rows.start * columns, &mut values),
        }
        blocks::narrow(dtype, &values, bytes).with_context(|| format!("tensor `{}`", part.name))
    }
}

/// Nearly normal numbers of standard deviation 1/sqrt(fan in): the sum of four uniform ones.
struct Normal {
    key: u64,
    scale: f32,
}

/// Standard deviation of the sum of four uniform numbers of 16 bits: sqrt(4 * (65536^2 - 1) / 12).
const DEVIATION_OF_SUM: f64 = 37_837.226_7;
const MEAN_OF_SUM: i32 = 2 * 65535;

/// The smallest magnitude. Below it f16 has fewer bits than bf16, so the two would hold different numbers.
const SMALLEST: f32 = 1.0 / 131_072.0;

impl Normal {
    fn of(seed: u64, part: &Part) -> Self {
        let name = part.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let scale = (1.0 / ((part.fan_in as f64).sqrt() * DEVIATION_OF_SUM)) as f32;
        Self { key: mixed(mixed(seed) ^ name), scale }
    }

    fn fill(&self, first: u64, values: &mut [f32]) {
        for (place, value) in values.iter_mut().enumerate() {
            *value = self.at(first + place as u64);
        }
    }

    /// Rounded to bf16, and to zero below f16's precision, so that f32, bf16 and f16 hold the same weights.
    #[inline]
    fn at(&self, place: u64) -> f32 {
        let bits = mixed(self.key.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        let value = (sum as i32 - MEAN_OF_SUM) as f32 * self.scale;
        let rounded = value.to_bits() + 0x7fff + (value.to_bits() >> 16 & 1);
        let value = f32::from_bits(rounded & 0xffff_0000);
        if value.abs() < SMALLEST { 0.0 } else { value }
    }
}

/// Every bit of the input changes about half of the output's (the finaliser of SplitMix64).
#[inline]
fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_have_the_deviation_that_was_asked_for_and_no_mean() {
        let normal = Normal { key: 1, scale: (1.0 / (64.0_f64.sqrt() * DEVIATION_OF_SUM)) as f32 };
        let mut values = vec![0.0; 1 << 20];
        normal.fill(0, &mut values);
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 5e-4, "{mean}");
        assert!((square.sqrt() * 8.0 - 1.0).abs() < 2e-3, "{}", square.sqrt());
    }

    #[test]
    fn every_number_is_the_same_in_bf16_and_f16() {
        let normal = Normal { key: 3, scale: (1.0 / (4096.0_f64.sqrt() * DEVIATION_OF_SUM)) as f32 };
        let mut values = vec![0.0; 1 << 16];
        normal.fill(7, &mut values);
        for dtype in [Dtype::BF16, Dtype::F16] {
            let (mut bytes, mut again) = (vec![0; values.len() * 2], vec![1.0; values.len()]);
            blocks::narrow(dtype, &values, &mut bytes).unwrap();
            blocks::widen(dtype, &bytes, &mut again).unwrap();
            assert_eq!(values, again, "{dtype:?}");
        }
    }
}
