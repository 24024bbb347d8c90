//! The end of a case's warm-up. The user may set the number of requests. Otherwise, warm-up ends after as many requests as an
//! earlier launch needed, when three windows in a row, of three requests each, have similar medians, or after a time limit,
//! whichever comes first.

use std::time::Duration;

use super::time_budget::MAX_WARM_UP_TIME;
use crate::record::WarmUpEnd;
use stats::median;

/// The fewest requests, if the user sets no number.
const MIN_REQUESTS: u32 = 1;
const WINDOW_REQUESTS: usize = 3;
const WINDOWS: usize = 3;
/// The number of requests of the shortest warm-up that ends because the windows agree.
pub const MIN_STEADY_REQUESTS: u32 = (WINDOWS * WINDOW_REQUESTS) as u32;
/// The largest allowed ratio between the medians of the windows.
const MAX_RATIO: f64 = 1.1;

/// The usual number of warm-up requests of a case in a launch, if each takes `request_time`. The first launch makes nine or more,
/// unless its time ends earlier.
pub fn usual_requests(requested: Option<u32>, request_time: Duration) -> u32 {
    requested.unwrap_or_else(|| {
        // The request that is running at the end of the time is the last one.
        let in_time = MAX_WARM_UP_TIME.as_nanos().div_ceil(request_time.as_nanos().max(1));
        u32::try_from(in_time).unwrap_or(u32::MAX).clamp(MIN_REQUESTS, WINDOW_REQUESTS as u32)
    })
}

/// The fewest warm-up requests of a launch, when no time is left.
pub fn fewest_requests(requested: Option<u32>) -> u32 {
    requested.unwrap_or(MIN_REQUESTS)
}

/// The durations of a case's warm-up requests so far, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct WarmUp {
    durations: Vec<f64>,
}

impl WarmUp {
    pub fn push(&mut self, duration_ns: u64) {
        self.durations.push(duration_ns as f64);
    }

    pub fn requests(&self) -> u32 {
        self.durations.len() as u32
    }

    /// The reason to end now, if any. `requested` is the user's number of requests. `needed_before` is the number that an
    /// earlier launch needed. `in_time` is true until the time limit of the warm-up.
    pub fn end(
        &self,
        requested: Option<u32>,
        needed_before: Option<u32>,
        in_time: bool,
    ) -> Option<WarmUpEnd> {
        if let Some(requested) = requested {
            return (self.requests() >= requested).then_some(WarmUpEnd::SetByUser);
        }
        if needed_before.is_some_and(|needed| self.requests() >= needed) {
            return Some(WarmUpEnd::AsBefore);
        }
        if self.is_steady() {
            return Some(WarmUpEnd::Steady);
        }
        (!in_time && self.requests() >= MIN_REQUESTS).then_some(WarmUpEnd::Time)
    }

    fn is_steady(&self) -> bool {
        self.windows().last_chunk::<WINDOWS>().is_some_and(|last| {
            let slowest = last.iter().copied().fold(0.0, f64::max);
            last.iter().all(|&window| slowest <= window * MAX_RATIO)
        })
    }

    /// The number of requests up to the end of the first window that is as fast as the last windows. A slow window after it is
    /// noise.
    pub fn needed(&self) -> u32 {
        let windows = self.windows();
        let Some(level) = median(&windows[windows.len().saturating_sub(WINDOWS)..]) else {
            return self.requests();
        };
        let first = windows.iter().position(|&window| window <= level * MAX_RATIO);
        first.map_or(self.requests(), |first| ((first + 1) * WINDOW_REQUESTS) as u32)
    }

    /// The median time of the last requests.
    pub fn request_ns(&self) -> Option<f64> {
        median(&self.durations[self.durations.len().saturating_sub(WINDOW_REQUESTS)..])
    }

    fn windows(&self) -> Vec<f64> {
        self.durations.chunks_exact(WINDOW_REQUESTS).filter_map(median).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_TIME: bool = true;

    fn after(durations: &[u64]) -> WarmUp {
        let mut warm_up = WarmUp::default();
        durations.iter().for_each(|&ns| warm_up.push(ns));
        warm_up
    }

    fn end(durations: &[u64]) -> Option<WarmUpEnd> {
        after(durations).end(None, None, IN_TIME)
    }

    #[test]
    fn a_case_is_warm_when_three_windows_agree_within_a_tenth() {
        assert_eq!(end(&[100; 8]), None);
        assert_eq!(end(&[100; 9]), Some(WarmUpEnd::Steady));
        assert_eq!(end(&[100, 100, 100, 100, 100, 100, 112, 112, 112]), None);
        assert_eq!(end(&[900, 100, 100, 100, 100, 100, 109, 109, 109]), Some(WarmUpEnd::Steady));
    }

    #[test]
    fn warm_up_continues_while_times_fall() {
        let falling = [900, 800, 700, 400, 300, 200, 100, 100, 100, 100, 100, 100];
        assert_eq!(end(&falling), None);
        let warm = after(&[&falling[..], &[100; 3]].concat());
        assert_eq!(warm.end(None, None, IN_TIME), Some(WarmUpEnd::Steady));
        assert_eq!((warm.needed(), warm.request_ns()), (9, Some(100.0)));
    }

    #[test]
    fn slow_windows_in_the_middle_do_not_prolong_later_warm_ups() {
        let disturbed = after(&[&[100; 3][..], &[160; 6], &[100; 9]].concat());
        assert_eq!(disturbed.end(None, None, IN_TIME), Some(WarmUpEnd::Steady));
        assert_eq!(disturbed.needed(), 3);
    }

    #[test]
    fn a_later_launch_makes_as_many_requests_as_were_needed_before() {
        assert_eq!(after(&[100; 9]).needed(), 3);
        assert_eq!(after(&[100; 2]).end(None, Some(3), IN_TIME), None);
        assert_eq!(after(&[100; 3]).end(None, Some(3), IN_TIME), Some(WarmUpEnd::AsBefore));
    }

    #[test]
    fn slow_requests_warm_up_with_fewer_requests() {
        let usual = |seconds| usual_requests(None, Duration::from_secs(seconds));
        assert_eq!([0, 1, 5, 30].map(usual), [3, 3, 2, 1]);
        assert_eq!(usual_requests(Some(7), Duration::from_secs(30)), 7);
        assert_eq!([None, Some(0)].map(fewest_requests), [1, 0]);
    }

    #[test]
    fn a_time_limit_ends_warm_up_after_at_least_one_request() {
        assert_eq!(after(&[]).end(None, None, !IN_TIME), None);
        assert_eq!(after(&[100]).end(None, None, !IN_TIME), Some(WarmUpEnd::Time));
        assert_eq!(after(&[]).end(Some(0), None, IN_TIME), Some(WarmUpEnd::SetByUser));
        assert_eq!(after(&[100; 9]).end(Some(10), None, !IN_TIME), None);
    }
}
