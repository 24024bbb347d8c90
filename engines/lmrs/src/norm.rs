//! RMSNorm and LayerNorm, over the hidden size or over one head.

use crate::kernels::lanes::{sum, sum_of_squares};
use crate::ops::Ops;
use crate::rows::Rows;
use crate::share::{SHARED, share_if};

#[derive(Debug, Clone)]
pub struct Norm {
    pub weight: Vec<f32>,
    /// The bias of LayerNorm, which subtracts the mean first.
    pub bias: Option<Vec<f32>>,
    pub epsilon: f32,
}

impl Norm {
    pub fn apply_rows(&self, ops: &Ops, x: &Rows, out: &mut Rows) {
        let (tokens, width) = (x.tokens(), x.width);
        out.reshape(tokens, width);
        let rows = x.all().chunks_exact(width).zip(out.all_mut().chunks_exact_mut(width));
        share_if(tokens >= SHARED, &ops.pool, rows, |_, (x, out)| self.apply(x, out));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_leaves_a_norm_with_the_length_that_its_weights_give_it() {
        let norm = Norm { weight: vec![2.0; 40], bias: None, epsilon: 0.0 };
        let x: Vec<f32> = (0..40).map(|i| i as f32 - 7.0).collect();
        let mut out = vec![0.0; 40];
        norm.apply(&x, &mut out);
        let squares: f32 = out.iter().map(|x| x * x).sum();
        assert!((squares / 40.0 - 4.0).abs() < 1e-5, "{squares}");
    }

    #[test]
    fn layer_norm_takes_the_mean_away_and_adds_its_bias() {
        let norm = Norm { weight: vec![1.0; 5], bias: Some(vec![3.0; 5]), epsilon: 1e-5 };
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        norm.apply_in_place(&mut x);
        assert!((x.iter().sum::<f32>() / 5.0 - 3.0).abs() < 1e-6);
        assert!((x[4] - x[0] - 4.0 / 2.0_f32.sqrt()).abs() < 1e-4);
    }
}
