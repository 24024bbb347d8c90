//! The small steps between products, on one row at a time: norms, rotary positions, activation functions.

use crate::kernels::lanes::{logistic, sum, sum_of_squares};
use crate::matrix::Rows;
use crate::ops::Ops;
use crate::pool::MIN_SHARED_ROWS;
use crate::shape::Activation;
use crate::weights::Linear;

#[derive(Debug, Clone)]
pub struct Norm {
    pub weight: Vec<f32>,
    /// The bias of LayerNorm, which subtracts the mean first; `None` for RMSNorm.
    pub bias: Option<Vec<f32>>,
    pub epsilon: f32,
}

impl Norm {
    pub fn apply_rows(&self, ops: &Ops, x: &Rows, out: &mut Rows) {
        let (tokens, width) = (x.tokens(), x.width);
        out.reshape(tokens, width);
        let rows = x.all().chunks_exact(width).zip(out.all_mut().chunks_exact_mut(width));
        ops.pool.share_if(tokens >= MIN_SHARED_ROWS, rows, |_, (x, out)| self.apply(x, out));
    }

    /// `out[i] = weight[i] * x[i] / rms(x)`, or LayerNorm if there is a bias.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        out.copy_from_slice(x);
        self.apply_in_place(out);
    }

    pub fn apply_in_place(&self, x: &mut [f32]) {
        let width = x.len() as f32;
        if self.bias.is_some() {
            let mean = sum(x) / width;
            x.iter_mut().for_each(|x| *x -= mean);
        }
        let scale = 1.0 / (sum_of_squares(x) / width + self.epsilon).sqrt();
        for (x, weight) in x.iter_mut().zip(&self.weight) {
            *x = *x * scale * weight;
        }
        if let Some(bias) = &self.bias {
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    }
}

/// Rotary positions: the rotation of each pair of a head's dimensions from one position to the next, in radians. A pair is one
/// dimension of the first half and the corresponding dimension of the second half, as in Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    pub frequencies: Vec<f32>, // [rotated / 2]
}

/// Cosines and sines of the angles of each token of a pass.
#[derive(Debug, Clone, Default)]
pub struct Angles {
    cosines: Rows, // [tokens, rotated / 2]
    sines: Rows,
}

impl Rotation {
    /// Only the first `rotated` dimensions of a head rotate.
    pub fn new(theta: f64, rotated: usize) -> Self {
        // Each exponent, power and angle is rounded to f32, as in PyTorch.
        let frequency = |pair: usize| {
            let exponent = (2 * pair) as f32 / rotated as f32;
            1.0 / (theta.powf(f64::from(exponent)) as f32)
        };
        Self { frequencies: (0..rotated / 2).map(frequency).collect() }
    }

    /// Divides all frequencies by the factor, so that angles between positions become smaller.
    pub fn divide_all(&mut self, factor: f64) {
        self.frequencies.iter_mut().for_each(|frequency| *frequency /= factor as f32);
    }

    pub fn divide_each(&mut self, factors: &[f32]) {
        self.frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
    }

    /// Scales as Llama 3.1 and later do: divides low frequencies by `factor`, keeps high frequencies, and interpolates between
    /// them. A frequency is low if it has fewer than `low_waves` waves in the original context, and high if it has more than
    /// `high_waves`.
    pub fn scale_as_llama3(&mut self, factor: f64, low_waves: f64, high_waves: f64, original_context: f64) {
        for frequency in &mut self.frequencies {
            let exact = f64::from(*frequency);
            let waves = original_context * exact / std::f64::consts::TAU;
            let unscaled_part = ((waves - low_waves) / (high_waves - low_waves)).clamp(0.0, 1.0);
            *frequency = ((1.0 - unscaled_part) * exact / factor + unscaled_part * exact) as f32;
        }
    }

    pub fn angles(&self, positions: impl ExactSizeIterator<Item = usize>, angles: &mut Angles) {
        angles.cosines.reshape(positions.len(), self.frequencies.len());
        angles.sines.reshape(positions.len(), self.frequencies.len());
        for (token, position) in positions.enumerate() {
            let token_angles = angles.cosines.row_mut(token).iter_mut().zip(angles.sines.row_mut(token));
            for ((cosine, sine), frequency) in token_angles.zip(&self.frequencies) {
                let (exact_sine, exact_cosine) = f64::from(position as f32 * frequency).sin_cos();
                (*cosine, *sine) = (exact_cosine as f32, exact_sine as f32);
            }
        }
    }
}

