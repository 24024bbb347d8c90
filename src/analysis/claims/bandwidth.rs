//! Compares the bytes that an engine's decoding would have moved with the largest bandwidth that the probes found. Weights are
//! read once for every token, so there is a limit that no engine exceeds.
//!
//! Probes do not always find that limit: neighbours of a virtual machine change the rate of its memory (36 and 64 GB/s were
//! observed), and a busy program beside a probe halves it. A false accusation is worse than a small exaggeration that passes, so
//! this check needs several probes that agree, idle cores, and a rate over twice the best probe. A GPU is probed once, so its
//! rows have shares but no check.

use super::subject::{About, Contradiction, Subject};
use crate::analysis::metric::limits::{Limit, limits};
use crate::analysis::metric::share::bandwidth_limit;
use crate::analysis::metric::{self, MetricId};
use crate::record::RunRecord;
use crate::text::three_digits;

/// The share that no engine can reach: two plateaus differ by 1.75.
const IMPOSSIBLE: f64 = 2.0;
/// The least number of probes: fewer may all have been disturbed.
const MIN_PROBES: usize = 3;
/// Cores that engines' threads waited for because of other programs, on average; as in `threads`.
const CROWDED: f64 = 0.1;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    if is_busy(subject.record) {
        return Vec::new();
    }
    // Absent where a share has no meaning.
    let metric = metric::of(MetricId::BANDWIDTH_SHARE);
    let limits = limits(subject.record);
    let worst = subject.cases().filter_map(|case| {
        let limit = subject.values.observed(case).find_map(|observed| bandwidth_limit(&observed))?;
        limits.iter().find(|it| it.key == limit).filter(|it| is_bound(it))?;
        // The value in the table.
        Some((case, subject.values.of_metric(case, metric).summary()?.estimate))
    });
    let worst = worst.max_by(|one, other| one.1.total_cmp(&other.1));
    worst.and_then(|(case, share)| contradiction(subject, case, share)).into_iter().collect()
}

/// Whether the probes show the limit of the machine.
fn is_bound(limit: &Limit) -> bool {
    limit.probes.len() >= MIN_PROBES && !limit.moved()
}

/// Whether other programs ran when the run began, or while engines answered: they slowed the probes too. It uses the same
/// values as the warnings about load.
fn is_busy(record: &RunRecord) -> bool {
    let machine = &record.header.machine;
    let cores = machine.cpu.allowed_cores.or(machine.cpu.logical_cores);
    let loaded = machine.load_average.zip(cores);
    let loaded = loaded.is_some_and(|([last_minute, ..], cores)| last_minute > f64::from(cores) / 2.0);
    let known =
        || record.samples.iter().filter_map(|it| Some((it.waited_ns? as f64, it.elapsed_ns() as f64)));
    let (waited, elapsed) = known().fold((0.0, 0.0), |sums, it| (sums.0 + it.0, sums.1 + it.1));
    loaded || waited > CROWDED * elapsed
}

/// `share` is the case's value in the table.
fn contradiction(subject: &Subject, case: usize, share: f64) -> Option<Contradiction> {
    if share <= IMPOSSIBLE {
        return None;
    }
    let reported = subject.fact(|facts| facts.weights_dtype.clone()).unwrap_or_else(|| "unstated".into());
    let observed = format!("{}x", three_digits(share));
    let message = format!(
        "states `{reported}` weights, but {} would need {observed} the bandwidth of this run's best probe: its times or its \
         weights are not as stated",
        subject.case_name(case)
    );
    Some(subject.contradiction(About::Dtype, true, reported, observed, &message))
}

#[cfg(test)]
mod tests {
    use machine_limits::{Limits, Reads};

    use super::super::specimen::{BEACONS, contradictions, decoding};
    use super::*;
    use crate::analysis::values::Values;
    use crate::machine::cpu::Cache;
    use crate::plan::Sizes;
    use crate::record::specimen::BEACON;
    use crate::record::{self, RunRecord};
    use stats::Summary;

