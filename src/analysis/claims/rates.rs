//! Compares the rates of an engine with the limits of the machine: the memory bandwidth and the rates of the arithmetic units
//! that the probes of the run found. Every step of a decode reads all weights once, and every token needs two operations for each
//! weight. So no engine exceeds a limit. Weights in a cache need no bandwidth of memory, but they need the operations.
//!
//! A probe may find less than the limit: other virtual machines on the host change the speed of memory, and a busy program halves
//! it. To contradict a correct engine is worse than to miss a small exaggeration. So a rate above twice the best probe counts only if
//! several probes agree and nothing else ran. A rate that no such change explains counts in any case (`MEASURED.md`).

use super::configuration_data::{About, ConfigurationData, Contradiction};
use crate::analysis::metric::limits::{Limit, limits};
use crate::analysis::metric::share::{self, bandwidth_limit};
use crate::analysis::metric::{self, CoresBusy, MetricId, Observation};
use crate::record::RunRecord;
use crate::text::three_digits;
use stats::median;

/// The largest accepted share of the best probe's bandwidth, if the probes agree and nothing else ran: the largest observed ratio
/// between a machine's two levels of bandwidth (`MEASURED.md`).
const MAX_SHARE: f64 = 2.0;
/// The least number of probes for the narrower bounds. If there are fewer, other programs may have slowed all of them.
const MIN_PROBES: usize = 3;
/// The largest mean number of threads that were ready but waited for a core, over all engines; the same as in `threads.rs`.
const MAX_WAITING_THREADS: f64 = 0.1;
/// The largest accepted share of the best probe's bandwidth, if the probes differ or something else ran: `MAX_SHARE`, times two
/// for a busy program. It is always the bound for operations. Their probes differ by only 6 %, but a unit that no probe measures
/// may be twice as fast (8-bit numbers on a GPU).
const MAX_SHARE_OF_ANY_PROBE: f64 = 4.0;
/// The largest accepted share of the best bandwidth of fewer than `MIN_PROBES` probes: single probes on a busy machine found
/// 4 to 68 GB/s.
const MAX_SHARE_OF_FEW_PROBES: f64 = 20.0;
/// The architecture whose units are probed. On others, an engine may use an unprobed unit that is many times as fast.
const ARCHITECTURE_WITH_PROBED_UNITS: &str = "x86_64";

/// A rate of an engine in one case, as a share of a limit.
struct Rate {
    case: usize,
    share: f64,
    /// The largest share without a contradiction.
    max_share: f64,
    limit_kind: LimitKind,
}

/// The limit that a rate is a share of.
enum LimitKind {
    Bandwidth,
    Operations,
}

pub fn contradictions(subject: &ConfigurationData, _: &[ConfigurationData]) -> Vec<Contradiction> {
    let limits = limits(subject.record);
    let rates = subject.cases().flat_map(|case| {
        let of_case = [bandwidth(subject, case, &limits), operations(subject, case)];
        of_case.into_iter().flatten()
    });
    // A rate that exceeds several limits is one contradiction.
    let largest = rates.max_by(|a, b| (a.share / a.max_share).total_cmp(&(b.share / b.max_share)));
    largest.and_then(|rate| contradiction(subject, &rate)).into_iter().collect()
}

/// The bandwidth that the decode of a case needs.
fn bandwidth(subject: &ConfigurationData, case: usize, limits: &[Limit]) -> Option<Rate> {
    let key = subject.values.observations(case).find_map(|observed| bandwidth_limit(&observed))?;
    let limit = limits.iter().find(|it| it.key == key)?;
    // The share as the table shows it.
    let metric = metric::by_id(MetricId::BANDWIDTH_SHARE);
    let share = subject.values.of_metric(case, metric).summary()?.estimate;
    // One probe of a GPU is enough, because its limits do not change.
    let has_many_probes = !key.device.is_cpu() || limit.probes.len() >= MIN_PROBES;
    let max_share = match has_many_probes {
        true if is_reliable(limit) && !is_busy(subject.record) => MAX_SHARE,
        true => MAX_SHARE_OF_ANY_PROBE,
        false => MAX_SHARE_OF_FEW_PROBES,
    };
    let max_share = max_share * cores_for_each_thread(subject, case);
    Some(Rate { case, share, max_share, limit_kind: LimitKind::Bandwidth })
}

