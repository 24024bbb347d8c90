//! How near two engines are in what they compute, and how near they have to be.

use protocol::Facts;

/// What log-probabilities (natural logarithms) may differ by: in the middle of them, and at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub median: f64,
    pub most: f64,
}

/// Of engines that compute with the very same weights, in floats of this kind. An engine in f32 differs from another by
/// the order in which it adds; one in narrower floats by all that it rounds.
pub fn of_floats(dtype: &str) -> Bounds {
    match dtype {
        "f32" => Bounds { median: 1e-4, most: 1e-3 },
        "f16" => Bounds { median: 4e-3, most: 0.02 },
        "bf16" => Bounds { median: 0.025, most: 0.1 },
        other => panic!("nobody has said how near `{other}` is to f32"),
    }
}

/// Of quantised weights, held against the same numbers in f32. Kernels for them round activations to 8 bits too, block by
/// block, which is all that this allows for: candle's come to 0.02 and 0.09. To take a model for its quantisation by 4
/// bits would show as 0.2 and 0.9.
pub const QUANTISED: Bounds = Bounds { median: 0.04, most: 0.18 };

/// The narrowest float that a load has in its way, by what the engine says.
pub fn least_precise(facts: &Facts) -> &str {
    let said = [&facts.compute_dtype, &facts.kv_dtype].into_iter().flatten().map(String::as_str);
    said.max_by(|one, other| of_floats(one).most.total_cmp(&of_floats(other).most)).unwrap_or("f32")
}

/// How far apart two lists of log-probabilities are.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    pub median: f64,
    pub most: f64,
}

impl Difference {
    pub fn of(one: &[Option<f64>], other: &[Option<f64>]) -> Self {
        assert_eq!(one.len(), other.len());
        // Minus infinity is `None`; no model here is as sure as that.
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
