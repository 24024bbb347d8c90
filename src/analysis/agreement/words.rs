//! Verification statuses and differences as text.

use super::{Agreement, Standing};

impl Standing {
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Agrees => "agrees",
            Self::Drifts => "drifts",
            Self::Wrong => "wrong",
            Self::Unverified => "unverified",
        }
    }
}

impl Agreement {
    /// The text in a table: `exact`, `agrees 0.012`, `wrong 2.3`.
    pub fn cell(&self) -> String {
        let name = self.standing.name();
        self.shown_rms().map_or_else(|| name.into(), |rms| format!("{name} {}", figures(rms)))
    }

    /// The difference beside the status, where one is shown.
    pub fn shown_rms(&self) -> Option<f64> {
        let shows = matches!(self.standing, Standing::Agrees | Standing::Drifts | Standing::Wrong);
        // If only its tokens are wrong, the small difference of its scores is not shown.
        self.rms().filter(|rms| shows && *rms > super::bounds::EXACT)
    }
}

/// A value with two significant digits.
pub fn figures(value: f64) -> String {
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
        let written = [0.012345, 0.14, 2.34, 0.0, 1.2e-6, 12.6, f64::INFINITY, 1.5e300].map(figures);
        assert_eq!(written, ["0.012", "0.14", "2.3", "0", "1.2e-6", "13", "infinite", "1.5e300"]);
    }
}
