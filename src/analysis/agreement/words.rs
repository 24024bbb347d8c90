//! Differences as text.

/// A value with two significant digits.
pub fn two_digits(value: f64) -> String {
    if !value.is_finite() {
        return "infinite".into();
    }
    let written = format!("{value:.1e}");
    let exponent: i32 = written.rsplit_once('e').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
    match exponent {
        _ if value == 0.0 => "0".into(),
        -3..=0 => format!("{value:.*}", (1 - exponent) as usize),
        1..=3 => format!("{value:.0}"),
        _ => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_have_two_digits() {
        let written = [0.012345, 0.14, 2.34, 0.0, 1.2e-6, 12.6, f64::INFINITY, 1.5e300].map(two_digits);
        assert_eq!(written, ["0.012", "0.14", "2.3", "0", "1.2e-6", "13", "infinite", "1.5e300"]);
    }
}
