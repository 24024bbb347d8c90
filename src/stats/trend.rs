//! The change of a value while something is used: its slope over time, with an interval, and whether it counts as growth.

use serde::Serialize;

use super::distribution::normal_quantile;
use super::interval::CONFIDENCE;
use super::summary::{ascending, median};

/// The share of the time that is left out at its start. Caches and allocators grow at first and then stop. A growth that stops cannot be
/// told from one that goes on, unless the values are watched at least as long after the start as in it.
const LEFT_OUT: f64 = 0.5;
/// The parts of the counted time, each of which gives one value.
const PARTS: usize = 12;
/// The fewest parts with a value. With five, only values in perfect order would have an interval without zero.
const MIN_PARTS: usize = 6;

/// The value of a part of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Median,
    /// For memory: garbage and buffers are given back within a part, so they do not count.
    Least,
}

/// The slope of a value over time, with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    pub slope: f64,
    pub low: f64,
    pub high: f64,
    /// The length of the counted time, which ends with the last value.
    pub time: f64,
}

/// Whether a value grows by more than a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    Grows,
    Falls,
    /// It does not grow beyond the bound.
    None,
    /// The interval has growth beyond the bound, but also less.
    Inconclusive,
}

impl Trend {
    /// The trend of values after the start of their time, which is 0. `points`: times and values, in the order of time. `None` if too few
    /// parts of the counted time have a value, or if a number is not finite.
    ///
    /// Successive values depend on each other, so the interval is that of the values of parts. These are nearly independent if a part is
    /// longer than the dependence (batch means: Conway, "Some Tactical Problems in Digital Simulation", Management Science 10 (1963)).
    pub fn of(points: &[(f64, f64)], level: Level) -> Option<Self> {
        let (end, _) = *points.last()?;
        let from = end * LEFT_OUT;
        let time = end - from;
        let is_finite = points.iter().all(|(time, value)| time.is_finite() && value.is_finite());
        if !is_finite || time <= 0.0 {
            return None;
        }
        let mut parts: Vec<Vec<(f64, f64)>> = vec![Vec::new(); PARTS];
        for &(at, value) in points.iter().filter(|(at, _)| *at >= from) {
            let part = ((at - from) / time * PARTS as f64) as usize;
            parts[part.min(PARTS - 1)].push((at, value));
        }
        let levels: Vec<(f64, f64)> = parts.iter().filter_map(|part| level.of(part)).collect();
        let (slope, low, high) = slope(&levels).filter(|_| levels.len() >= MIN_PARTS)?;
        Some(Self { slope, low, high, time })
    }

    /// `bound`: the growth over the counted time that counts.
    pub fn growth(&self, bound: f64) -> Growth {
        let [low, change, high] = [self.low, self.slope, self.high].map(|it| it * self.time);
        match () {
            () if low > 0.0 && change > bound => Growth::Grows,
            () if high < 0.0 && change < -bound => Growth::Falls,
            () if high <= bound => Growth::None,
            () => Growth::Inconclusive,
        }
    }
}

impl Level {
    fn of(self, part: &[(f64, f64)]) -> Option<(f64, f64)> {
        let column = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> { part.iter().map(of).collect() };
        match self {
            Self::Median => Some((median(&column(|it| it.0))?, median(&column(|it| it.1))?)),
            Self::Least => part.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)),
        }
    }
}

