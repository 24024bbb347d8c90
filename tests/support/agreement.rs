//! The difference between the outputs of two engines, and its bounds.

use protocol::Facts;

/// The bounds on differences of log-probabilities (natural logarithms): the median, and the largest.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub median: f64,
    pub most: f64,
}

/// The bounds for engines that compute with the same weights in this float dtype. Engines in f32 differ by the order of
/// additions; engines in narrower floats also by rounding.
pub fn of_floats(dtype: &str) -> Bounds {
    match dtype {
        "f32" => Bounds { median: 1e-4, most: 1e-3 },
        "f16" => Bounds { median: 4e-3, most: 0.02 },
        "bf16" => Bounds { median: 0.025, most: 0.1 },
        other => panic!("nobody has said how near `{other}` is to f32"),
    }
}

/// The bounds for quantised weights against the same numbers in f32. Kernels for quantised weights also round activations to
/// 8 bits, block by block. candle's kernels reach 0.02 and 0.09; the error of a 4-bit quantisation would be 0.2 and 0.9.
pub const QUANTISED: Bounds = Bounds { median: 0.04, most: 0.18 };

/// The least precise of the dtypes that an engine reports for computing and for the KV cache.
pub fn least_precise(facts: &Facts) -> &str {
    let said = [&facts.compute_dtype, &facts.kv_dtype].into_iter().flatten().map(String::as_str);
    said.max_by(|one, other| of_floats(one).most.total_cmp(&of_floats(other).most)).unwrap_or("f32")
}

/// The difference between two lists of log-probabilities.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    pub median: f64,
    pub most: f64,
}

impl Difference {
    pub fn of(one: &[Option<f64>], other: &[Option<f64>]) -> Self {
        assert_eq!(one.len(), other.len());
        // `None` means minus infinity, a probability of zero, which no model here gives.
        let apart = one.iter().zip(other).map(|(one, other)| (one.unwrap() - other.unwrap()).abs());
        let mut apart: Vec<f64> = apart.collect();
        apart.sort_by(f64::total_cmp);
        Self { median: apart[apart.len() / 2], most: apart[apart.len() - 1] }
    }

    pub fn is_within(self, bounds: Bounds) -> bool {
        self.median <= bounds.median && self.most <= bounds.most
    }
}

#[track_caller]
pub fn assert_agree(one: &[Option<f64>], other: &[Option<f64>], bounds: Bounds, who: &str) {
    let difference = Difference::of(one, other);
    assert!(difference.is_within(bounds), "{who}: {difference:?}, and allowed is {bounds:?}");
}
