//! The latency of one answer in a chat, from two workloads of one record: the TTFT of the longest measured prompt, plus the time
//! of the further tokens at the rate of the decode workload.
//!
//! Each block gives a latency for each configuration, from the medians of its rounds. The latencies of a block are paired, as
//! the rounds of a workload are, so the comparison has an interval, a noise floor and a correction of the same kind.

use std::collections::BTreeMap;

use super::within::{row_of, stopped_by, stored_floors};
use crate::analysis::metric::{self, METRICS, MetricId};
use crate::analysis::values::Measured;
use crate::plan::{Order, Prompt, Role, Workload};
use stats::{Better, Blocks, Experiment, NoiseFloor, PairResult, Rounds, Series, StoppedBy, Twin, median};

/// The tokens of the answer: a short paragraph.
pub const ANSWER_TOKENS: u32 = 128;

/// The latency of each configuration, and the comparisons of pairs.
#[derive(Debug)]
pub struct ChatLatency<'a> {
    /// The workload of the first token; `None` if no workload measures it.
    pub first_token: Option<&'a Workload>,
    /// The workload of the further tokens; `None` if no workload measures them.
    pub decode: Option<&'a Workload>,
    /// The median over blocks, in nanoseconds.
    pub estimates: BTreeMap<usize, f64>,
    pub pairs: Vec<PairResult>,
}

