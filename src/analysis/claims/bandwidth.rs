//! Compares the bandwidth that an engine needs for its decode with the largest bandwidth of the probes. Every step of a
//! decode reads all weights once, so no engine can exceed the bandwidth of the machine.
//!
//! Probes do not always reach that bandwidth: other virtual machines on the host change it (36 and 64 GB/s were observed), and
//! a busy program halves it. A false accusation is worse than a small exaggeration that passes. So this check needs several
//! probes that agree, idle cores, and an engine that needs over twice the best probe's rate. A GPU is probed once, so engines on
//! it have shares but no check.

use super::subject::{About, Contradiction, Subject};
use crate::analysis::metric::limits::{Limit, limits};
use crate::analysis::metric::share::bandwidth_limit;
use crate::analysis::metric::{self, MetricId};
use crate::record::RunRecord;
use crate::text::three_digits;

/// The largest accepted share of the best probe's bandwidth: the two observed bandwidths (above) have a ratio of 1.8.
const MAX_SHARE: f64 = 2.0;
/// The least number of probes. Other programs may have slowed all probes if there are fewer.
const MIN_PROBES: usize = 3;
/// The largest mean number of cores that engines' threads waited for, as in `threads`.
const MAX_WAITED_CORES: f64 = 0.1;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    if is_busy(subject.record) {
        return Vec::new();
    }
    let metric = metric::by_id(MetricId::BANDWIDTH_SHARE);
    let limits = limits(subject.record);
    let shares = subject.cases().filter_map(|case| {
        let limit = subject.values.observations(case).find_map(|observed| bandwidth_limit(&observed))?;
        limits.iter().find(|it| it.key == limit).filter(|it| is_reliable(it))?;
        // The share as the table shows it.
        Some((case, subject.values.of_metric(case, metric).summary()?.estimate))
    });
    let largest = shares.max_by(|a, b| a.1.total_cmp(&b.1));
    largest.and_then(|(case, share)| contradiction(subject, case, share)).into_iter().collect()
}

/// Whether the probes show the true limit of the machine.
fn is_reliable(limit: &Limit) -> bool {
    limit.probes.len() >= MIN_PROBES && !limit.is_unsteady()
}

/// Whether other programs may have slowed the probes: they ran when the run began, or while engines answered. As in the
/// warning before a run, a load average above half of the cores is too much.
fn is_busy(record: &RunRecord) -> bool {
    let machine = &record.header.machine;
    let cores = machine.cpu.allowed_cores.or(machine.cpu.logical_cores);
    let load = machine.load_average.zip(cores);
    let was_busy = load.is_some_and(|([last_minute, ..], cores)| last_minute > f64::from(cores) / 2.0);
    let waited_and_elapsed =
        || record.samples.iter().filter_map(|it| Some((it.waited_ns? as f64, it.elapsed_ns() as f64)));
    let (waited, elapsed) = waited_and_elapsed().fold((0.0, 0.0), |sums, it| (sums.0 + it.0, sums.1 + it.1));
    was_busy || waited > MAX_WAITED_CORES * elapsed
}

fn contradiction(subject: &Subject, case: usize, share: f64) -> Option<Contradiction> {
    if share <= MAX_SHARE {
        return None;
    }
    let reported = subject.fact(|facts| facts.weights_dtype.clone()).unwrap_or_else(|| "unreported".into());
    let observed = format!("{}x", three_digits(share));
    let message = format!(
        "reports `{reported}` weights, but {} would need {observed} the bandwidth of this run's best probe: its times or its \
         weights are not as reported",
        subject.case_name(case)
    );
    Some(subject.contradiction(About::Dtype, reported, observed, &message))
}

#[cfg(test)]
mod tests {
    use machine_limits::{Limits, Reads};

    use super::super::specimen::{BEACON_INDEX, contradictions, decode_record};
    use super::*;
    use crate::analysis::values::Values;
    use crate::machine::cpu::Cache;
    use crate::plan::Sizes;
    use crate::record::specimen::BEACON;
    use crate::record::{self, RunRecord};
    use stats::Summary;

