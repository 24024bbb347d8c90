//! Growth of the latency and of the memory of an engine that is in use for a set time. The time is that of its requests: while other
//! engines have their turns it is paused, and nothing grows.

use std::collections::HashMap;

use serde::Serialize;

use crate::plan::Plan;
use crate::record::{RequestKind, Sample};
use stats::{Growth, Level, Trend};

/// A smaller change of the latency in the counted time is normal for a machine: its clock and its other work change within minutes.
pub const MIN_LATENCY_CHANGE: f64 = 0.05;
/// A smaller growth of memory in the counted time may be a step of the kernel or of an allocator: a huge page has this size.
pub const MIN_MEMORY_CHANGE: f64 = (2 << 20) as f64;

const NS_PER_MINUTE: f64 = 60e9;

/// The growth in one launch, in the second half of its requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GrowthInUse {
    /// The time of all requests of the launch.
    pub used_ns: u64,
    /// As a share of the latency.
    pub latency: Option<GrowthPerMinute>,
    /// In bytes of anonymous memory: mapped weights do not count.
    pub memory: Option<GrowthPerMinute>,
}

/// The growth in each minute of requests, with its interval. JSON has these names: add, never rename.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GrowthPerMinute {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
    pub verdict: Growth,
}

impl GrowthPerMinute {
    /// `bound`: the change in the counted time that counts, in the unit of the trend. `of_slope`: the growth in a minute.
    fn of(trend: Trend, bound: f64, of_slope: fn(f64) -> f64) -> Self {
        let [estimate, low, high] = [trend.slope, trend.low, trend.high].map(of_slope);
        Self { estimate, low, high, verdict: trend.growth(bound) }
    }
}

/// The growth in each launch of a case that is in use for a set time.
pub(super) fn by_launch(plan: &Plan, samples: &[Sample]) -> HashMap<u32, GrowthInUse> {
    let mut launches: HashMap<u32, Vec<&Sample>> = HashMap::new();
    for sample in samples {
        if plan.cases[sample.case].workload.time_in_use().is_some() {
            launches.entry(sample.launch).or_default().push(sample);
        }
    }
    launches.into_iter().map(|(launch, samples)| (launch, GrowthInUse::of(&samples))).collect()
}

impl GrowthInUse {
    /// `samples`: all requests of a launch in the order of time. Warm-ups and discarded requests take time and memory too.
    fn of(samples: &[&Sample]) -> Self {
        let (mut used_ns, mut latencies, mut memory) = (0, Vec::new(), Vec::new());
        for sample in samples {
            used_ns += sample.elapsed_ns();
            let minutes = used_ns as f64 / NS_PER_MINUTE;
            if sample.kind == RequestKind::Measured {
                latencies.push((minutes, (sample.elapsed_ns().max(1) as f64).ln()));
            }
            memory.extend(sample.held.map(|held| (minutes, held.anonymous_bytes as f64)));
        }
        let latency = Trend::of(&latencies, Level::Median);
        let memory = Trend::of(&memory, Level::Least);
        Self {
            used_ns,
            latency: latency.map(|it| GrowthPerMinute::of(it, MIN_LATENCY_CHANGE.ln_1p(), f64::exp_m1)),
            memory: memory.map(|it| GrowthPerMinute::of(it, MIN_MEMORY_CHANGE, |slope| slope)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::HeldMemory;

    /// Requests of 100 ms for ten minutes of use, each after a pause of 900 ms.
    fn in_use(leak_per_minute: f64, slower_per_minute: f64) -> GrowthInUse {
        let samples: Vec<Sample> = (0..6000)
            .map(|index| {
                let minute = index as f64 / 600.0;
                let (sent_ns, elapsed_ns) = (index * 1_000_000_000, 1e8 * slower_per_minute.powf(minute));
                // Weights that are mapped meanwhile do not count.
                let (anonymous_bytes, file_bytes) =
                    (50_000_000 + (leak_per_minute * minute) as u64, index << 20);
                Sample {
                    kind: if index < 9 { RequestKind::Warmup } else { RequestKind::Measured },
                    sent_ns,
                    answered_ns: sent_ns + elapsed_ns as u64,
                    held: Some(HeldMemory { anonymous_bytes, file_bytes, ..HeldMemory::default() }),
                    ..Sample::default()
                }
            })
            .collect();
        GrowthInUse::of(&samples.iter().collect::<Vec<_>>())
    }

    #[test]
    fn growth_is_that_of_a_minute_of_requests_without_the_pauses() {
        let growth = in_use(1e6, 1.0);
        let memory = growth.memory.unwrap();
        assert_eq!((growth.used_ns, memory.verdict), (600_000_000_000, Growth::Grows));
        assert!((memory.estimate / 1e6 - 1.0).abs() < 0.01, "{memory:?}");
        assert_eq!(growth.latency.unwrap().verdict, Growth::None);
    }

    #[test]
    fn slower_requests_are_a_growth_in_per_cent_of_the_latency() {
        let growth = in_use(0.0, 1.02);
        let latency = growth.latency.unwrap();
        assert_eq!((latency.verdict, growth.memory.unwrap().verdict), (Growth::Grows, Growth::None));
        // Slower requests also take more of the time.
        assert!((0.015..0.021).contains(&latency.estimate), "{latency:?}");
        assert_eq!(in_use(0.0, 0.98).latency.unwrap().verdict, Growth::Falls);
        assert_eq!(in_use(0.0, 1.005).latency.unwrap().verdict, Growth::None);
    }
}