/// The operations that the prefill or the decode of a case needs, whichever is the larger share.
fn operations(subject: &ConfigurationData, case: usize) -> Option<Rate> {
    if subject.is_on_cpu() && subject.record.header.machine.architecture != ARCHITECTURE_WITH_PROBED_UNITS {
        return None;
    }
    let of = |share: fn(&Observation) -> Option<f64>| {
        let shares: Vec<f64> = subject.values.observations(case).filter_map(|it| share(&it)).collect();
        median(&shares)
    };
    let prefill = of(|observed| share::compute(observed).first().copied());
    let share = prefill.into_iter().chain(of(share::compute_of_decode)).reduce(f64::max)?;
    let max_share = MAX_SHARE_OF_ANY_PROBE * cores_for_each_thread(subject, case);
    Some(Rate { case, share, max_share, limit_kind: LimitKind::Operations })
}

/// The number of cores that an engine used for each requested thread, at least 1. The limits are those of the requested threads.
/// So this number raises the bound of an engine that uses more threads, unless it reports the requested number.
fn cores_for_each_thread(subject: &ConfigurationData, case: usize) -> f64 {
    let cpu = &subject.record.header.machine.cpu;
    let (Some(cores), true) = (cpu.allowed_cores.or(cpu.logical_cores), subject.is_on_cpu()) else {
        return 1.0;
    };
    let reported = f64::from(subject.fact(|facts| facts.threads).unwrap_or(cores).min(cores));
    let observed = CoresBusy::of(subject.values.samples(case)).filter(|_| subject.all_work_is_observed());
    let used = observed.map_or(reported, |busy| busy.cores.ceil().min(reported));
    (used / f64::from(subject.configuration.threads.max(1))).max(1.0)
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
    was_busy || waited > MAX_WAITING_THREADS * elapsed
}

fn contradiction(subject: &ConfigurationData, rate: &Rate) -> Option<Contradiction> {
    if rate.share <= rate.max_share {
        return None;
    }
    let unreported = || "unreported".to_string();
    let case = subject.case_name(rate.case);
    let observed = format!("{}x", three_digits(rate.share));
    let (reported, message) = match rate.limit_kind {
        LimitKind::Bandwidth => {
            let reported = subject.fact(|facts| facts.weights_dtype.clone()).unwrap_or_else(unreported);
            let message = format!(
                "reports `{reported}` weights, but {case} would need {observed} the bandwidth of this run's best probe: its times \
                 or its weights are not as reported"
            );
            (reported, message)
        }
        LimitKind::Operations => {
            let reported = subject.fact(|facts| facts.compute_dtype.clone()).unwrap_or_else(unreported);
            let message = format!(
                "reports that it computes in `{reported}`, but {case} would need {observed} the operations per second of this \
                 run's best probe: its times are not as reported, or it did not compute the answers"
            );
            (reported, message)
        }
    };
    Some(subject.contradiction(About::Dtype, reported, observed, &message))
}

#[cfg(test)]
mod tests {
    use machine_limits::{Limits, Operations, Reads, names};

    use super::super::specimen::{
        BEACON_INDEX, change_facts, contradictions, decode_record, record_of, samples,
    };
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

    /// A record of one scenario in which a token of beacon needs 200 million operations. The weights are in a cache, and the only
    /// probe found this many operations per second.
    fn with_unit(scenario: &str, per_second: f64, change: impl FnOnce(&mut RunRecord)) -> RunRecord {
        record_of(&[scenario], |record| {
            let sizes = Sizes { read_per_token: 100_000_000, ..Sizes::default() };
            record.header.plan.configurations[BEACON_INDEX].model.sizes = Some(sizes);
            let cache = Cache { level: 3, kind: "Unified".into(), size_bytes: 4 << 30, shared_by: 2 };
            record.header.machine.cpu.caches = vec![cache];
            let unit = Operations {
                unit: names::F32_FMA.into(),
                loads: false,
                threads: 2,
                operations: per_second as u64,
                ns: 1_000_000_000,
            };
            let probed = Limits { units: vec![unit], ..Limits::default() };
            record.limits.push(record::Limits { block: 0, probed });
            change(record);
        })
    }