impl Angles {
    /// The cosines and the sines of one token.
    pub fn of(&self, token: usize) -> (&[f32], &[f32]) {
        (self.cosines.row(token), self.sines.row(token))
    }

    /// Rotates every head of one token.
    pub fn rotate(&self, token: usize, heads: &mut [f32], head_dim: usize) {
        let (cosines, sines) = (self.cosines.row(token), self.sines.row(token));
        for head in heads.chunks_exact_mut(head_dim) {
            let (first, rest) = head.split_at_mut(cosines.len());
            for (((a, b), cosine), sine) in first.iter_mut().zip(rest).zip(cosines).zip(sines) {
                (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
            }
        }
    }
}

/// `gate = f(gate) * up` or, without `up`, `gate = f(gate)`; the bias of each matrix is added first.
pub fn activate(
    ops: &Ops,
    activation: Activation,
    (gate, gate_linear): (&mut Rows, &Linear),
    up: Option<(&mut Rows, &Linear)>,
) {
    let (width, tokens) = (gate.width, gate.tokens());
    let rows = gate.all_mut().chunks_exact_mut(width);
    match up {
        Some((up, up_linear)) => {
            let rows = rows.zip(up.all_mut().chunks_exact_mut(width));
            ops.pool.share_if(tokens >= MIN_SHARED_ACTIVATION_ROWS, rows, |_, (gate, up)| {
                gate_linear.add_bias(gate);
                up_linear.add_bias(up);
                activation.gate(gate, up);
            });
        }
        None => ops.pool.share_if(tokens >= MIN_SHARED_ACTIVATION_ROWS, rows, |_, gate| {
            gate_linear.add_bias(gate);
            activation.apply(gate);
        }),
    }
}

/// The fewest rows for which threads share the activation function. It is less than `MIN_SHARED_ROWS`, because these rows are
/// the widest and each number needs an exponential.
const MIN_SHARED_ACTIVATION_ROWS: usize = 4;

impl Activation {
    /// `x[i] = f(x[i])`
    pub fn apply(self, x: &mut [f32]) {
        match self {
            Self::Silu => x.iter_mut().for_each(|x| *x = silu(*x)),
            Self::GeluTanh => x.iter_mut().for_each(|x| *x = gelu_tanh(*x)),
        }
    }

    /// `gate[i] = f(gate[i]) * up[i]`
    pub fn gate(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Self::Silu => gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = silu(*gate) * up),
            Self::GeluTanh => gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = gelu_tanh(*gate) * up),
        }
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x * logistic(x)
}

/// `x / 2 * (1 + tanh(u))` is `x * logistic(2 u)`, with `u = sqrt(2 / pi) * (x + 0.044715 * x^3)`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    let double_root = 2.0 * 0.797_884_6;
    x * logistic(double_root * (x + 0.044_715 * x * x * x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normed_row_has_the_root_mean_square_of_its_weights() {
        let norm = Norm { weight: vec![2.0; 40], bias: None, epsilon: 0.0 };
        let x: Vec<f32> = (0..40).map(|i| i as f32 - 7.0).collect();
        let mut out = vec![0.0; 40];
        norm.apply(&x, &mut out);
        let squares: f32 = out.iter().map(|x| x * x).sum();
        assert!((squares / 40.0 - 4.0).abs() < 1e-5, "{squares}");
    }

    #[test]
    fn layer_norm_subtracts_the_mean_and_adds_its_bias() {
        let norm = Norm { weight: vec![1.0; 5], bias: Some(vec![3.0; 5]), epsilon: 1e-5 };
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        norm.apply_in_place(&mut x);
        assert!((x.iter().sum::<f32>() / 5.0 - 3.0).abs() < 1e-6);
        assert!((x[4] - x[0] - 4.0 / 2.0_f32.sqrt()).abs() < 1e-4);
    }

    #[test]
    fn both_activations_match_their_definitions() {
        for step in -80..80 {
            let x = step as f32 / 10.0;
            let exact = f64::from(x);
            let tanh = ((2.0 / std::f64::consts::PI).sqrt() * (exact + 0.044715 * exact.powi(3))).tanh();
            let (mut silus, mut gelus) = ([x], [x]);
            Activation::Silu.apply(&mut silus);
            Activation::GeluTanh.gate(&mut gelus, &[1.0]);
            assert!((f64::from(silus[0]) - exact / (1.0 + (-exact).exp())).abs() < 1e-6, "{x}");
            assert!((f64::from(gelus[0]) - exact / 2.0 * (1.0 + tanh)).abs() < 1e-6, "{x}");
        }
    }
}