/// The median of the slopes of all pairs of points: Theil, "A Rank-Invariant Method of Linear and Polynomial Regression Analysis",
/// Indagationes Mathematicae 12 (1950). A single step moves it less than a least-squares slope. The interval is that of Sen, "Estimates of
/// the Regression Coefficient Based on Kendall's Tau", JASA 63 (1968), with the correction of the variance for equal values. It makes no
/// assumption on the shape of the noise. The times are in ascending order.
fn slope(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let pairs =
        points.iter().enumerate().flat_map(|(index, a)| points[index + 1..].iter().map(move |b| (a, b)));
    let slopes = pairs.filter(|(a, b)| b.0 > a.0).map(|(a, b)| (b.1 - a.1) / (b.0 - a.0));
    let slopes = ascending(&slopes.collect::<Vec<_>>());
    let values = ascending(&points.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    // The variance of Kendall's statistic of this many values in one order, 18 times.
    let variance_18 = |count: usize| {
        let n = count as f64;
        n * (n - 1.0) * (2.0 * n + 5.0)
    };
    let of_ties: f64 = values.chunk_by(|a, b| a == b).map(|equal| variance_18(equal.len())).sum();
    let deviation = ((variance_18(points.len()) - of_ties) / 18.0).sqrt();
    let half_width = normal_quantile(0.5 + CONFIDENCE / 2.0) * deviation;
    let count = slopes.len() as f64;
    let rank = |position: f64| position.round_ties_even().max(0.0) as usize;
    let low = slopes.get(rank((count - half_width) / 2.0).saturating_sub(1))?;
    let high = slopes.get(rank((count + half_width) / 2.0).min(slopes.len() - 1))?;
    Some((median(&slopes)?, *low, *high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};
    use crate::random::Random;

    const MB: f64 = 1e6;
    /// More growth of memory counts, in the tests.
    const BOUND: f64 = 2.0 * MB;

    #[test]
    fn slopes_agree_with_scipy() {
        let cases = golden().slopes;
        assert!(cases.len() > 3);
        for case in cases {
            let points: Vec<_> = case.times.iter().copied().zip(case.values).collect();
            let (found, low, high) = slope(&points).unwrap();
            assert_close(found, case.slope, 1e-12, "slope");
            assert_close(low, case.low, 1e-12, "low");
            assert_close(high, case.high, 1e-12, "high");
        }
    }

    /// The memory of ten minutes, twice a second: 500 MB, and what the function gives for a minute.
    fn memory(of_minute: impl Fn(f64) -> f64, noise: f64, seed: u64) -> Trend {
        let mut random = Random::seeded(seed);
        let point = |index: u32| {
            let minute = f64::from(index) / 120.0;
            // Garbage between two collections.
            let garbage = noise * MB * random.unit();
            (minute, 500.0 * MB + of_minute(minute) + garbage)
        };
        Trend::of(&(0..=1200).map(point).collect::<Vec<_>>(), Level::Least).unwrap()
    }

    #[test]
    fn a_leak_of_a_megabyte_a_minute_is_found_in_ten_minutes() {
        for (noise, seed) in [(0.0, 1), (1.0, 2), (10.0, 3), (10.0, 4)] {
            let trend = memory(|minute| MB * minute, noise, seed);
            assert_eq!(trend.growth(BOUND), Growth::Grows, "{trend:?}");
            assert!(trend.low <= MB && MB <= trend.high && (trend.slope / MB - 1.0).abs() < 0.1, "{trend:?}");
            assert_eq!(trend.time, 5.0);
        }
    }

    #[test]
    fn memory_that_grows_at_the_start_and_then_stops_is_no_growth() {
        let fills = |minutes: f64| move |minute: f64| 400.0 * MB * (1.0 - (-minute / minutes).exp());
        for (noise, seed) in [(0.0, 1), (1.0, 2), (10.0, 3)] {
            assert_eq!(memory(fills(0.5), noise, seed).growth(BOUND), Growth::None);
            let until = |minute: f64| 40.0 * MB * minute.min(4.0);
            assert_eq!(memory(until, noise, seed).growth(BOUND), Growth::None);
            // A cache that is still filling in the counted time cannot be told from a leak.
            assert_eq!(memory(fills(5.0), noise, seed).growth(BOUND), Growth::Grows);
        }
    }

    #[test]
    fn a_small_step_is_no_growth_and_a_large_one_is_inconclusive() {
        let step = |size: f64| move |minute: f64| if minute > 7.0 { size } else { 0.0 };
        assert_eq!(memory(step(0.5 * MB), 0.0, 1).growth(BOUND), Growth::None);
        assert_eq!(memory(step(50.0 * MB), 0.0, 1).growth(BOUND), Growth::Inconclusive);
        assert_eq!(memory(|_| 0.0, 0.0, 1).growth(BOUND), Growth::None);
        assert_eq!(memory(|minute| -MB * minute, 1.0, 2).growth(BOUND), Growth::Falls);
    }

    #[test]
    fn steady_values_are_rarely_called_growth() {
        // Logarithms of latencies with a deviation of 0.3. Each has nine tenths of the noise before it.
        let grows = |seed: u64, slope: f64| {
            let mut random = Random::seeded(seed);
            let mut noise = 0.0;
            let point = |index: u32| {
                noise = 0.9 * noise + 0.3 * 0.19f64.sqrt() * random.normal();
                let minute = f64::from(index) / 600.0;
                (minute, slope * minute + noise)
            };
            Trend::of(&(0..6000).map(point).collect::<Vec<_>>(), Level::Median).unwrap()
        };
        let of_all = |slope: f64| (0..200).map(|seed| grows(seed, slope)).collect::<Vec<_>>();
        let covered =
            |slope: f64| of_all(slope).iter().filter(|it| it.low <= slope && slope <= it.high).count();
        assert!(covered(0.0) >= 180 && covered(0.02) >= 180, "{} {}", covered(0.0), covered(0.02));
        let called = |slope: f64| of_all(slope).iter().filter(|it| it.growth(0.05) == Growth::Grows).count();
        assert!(called(0.0) <= 10, "{}", called(0.0));
        assert!(called(0.1) >= 190, "{}", called(0.1));
    }

    #[test]
    fn too_few_or_infinite_values_have_no_trend() {
        let points = |count: u32| (0..count).map(|it| (f64::from(it), 1.0)).collect::<Vec<_>>();
        assert_eq!((Trend::of(&[], Level::Median), Trend::of(&points(1), Level::Least)), (None, None));
        assert_eq!(Trend::of(&points(8), Level::Median), None);
        assert!(Trend::of(&points(30), Level::Median).is_some());
        let infinite = [points(30), vec![(30.0, f64::INFINITY)]].concat();
        assert_eq!(Trend::of(&infinite, Level::Median), None);
    }
}