    /// Makes the prefill of beacon one second longer, so that it needs fewer operations per second than the decode.
    fn slow_prefill(record: &mut RunRecord) {
        for sample in samples(record) {
            let times = sample.iteration.sequences[0].token_ns.iter_mut().flatten();
            times
                .chain([&mut sample.iteration.end_ns, &mut sample.answered_ns])
                .for_each(|ns| *ns += BILLION);
        }
    }

    const BILLION: u64 = 1_000_000_000;
    /// The operations per second of beacon's decode, and of its prefill of 1,024 tokens and the step for its first token.
    const DECODE_OPERATIONS: f64 = 2e8 / (BEACON.token_ms / 1e3);
    const PREFILL_OPERATIONS: f64 =
        1024.0 * 2e8 / ((1024.0 * BEACON.prompt_token_ms + BEACON.token_ms) / 1e3);

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
    fn the_share_in_the_warning_equals_the_share_in_the_table() {
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
    fn a_rate_above_four_times_the_best_probe_is_reported_though_probes_differ_and_others_ran() {
        let busy = |record: &mut RunRecord| record.header.machine.load_average = Some([9.0, 9.0, 9.0]);
        let found = contradiction_of(&with_probes(&[0.05, 0.22, 0.11], busy)).unwrap();
        assert!(found.excludes_from_ranking && found.observed.starts_with("4."), "{found:?}");
        assert_eq!(contradiction_of(&with_probes(&[0.05, 0.3, 0.11], busy)), None);
        // One or two probes may all have been slowed down.
        assert_eq!(contradiction_of(&with_probes(&[0.22, 0.11], busy)), None);
        assert!(contradiction_of(&with_probes(&[0.04], busy)).is_some());
    }

    #[test]
    fn a_rate_above_the_probed_operations_is_reported_for_weights_in_a_cache_too() {
        let prefill = |times| contradiction_of(&with_unit("prefill", PREFILL_OPERATIONS / times, |_| {}));
        let decode = |times| contradiction_of(&with_unit("decode", DECODE_OPERATIONS / times, slow_prefill));
        for found in [prefill(5.0).unwrap(), decode(5.0).unwrap()] {
            assert_eq!((found.configuration, found.reported.as_str()), (BEACON_INDEX, "f32"));
            let expected = "the operations per second of this run's best probe";
            let is_five = ["4.", "5."].iter().any(|it| found.observed.starts_with(it));
            assert!(found.message.contains(expected) && is_five, "{found:?}");
        }
        assert_eq!([prefill(3.0), decode(3.0)], [None, None]);
    }

    #[test]
    fn rates_are_not_compared_with_probes_of_another_processor_architecture() {
        let on_arm = |record: &mut RunRecord| record.header.machine.architecture = "aarch64".into();
        assert_eq!(contradiction_of(&with_unit("decode", DECODE_OPERATIONS / 100.0, on_arm)), None);
    }

    #[test]
    fn an_engine_that_uses_more_threads_than_requested_has_the_limit_of_its_threads() {
        let found = |threads, busy_cores| {
            let change = |record: &mut RunRecord| {
                record.header.machine.cpu.allowed_cores = Some(8);
                change_facts(record, |facts| facts.threads = threads);
                samples(record).for_each(|it| it.cpu_ns = Some(busy_cores * it.elapsed_ns()));
            };
            contradiction_of(&with_unit("prefill", PREFILL_OPERATIONS / 7.0, change))
        };
        assert_eq!([found(Some(8), 8), found(None, 8)], [None, None]);
        // It does not use the threads that it reports, or reports the requested ones.
        assert!(found(Some(8), 2).is_some() && found(None, 2).is_some() && found(Some(2), 8).is_some());
    }

    #[test]
    fn few_unsteady_or_disturbed_probes_report_nothing() {
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
