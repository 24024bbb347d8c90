//! Expected values of numpy, scipy and statsmodels, from `golden/make.py`.

use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    special_functions: Special,
    student: Student,
    intervals: Vec<IntervalCase>,
    bootstraps: Vec<BootstrapCase>,
    floors: Vec<FloorCase>,
    welch: Vec<TestCase>,
    mann_whitney: Vec<TestCase>,
    holm: Vec<HolmCase>,
    geometric_means: Vec<MeanCase>,
    summaries: Vec<SummaryCase>,
    outliers: Vec<OutlierCase>,
    paired_ratios: Vec<PairedCase>,
}

#[derive(Deserialize)]
pub struct Special {
    pub ln_gamma: Vec<(f64, f64)>,
    pub incomplete_beta: Vec<(f64, f64, f64, f64)>,
    pub normal_above: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
pub struct Student {
    pub p: Vec<f64>,
    /// For 1, 2, 3 and more degrees of freedom.
    pub quantiles: Vec<Vec<f64>>,
    pub above: Vec<(f64, f64, f64)>,
}

#[derive(Deserialize)]
pub struct IntervalCase {
    pub values: Vec<f64>,
    pub low: f64,
    pub high: f64,
    pub p: f64,
}

#[derive(Deserialize)]
pub struct BootstrapCase {
    pub values: Vec<f64>,
    pub low: f64,
    pub high: f64,
}

#[derive(Deserialize)]
pub struct FloorCase {
    pub log_ratios: Vec<f64>,
    pub floor: f64,
}

#[derive(Deserialize)]
pub struct TestCase {
    #[serde(default)]
    pub method: String,
    pub ours: Vec<f64>,
    pub theirs: Vec<f64>,
    pub p: f64,
    /// The bounds of the interval of the difference, where there is one.
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
    pub flagged: Vec<usize>,
}

#[derive(Deserialize)]
pub struct PairedCase {
    pub above: Vec<Vec<f64>>,
    pub below: Vec<Vec<f64>>,
    pub blocks: Vec<f64>,
    pub low: f64,
    pub high: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/golden.json")).unwrap()
}

pub fn special() -> Special {
    golden().special_functions
}

pub fn student() -> Student {
    golden().student
}

pub fn intervals() -> Vec<IntervalCase> {
    golden().intervals
}

pub fn bootstraps() -> Vec<BootstrapCase> {
    golden().bootstraps
}

pub fn floors() -> Vec<FloorCase> {
    golden().floors
}

pub fn welch() -> Vec<TestCase> {
    golden().welch
}

pub fn mann_whitney() -> Vec<TestCase> {
    golden().mann_whitney
}

pub fn holm() -> Vec<HolmCase> {
    golden().holm
}

pub fn geometric_means() -> Vec<MeanCase> {
    golden().geometric_means
}

pub fn summaries() -> Vec<SummaryCase> {
    golden().summaries
}

pub fn outliers() -> Vec<OutlierCase> {
    golden().outliers
}

pub fn paired_ratios() -> Vec<PairedCase> {
    golden().paired_ratios
}

/// Asserts equality within a relative tolerance; near zero an absolute error of 1e-16 is allowed too.
pub fn close(found: f64, expected: f64, tolerance: f64, what: &str) {
    let scale = expected.abs().max(f64::MIN_POSITIVE);
    let near = (found - expected).abs() <= tolerance * scale
        || (expected.abs() < 1e-3 && (found - expected).abs() < 1e-16);
    assert!(near, "{what}: {found:e}, expected {expected:e}");
}
