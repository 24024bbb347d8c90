//! The activation between the matrices of a feed-forward.

use crate::kernels::lanes::logistic;
use crate::ops::Ops;
use crate::rows::Rows;
use crate::shape::Activation;
use crate::share::share_if;
use crate::weights::Linear;

/// `gate = f(gate) * up` or, without `up`, `gate = f(gate)`; the bias of each matrix is added first.
pub fn apply(
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
            share_if(tokens >= SHARED, &ops.pool, rows, |_, (gate, up)| {
                gate_linear.add_bias(gate);
                up_linear.add_bias(up);
                activation.gate(gate, up);
            });
        }
        None => share_if(tokens >= SHARED, &ops.pool, rows, |_, gate| {
            gate_linear.add_bias(gate);
            activation.apply(gate);
        }),
    }
}

/// From this number of rows, threads share the work: sooner than in other steps, because these rows are the widest and each
/// number needs an exponential.
const SHARED: usize = 4;

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

/// `x / 2 * (1 + tanh(u))` is `x * logistic(2 u)`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    let twice_root = 2.0 * 0.797_884_6;
    x * logistic(twice_root * (x + 0.044_715 * x * x * x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_what_their_papers_say() {
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
