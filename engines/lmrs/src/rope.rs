//! Rotary positions: each pair of a head's dimensions is rotated by an angle that grows with the position.
//!
//! A pair is one dimension of the first half and the corresponding one of the second, as in Hugging Face.

use crate::rows::Rows;

/// The rotation of each pair from one position to the next, in radians.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    pub frequencies: Vec<f32>, // [rotated / 2]
}

/// Cosines and sines for the tokens of a pass.
#[derive(Debug, Clone, Default)]
pub struct Angles {
    cosines: Rows, // [tokens, rotated / 2]
    sines: Rows,
}

impl Rotation {
    /// Only the first `rotated` dimensions of a head rotate.
    pub fn new(theta: f64, rotated: usize) -> Self {
        // Exponents, powers and angles are rounded to f32 one after the other, as in PyTorch.
        let frequency = |pair: usize| {
            let exponent = (2 * pair) as f32 / rotated as f32;
            1.0 / (theta.powf(f64::from(exponent)) as f32)
        };
        Self { frequencies: (0..rotated / 2).map(frequency).collect() }
    }

    /// Divides all frequencies: positions become denser by this factor.
    pub fn divide_all(&mut self, factor: f64) {
        self.frequencies.iter_mut().for_each(|frequency| *frequency /= factor as f32);
    }

    pub fn divide(&mut self, factors: &[f32]) {
        self.frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
    }

    /// Llama 3.1 and later: low frequencies are divided by `factor`, high ones stay, those between are mixed.
    pub fn stretch_slow_waves(&mut self, factor: f64, low: f64, high: f64, original_context: f64) {
        for frequency in &mut self.frequencies {
            let exact = f64::from(*frequency);
            let waves = original_context * exact / std::f64::consts::TAU;
            let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
            *frequency = ((1.0 - kept) * exact / factor + kept * exact) as f32;
        }
    }

    pub fn angles(&self, positions: impl ExactSizeIterator<Item = usize>, angles: &mut Angles) {
        angles.cosines.reshape(positions.len(), self.frequencies.len());
        angles.sines.reshape(positions.len(), self.frequencies.len());
        for (token, position) in positions.enumerate() {
            let turned = angles.cosines.row_mut(token).iter_mut().zip(angles.sines.row_mut(token));
            for ((cosine, sine), frequency) in turned.zip(&self.frequencies) {
                let (exact_sine, exact_cosine) = f64::from(position as f32 * frequency).sin_cos();
                (*cosine, *sine) = (exact_cosine as f32, exact_sine as f32);
            }
        }
    }
}

impl Angles {
    /// Rotates every head of one token.
    pub fn turn(&self, token: usize, heads: &mut [f32], head_dim: usize) {
        let (cosines, sines) = (self.cosines.row(token), self.sines.row(token));
        for head in heads.chunks_exact_mut(head_dim) {
            let (first, rest) = head.split_at_mut(cosines.len());
            for (((one, other), cosine), sine) in first.iter_mut().zip(rest).zip(cosines).zip(sines) {
                (*one, *other) = (*one * cosine - *other * sine, *other * cosine + *one * sine);
            }
        }
    }
}
