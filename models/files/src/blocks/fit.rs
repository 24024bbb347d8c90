//! Helpers of the searches for scales. They process several runs of numbers together, with one lane for each run: every sum
//! keeps the order of the source, and the compiler can vectorise over the lanes.

/// Number `i` of every run, for each `i`.
pub type Rows<const RUNS: usize, const LENGTH: usize> = [[f32; RUNS]; LENGTH];

/// The nearest integer, ties to even, of a number below 2^22 in magnitude: adding 1.5 * 2^23 leaves a mantissa in units of
/// 1.
pub fn nearest(value: f32) -> f32 {
    const ONES: f32 = 12_582_912.0;
    (value + ONES) - ONES
}

/// Transposes runs of consecutive numbers into rows.
pub fn rows<const RUNS: usize, const LENGTH: usize>(values: &[f32]) -> Rows<RUNS, LENGTH> {
    let mut rows = [[0.0; RUNS]; LENGTH];
    for (run, values) in values.as_chunks::<LENGTH>().0.iter().take(RUNS).enumerate() {
        for (row, value) in rows.iter_mut().zip(values) {
            row[run] = *value;
        }
    }
    rows
}

/// A value for every lane.
pub fn lanes<const RUNS: usize>(value: impl FnMut(usize) -> f32) -> [f32; RUNS] {
    std::array::from_fn(value)
}

/// 1/x, or 0 for an x too small to serve as a unit.
pub fn inverse_of(x: f32) -> f32 {
    if x.abs() > 1e-30 { 1.0 / x } else { 0.0 }
}
