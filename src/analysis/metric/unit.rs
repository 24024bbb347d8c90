//! The units of metrics, and their scales in reports: three significant digits, five of a perplexity, and one scale for a whole
//! column.

use crate::text::{five_digits, three_digits};

/// The unit of a metric's numbers. Reports choose the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Nanoseconds,
    TokensPerSecond,
    RequestsPerSecond,
    Requests,
    Bytes,
    BytesPerSecond,
    BytesPerMinute,
    /// A part of a whole, shown in per cent.
    Share,
    SharePerMinute,
    Joules,
    Nats,
    Bits,
    Perplexity,
}

impl Unit {
    /// The name of the unit in CSV and JSON, which have unscaled numbers.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::TokensPerSecond => "tok/s",
            Self::RequestsPerSecond => "req/s",
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::BytesPerMinute => "bytes/min",
            Self::Share => "share",
            Self::SharePerMinute => "share/min",
            Self::Joules => "J",
            Self::Nats => "nats",
            Self::Bits => "bits",
            Self::Perplexity => "ppl",
        }
    }

    /// A number with the symbol of a scale: `200 tok/s`, `50 ms`. The result is in the metric's own unit.
    pub fn parse(text: &str) -> Option<(f64, Self)> {
        let text = text.trim();
        let end = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
        let (number, symbol) = (text[..end].parse::<f64>().ok()?, text[end..].trim());
        let units = [
            (Self::Nanoseconds, TIMES),
            (Self::Bytes, BYTES),
            (Self::BytesPerSecond, BYTE_RATES),
            (Self::BytesPerMinute, BYTE_GROWTHS),
            (Self::TokensPerSecond, RATES),
            (Self::RequestsPerSecond, REQUEST_RATES),
            (Self::Requests, REQUESTS),
            (Self::Share, SHARES),
            (Self::SharePerMinute, SHARE_GROWTHS),
            (Self::Joules, JOULES),
            (Self::Nats, NATS),
            (Self::Bits, BITS),
            (Self::Perplexity, PERPLEXITY),
        ];
        let symbol = symbol.replacen("us", "µs", 1);
        let scales = units.iter().flat_map(|(unit, scales)| scales.iter().map(move |scale| (*unit, scale)));
        let (unit, scale) = scales.into_iter().find(|(_, scale)| scale.symbol == symbol)?;
        Some((number * scale.divisor, unit))
    }

    /// One number with its unit: `8.90 ms`.
    pub fn show(self, value: f64) -> String {
        let scale = Scale::of(self, [value]);
        format!("{} {}", scale.write(value), scale.symbol)
    }
}

/// The divisor of a column's numbers, with its symbol for the header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub divisor: f64,
    pub symbol: &'static str,
}

const TIMES: &[Scale] = &[
    Scale { divisor: 1.0, symbol: "ns" },
    Scale { divisor: 1e3, symbol: "µs" },
    Scale { divisor: 1e6, symbol: "ms" },
    Scale { divisor: 1e9, symbol: "s" },
];

const BYTES: &[Scale] = &[
    Scale { divisor: 1.0, symbol: "B" },
    Scale { divisor: 1e3, symbol: "kB" },
    Scale { divisor: 1e6, symbol: "MB" },
    Scale { divisor: 1e9, symbol: "GB" },
];

const BYTE_RATES: &[Scale] =
    &[Scale { divisor: 1e6, symbol: "MB/s" }, Scale { divisor: 1e9, symbol: "GB/s" }];

const BYTE_GROWTHS: &[Scale] = &[Scale { divisor: 1e6, symbol: "MB/min" }];

const SHARES: &[Scale] = &[Scale { divisor: 0.01, symbol: "%" }];

const SHARE_GROWTHS: &[Scale] = &[Scale { divisor: 0.01, symbol: "%/min" }];

const JOULES: &[Scale] = &[
    Scale { divisor: 1e-6, symbol: "µJ" },
    Scale { divisor: 1e-3, symbol: "mJ" },
    Scale { divisor: 1.0, symbol: "J" },
    Scale { divisor: 1e3, symbol: "kJ" },
];

const RATES: &[Scale] = &[Scale { divisor: 1.0, symbol: "tok/s" }];

const REQUEST_RATES: &[Scale] = &[Scale { divisor: 1.0, symbol: "req/s" }];

const REQUESTS: &[Scale] = &[Scale { divisor: 1.0, symbol: "requests" }];

const NATS: &[Scale] = &[Scale { divisor: 1.0, symbol: "nats" }];

const BITS: &[Scale] = &[Scale { divisor: 1.0, symbol: "bits" }];