    /// A record in which beacon reads 400 MB for each token, on a machine whose probes found these shares of the rate for that.
    fn reading(probes: &[f64], change: impl FnOnce(&mut RunRecord)) -> RunRecord {
        decoding(|record| {
            let sizes = Sizes { read_per_token: 100_000_000, ..Sizes::default() };
            record.header.plan.configurations[BEACONS].model.sizes = Some(sizes);
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

    /// The result of this check; other checks may report more.
    fn reported(record: &RunRecord) -> Option<Contradiction> {
        contradictions(record).into_iter().find(|it| it.message.contains("this run's best probe"))
    }

    /// Steady probes, at a third of the rate that beacon claims.
    const TOO_SLOW: &[f64] = &[0.33, 0.34, 0.32, 0.33];

    #[test]
    fn a_rate_three_times_that_of_steady_probes_is_reported() {
        let contradiction = reported(&reading(TOO_SLOW, |_| {})).unwrap();
        assert_eq!(
            (contradiction.configuration, contradiction.about, contradiction.excludes_from_ranking),
            (BEACONS, About::Dtype, true)
        );
        assert_eq!(contradiction.reported, "f32");
        assert!(["2.9", "3."].iter().any(|it| contradiction.observed.starts_with(it)), "{contradiction:?}");
        assert!(contradiction.message.starts_with("beacon: states `f32` weights"), "{contradiction:?}");
    }

    #[test]
    fn the_reported_share_is_that_of_the_table() {
        // Its first launch has most of its requests, and is twice as fast as the others.
        let record = reading(TOO_SLOW, |record| {
            let own = |it: &crate::record::Launch| it.configuration == BEACONS;
            let first = record.launches.iter().find(|it| own(it)).unwrap().launch;
            let mut alone = std::collections::BTreeSet::new();
            let cases = record.header.plan.cases_of(BEACONS);
            record.samples.retain(|it| {
                let is_later = cases.contains(&it.case) && it.launch != first;
                !(is_later && it.kind == record::RequestKind::Measured) || alone.insert(it.launch)
            });
            for sample in record.samples.iter_mut().filter(|it| it.launch == first) {
                let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
                let start = times[0];
                times.iter_mut().for_each(|ns| *ns = start + (*ns - start) / 2);
            }
        });
        let (values, case) = (Values::of(&record), record.header.plan.cases_of(BEACONS)[0]);
        let shares = values.of_metric(case, metric::of(MetricId::BANDWIDTH_SHARE)).launches();
        let shown = Summary::of(&shares).unwrap().estimate;
        assert_eq!(reported(&record).unwrap().observed, format!("{}x", three_digits(shown)));
    }

    #[test]
    fn a_correct_engine_is_not_reported_if_only_the_probes_were_slow() {
        assert_eq!([36.0 / 64.0, 0.95].map(|share| reported(&reading(&[share; 4], |_| {}))), [None, None]);
    }

    #[test]
    fn few_or_disturbed_probes_report_nothing() {
        assert_eq!(reported(&reading(&[0.33, 0.33, 0.29, 0.33], |_| {})), None);
        assert_eq!(reported(&reading(&TOO_SLOW[..2], |_| {})), None);
        let loaded = |record: &mut RunRecord| record.header.machine.load_average = Some([1.3, 0.5, 0.2]);
        assert_eq!(reported(&reading(TOO_SLOW, loaded)), None);
        let crowded = |record: &mut RunRecord| {
            record.samples.iter_mut().for_each(|it| it.waited_ns = Some((it.answered_ns - it.sent_ns) / 5));
        };
        assert_eq!(reported(&reading(TOO_SLOW, crowded)), None);
        let alone =
            |record: &mut RunRecord| record.samples.iter_mut().for_each(|it| it.waited_ns = Some(100));
        assert!(reported(&reading(TOO_SLOW, alone)).is_some());
    }
}
