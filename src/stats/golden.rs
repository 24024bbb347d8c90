//! Expected values of numpy, scipy and statsmodels, from `golden/make.py`.

use serde::Deserialize;

#[derive(Deserialize)]
pub struct Golden {
    pub special_functions: SpecialFunctions,
    pub student: Student,
    pub intervals: Vec<IntervalCase>,
    pub bootstraps: Vec<IntervalCase>,
    pub floors: Vec<FloorCase>,
    pub welch: Vec<SignificanceCase>,
    pub mann_whitney: Vec<SignificanceCase>,
    pub holm: Vec<HolmCase>,
    pub geometric_means: Vec<MeanCase>,
    pub summaries: Vec<SummaryCase>,
    pub outliers: Vec<OutlierCase>,
    pub paired_ratios: Vec<PairedCase>,
    pub slopes: Vec<SlopeCase>,
}

/// Each row has the arguments of a function, then its value.
#[derive(Deserialize)]
pub struct SpecialFunctions {
    pub ln_gamma: Vec<(f64, f64)>,
    pub incomplete_beta: Vec<(f64, f64, f64, f64)>,
    pub normal_above: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
pub struct Student {
    pub p: Vec<f64>,
    /// A row for each number of degrees of freedom from 1 on, with the quantiles at `p`.
    pub quantiles: Vec<Vec<f64>>,
    /// t, the degrees of freedom, and the probability above t.
    pub above: Vec<(f64, f64, f64)>,
}

#[derive(Deserialize)]
pub struct IntervalCase {
    pub values: Vec<f64>,
    pub low: f64,
    pub high: f64,
    /// Absent for a bootstrap.
    pub p: Option<f64>,
}

#[derive(Deserialize)]
pub struct FloorCase {
    pub log_ratios: Vec<f64>,
    pub floor: f64,
}

#[derive(Deserialize)]
pub struct SignificanceCase {
    #[serde(default)]
    pub method: String,
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    pub p: f64,
    /// The bounds of the interval of the difference; absent for tests without an interval.
    pub low: Option<f64>,
    pub high: Option<f64>,
}

#[derive(Deserialize)]
pub struct HolmCase {
    pub p: Vec<f64>,
    pub adjusted: Vec<f64>,
}

#[derive(Deserialize)]
pub struct MeanCase {
    pub values: Vec<f64>,
    pub mean: f64,
}

#[derive(Deserialize)]
pub struct SummaryCase {
    pub values: Vec<f64>,
    pub mean: f64,
    pub std: Option<f64>,
    pub min: f64,
    pub max: f64,
    pub median: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
}

#[derive(Deserialize)]
pub struct OutlierCase {
    pub values: Vec<f64>,
    /// The indices of the outliers.
    pub flagged: Vec<usize>,
}

#[derive(Deserialize)]
pub struct PairedCase {
    pub numerator: Vec<Vec<f64>>,
    pub denominator: Vec<Vec<f64>>,
    /// One log ratio for each block.
    pub blocks: Vec<f64>,
    /// The bounds of the interval of the mean of `blocks`.
    pub low: f64,
    pub high: f64,
}

#[derive(Deserialize)]
pub struct SlopeCase {
    pub times: Vec<f64>,
    pub values: Vec<f64>,
    pub slope: f64,
    pub low: f64,
    pub high: f64,
}

pub fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/golden.json")).unwrap()
}

/// Asserts equality within a relative tolerance; near zero an absolute error of 1e-16 is allowed too.
pub fn assert_close(actual: f64, expected: f64, tolerance: f64, name: &str) {
    let scale = expected.abs().max(f64::MIN_POSITIVE);
    let is_close = (actual - expected).abs() <= tolerance * scale
        || (expected.abs() < 1e-3 && (actual - expected).abs() < 1e-16);
    assert!(is_close, "{name}: {actual:e}, expected {expected:e}");
}