impl<'a> ChatLatency<'a> {
    /// The latencies of a record, and the comparisons of these pairs. `None` if the record measures neither part.
    pub fn of(measured: &Measured<'a>, pairs: &[(usize, usize)]) -> Option<Self> {
        let plan = &measured.record.header.plan;
        let with_headline = |id: MetricId| {
            let workloads = measured.workloads.iter().enumerate();
            // A chat has one sequence, and its engine keeps the cache.
            let is_chat = |it: &Workload| it.shape.batch == 1 && it.shape.use_cache;
            let workloads = workloads.filter(move |(_, it)| is_chat(it));
            workloads.filter(move |(_, it)| metric::headline(plan, it).is_some_and(|metric| metric.id == id))
        };
        let prompt_tokens = |workload: &Workload| match &workload.prompt {
            Prompt::Tokens(tokens) => *tokens,
            Prompt::Text(_) => 0,
        };
        let first_token = with_headline(MetricId::FIRST_TOKEN).max_by_key(|(_, it)| prompt_tokens(it));
        let decode = with_headline(MetricId::DECODE_RATE).min_by_key(|(_, it)| prompt_tokens(it));
        let parts: Vec<Part> = [
            (first_token, MetricId::FIRST_TOKEN, first_token_ns as fn(f64) -> f64),
            (decode, MetricId::DECODE_RATE, further_tokens_ns),
        ]
        .into_iter()
        .filter_map(|(workload, id, ns)| {
            let (workload, metric) = (workload?.0, METRICS.iter().position(|it| it.id == id)?);
            Some(Part { workload, metric, ns })
        })
        .collect();
        if parts.is_empty() {
            return None;
        }
        let series = series(measured, &parts);
        let blocks_of = |index: usize| Some((index, &series.configurations[index]));
        let estimate = |(index, blocks): (usize, &Blocks)| {
            let values: Vec<f64> = blocks.values().flat_map(|rounds| rounds.values().copied()).collect();
            Some((index, median(&values)?))
        };
        let estimates = (0..series.configurations.len()).filter_map(blocks_of).filter_map(estimate).collect();
        let twins = plan.configurations.iter().enumerate().filter_map(|(twin, it)| match it.role {
            Some(Role::Twin { of }) => Some(Twin { twin, of }),
            _ => None,
        });
        let interleaved = plan.order == Order::Interleaved;
        let experiment = Experiment { interleaved, seed: None, twins: twins.collect(), series: vec![series] };
        let workload = |it: Option<(usize, &&'a Workload)>| it.map(|(_, workload)| *workload);
        Some(Self {
            first_token: workload(first_token),
            decode: workload(decode),
            estimates,
            pairs: experiment.compare(pairs),
        })
    }
}

/// One part of the latency: a metric of a workload, and the time that follows from a value.
struct Part {
    workload: usize,
    metric: usize,
    ns: fn(f64) -> f64,
}

fn first_token_ns(ns: f64) -> f64 {
    ns
}

fn further_tokens_ns(rate: f64) -> f64 {
    f64::from(ANSWER_TOKENS - 1) * 1e9 / rate
}

/// The latencies of all configurations. A block counts if it has every part.
fn series(measured: &Measured, parts: &[Part]) -> Series {
    let plan = &measured.record.header.plan;
    let of_configuration = |configuration: usize| -> Blocks {
        let parts: Vec<(&Part, Option<&Blocks>)> = parts
            .iter()
            .map(|part| (part, measured.blocks(part.workload, part.metric, configuration)))
            .collect();
        let blocks = parts.first().and_then(|(_, blocks)| *blocks).into_iter().flat_map(|it| it.keys());
        let latency = |block: u32| -> Option<f64> {
            let times = parts.iter().map(|(part, blocks)| {
                let rounds: Vec<f64> = blocks.as_ref()?.get(&block)?.values().copied().collect();
                Some((part.ns)(median(&rounds)?))
            });
            times.sum::<Option<f64>>().filter(|ns| ns.is_finite() && *ns > 0.0)
        };
        blocks.filter_map(|&block| Some((block, Rounds::from([(0, latency(block)?)])))).collect()
    };
    let stored = stored_floors(measured.record);
    // The relative noise of a sum is at most that of its noisiest part.
    let floor = |configuration: usize| -> Option<NoiseFloor> {
        let floors = parts.iter().filter_map(|part| {
            let (workload, id) = (measured.workloads[part.workload].label.as_str(), METRICS[part.metric].id);
            stored.get(&(configuration, workload, id)).copied()
        });
        floors.max_by(|a, b| a.log_ratio().total_cmp(&b.log_ratio()))
    };
    let stops = parts.iter().map(|it| stopped_by(measured.record, &measured.workloads[it.workload].label));
    // The interval of a fixed design is valid only if every part has a fixed number of blocks.
    let stopped_by = stops.fold(StoppedBy::Fixed, |all, it| if it == StoppedBy::Fixed { all } else { it });
    let all = || 0..plan.configurations.len();
    Series {
        better: Better::Lower,
        gating: true,
        stopped_by,
        floors: all().map(|it| floor(it).or_else(|| floor(row_of(plan, it)))).collect(),
        configurations: all().map(of_configuration).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::all_pairs;
    use crate::record::specimen::{BEACON, ORIGINAL, measured, selection};
    use stats::Verdict;

    #[test]
    fn the_latency_adds_the_ttft_of_the_longest_prompt_and_the_decode_time_of_the_answer() {
        let record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
        let values = Measured::of(&record);
        let latency = ChatLatency::of(&values, &all_pairs(&record.header.plan)).unwrap();
        assert_eq!(latency.first_token.map(|it| it.label.as_str()), Some("ttft 512"));
        assert_eq!(latency.decode.map(|it| it.label.as_str()), Some("decode"));
        let expected = |engine: &crate::record::specimen::InventedEngine| {
            1e6 * (512.0 * engine.prompt_token_ms + 128.0 * engine.token_ms)
        };
        for (configuration, engine) in [(0, ORIGINAL), (1, BEACON)] {
            let ratio = latency.estimates[&configuration] / expected(&engine);
            assert!((0.9..1.1).contains(&ratio), "{ratio}");
        }
        let comparison = latency.pairs[0].result.as_ref().unwrap();
        assert_eq!((latency.pairs[0].configuration, comparison.blocks), (1, 5));
        assert_eq!(comparison.decision.verdict, Some(Verdict::Faster));
        assert!(comparison.floor.is_some(), "the twin of the reference gives a noise floor");
    }

    #[test]
    fn a_record_without_ttft_and_decode_has_no_latency() {
        let load = crate::plan::scenario::named("load").unwrap();
        let selection = crate::plan::Selection { scenarios: load, ..selection(&["patient-original"]) };
        let record = measured(&selection, &[ORIGINAL]);
        assert!(ChatLatency::of(&Measured::of(&record), &[]).is_none());
    }
}