    /// A record in which beacon reads 400 MB for each token, on a machine whose probes measured these shares of the rate that
    /// beacon needs.
    fn with_probes(probes: &[f64], change: impl FnOnce(&mut RunRecord)) -> RunRecord {
        decode_record(|record| {
            let sizes = Sizes { read_per_token: 100_000_000, ..Sizes::default() };
            record.header.plan.configurations[BEACON_INDEX].model.sizes = Some(sizes);
            let cache = Cache { level: 3, kind: "Unified".into(), size_bytes: 32 << 20, shared_by: 2 };
            record.header.machine.cpu.caches = vec![cache];
            let needed = 4e8 / (BEACON.token_ms / 1e3);
            for (block, share) in probes.iter().enumerate() {
                let bytes = (needed * share) as u64;
                let reads = vec![Reads { threads: 2, streams: 4, bytes, ns: 1_000_000_000 }];
                let probed = Limits { reads, ..Limits::default() };
                record.limits.push(record::Limits { block: block as u32, probed });
            }
            change(record);
        })
    }

    /// The result of this check, without those of other checks.
    fn contradiction_of(record: &RunRecord) -> Option<Contradiction> {
        contradictions(record).into_iter().find(|it| it.message.contains("this run's best probe"))
    }

    /// Steady probes, at a third of the rate that beacon claims.
    const TOO_SLOW: &[f64] = &[0.33, 0.34, 0.32, 0.33];

    #[test]
    fn a_rate_three_times_that_of_steady_probes_is_reported() {
        let contradiction = contradiction_of(&with_probes(TOO_SLOW, |_| {})).unwrap();
        assert_eq!((contradiction.configuration, contradiction.about), (BEACON_INDEX, About::Dtype));
        assert_eq!(contradiction.reported, "f32");
        assert!(["2.9", "3."].iter().any(|it| contradiction.observed.starts_with(it)), "{contradiction:?}");
        assert!(contradiction.message.starts_with("beacon: reports `f32` weights"), "{contradiction:?}");
    }

    #[test]
    fn the_reported_share_is_that_of_the_table() {
        // The first launch has most of the requests, and is twice as fast as the others.
        let record = with_probes(TOO_SLOW, |record| {
            let is_beacon = |it: &crate::record::Launch| it.configuration == BEACON_INDEX;
            let first = record.launches.iter().find(|it| is_beacon(it)).unwrap().launch;
            let mut launches_with_a_request = std::collections::BTreeSet::new();
            let cases = record.header.plan.cases_of(BEACON_INDEX);
            record.samples.retain(|it| {
                let is_later = cases.contains(&it.case) && it.launch != first;
                !(is_later && it.kind == record::RequestKind::Measured)
                    || launches_with_a_request.insert(it.launch)
            });
            for sample in record.samples.iter_mut().filter(|it| it.launch == first) {
                let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
                let start = times[0];
                times.iter_mut().for_each(|ns| *ns = start + (*ns - start) / 2);
            }
        });
        let (values, case) = (Values::of(&record), record.header.plan.cases_of(BEACON_INDEX)[0]);
        let shares = values.of_metric(case, metric::by_id(MetricId::BANDWIDTH_SHARE)).launches();
        let shown = Summary::of(&shares).unwrap().estimate;
        assert_eq!(contradiction_of(&record).unwrap().observed, format!("{}x", three_digits(shown)));
    }

    #[test]
    fn a_correct_engine_is_not_reported_if_only_the_probes_were_slow() {
        assert_eq!(
            [36.0 / 64.0, 0.95].map(|share| contradiction_of(&with_probes(&[share; 4], |_| {}))),
            [None, None]
        );
    }

    #[test]
    fn few_or_disturbed_probes_report_nothing() {
        assert_eq!(contradiction_of(&with_probes(&[0.33, 0.33, 0.29, 0.33], |_| {})), None);
        assert_eq!(contradiction_of(&with_probes(&TOO_SLOW[..2], |_| {})), None);
        let with_load = |record: &mut RunRecord| record.header.machine.load_average = Some([1.3, 0.5, 0.2]);
        assert_eq!(contradiction_of(&with_probes(TOO_SLOW, with_load)), None);
        let with_waiting = |record: &mut RunRecord| {
            record.samples.iter_mut().for_each(|it| it.waited_ns = Some((it.answered_ns - it.sent_ns) / 5));
        };
        assert_eq!(contradiction_of(&with_probes(TOO_SLOW, with_waiting)), None);
        let without_waiting =
            |record: &mut RunRecord| record.samples.iter_mut().for_each(|it| it.waited_ns = Some(100));
        assert!(contradiction_of(&with_probes(TOO_SLOW, without_waiting)).is_some());
    }
}