const PERPLEXITY: &[Scale] = &[Scale { divisor: 1.0, symbol: "ppl" }];

impl Scale {
    /// The largest scale in which the geometric mean of the smallest and the largest number is at least one.
    pub fn of(unit: Unit, values: impl IntoIterator<Item = f64>) -> Self {
        let scales = match unit {
            Unit::Nanoseconds => TIMES,
            Unit::Bytes => BYTES,
            Unit::BytesPerSecond => BYTE_RATES,
            Unit::BytesPerMinute => BYTE_GROWTHS,
            Unit::TokensPerSecond => RATES,
            Unit::RequestsPerSecond => REQUEST_RATES,
            Unit::Requests => REQUESTS,
            Unit::Share => SHARES,
            Unit::SharePerMinute => SHARE_GROWTHS,
            Unit::Joules => JOULES,
            Unit::Nats => NATS,
            Unit::Bits => BITS,
            Unit::Perplexity => PERPLEXITY,
        };
        let positive = values.into_iter().filter(|value| *value > 0.0);
        let (low, high) = positive
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let geometric_mean = if high > 0.0 { low.sqrt() * high.sqrt() } else { 0.0 };
        let fitting = scales.iter().rev().find(|scale| geometric_mean >= scale.divisor);
        *fitting.unwrap_or(&scales[0])
    }

    /// The number in this scale, without the symbol.
    pub fn write(self, value: f64) -> String {
        // The perplexities of two engines often differ only in the fourth digit.
        if self == PERPLEXITY[0] { five_digits(value) } else { three_digits(value / self.divisor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let written = [0.03124, 0.9996, 4.127, 9.996, 41.27, 412.7, 999.6, 4127.0, 123_456.0];
        let expected = ["0.0312", "1.00", "4.13", "10.0", "41.3", "413", "1,000", "4,130", "123,000"];
        assert_eq!(written.map(three_digits), expected);
        assert_eq!([0.0, f64::NAN, f64::INFINITY].map(three_digits), ["0", "n/a", "n/a"]);
        assert_eq!(three_digits(-4.127), "-4.13");
        assert_eq!(three_digits(-413_000.0), "-413,000");
    }

    #[test]
    fn a_number_by_itself_has_its_unit() {
        let shown = [
            (Unit::Nanoseconds, 8.9e6),
            (Unit::TokensPerSecond, 43.12),
            (Unit::Bytes, 412e6),
            (Unit::Share, 0.8512),
            (Unit::Joules, 0.0213),
            (Unit::Perplexity, 6.12345),
        ];
        let expected = ["8.90 ms", "43.1 tok/s", "412 MB", "85.1 %", "21.3 mJ", "6.1235 ppl"];
        assert_eq!(shown.map(|(unit, value)| unit.show(value)), expected);
    }

    #[test]
    fn a_number_with_a_unit_is_read_in_the_metrics_own_unit() {
        let read = ["200 tok/s", "50ms", "1.5 GB", "80 %", "3 us", "2 J", "12.5 ppl"]
            .map(|text| Unit::parse(text).unwrap());
        let expected = [
            (200.0, Unit::TokensPerSecond),
            (50e6, Unit::Nanoseconds),
            (1.5e9, Unit::Bytes),
            (0.8, Unit::Share),
            (3e3, Unit::Nanoseconds),
            (2.0, Unit::Joules),
            (12.5, Unit::Perplexity),
        ];
        assert_eq!(read, expected);
        assert_eq!(["", "fast", "3", "3 miles", "-1 ms"].map(Unit::parse), [None; 5]);
    }

    #[test]
    fn a_column_has_one_scale_for_its_smallest_and_its_largest_number() {
        let symbol = |values: &[f64]| Scale::of(Unit::Nanoseconds, values.iter().copied()).symbol;
        assert_eq!(symbol(&[12e6, 3e9]), "ms");
        assert_eq!(symbol(&[400e6, 9e9]), "s");
        assert_eq!(symbol(&[0.4e6, 80e6]), "ms");
        assert_eq!(symbol(&[0.0, 30e3]), "µs");
        assert_eq!(symbol(&[0.0]), "ns");
        assert_eq!(symbol(&[]), "ns");
        assert_eq!(Scale::of(Unit::Bytes, [61e6, 4e9]).symbol, "MB");
        assert_eq!(Scale::of(Unit::Bytes, [f64::MAX, f64::MAX]).symbol, "GB");
        assert_eq!(Scale::of(Unit::Bytes, [61e6, 4e9]).write(412.4e6), "412");
    }
}
