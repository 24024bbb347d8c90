//! Spans of time and rates, the parts of most formulas.

/// A span of time; absent where it is empty or negative.
pub fn positive(end_ns: u64, start_ns: u64) -> Option<f64> {
    end_ns.checked_sub(start_ns).filter(|&ns| ns > 0).map(|ns| ns as f64)
}

/// A rate; absent where there are no tokens or no time.
pub fn per_second(tokens: u64, end_ns: u64, start_ns: u64) -> Option<f64> {
    let ns = positive(end_ns, start_ns)?;
    (tokens > 0).then(|| tokens as f64 * 1e9 / ns)
}
