//! The unverified tokens of a run, and the ones to check. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::plan::{Model, Role};
use crate::record::{RunRecord, Sample};
use stats::Random;

/// The maximum number of samples of each configuration, unless it has more workloads.
const SAMPLES: usize = 4;
/// The maximum number of positions of each sample.
const POSITIONS: usize = 8;
/// The number of positions that are the least likely ones to the verifier.
const LEAST_LIKELY: usize = 3;

/// A measured sample that is not verified: the verifier was not measured with the same prompt, or gave other ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UncheckedSample {
    /// An index into the record's samples.
    pub sample: usize,
    pub configuration: usize,
    /// The first position where the verifier's own output has another id.
    pub differs_at: Option<usize>,
}

/// The samples to check: for each configuration on a model one unverified sample of every workload, in turn, and only then second
/// ones. If time runs out, every configuration has had equally much.
pub fn unchecked_samples(record: &RunRecord, model: &Model, verifier: Option<usize>) -> Vec<UncheckedSample> {
    let plan = &record.header.plan;
    let mut by_prompt: HashMap<&str, &[u32]> = HashMap::new();
    let of_verifier = |sample: &&Sample| Some(plan.cases[sample.case].configuration) == verifier;
    for sample in record.measured().filter(of_verifier) {
        if let Some(ids) = greedy_ids(record, sample) {
            by_prompt.entry(&sample.prompt_hash).or_insert(ids);
        }
    }
    let mut by_configuration: BTreeMap<usize, Vec<UncheckedSample>> = BTreeMap::new();
    for (at, sample) in record.measured_with_index() {
        let case = &plan.cases[sample.case];
        let configuration = &plan.configurations[case.configuration];
        let is_asked = matches!(configuration.role, None | Some(Role::Baseline { .. }))
            && configuration.model.path == model.path
            && Some(case.configuration) != verifier;
        let Some(ids) = greedy_ids(record, sample).filter(|ids| is_asked && !ids.is_empty()) else {
            continue;
        };
        let verified = by_prompt.get(&*sample.prompt_hash);
        if verified.is_some_and(|verified| *verified == ids) {
            continue;
        }
        let differs_at =
            verified.map(|verified| verified.iter().zip(ids).take_while(|(one, other)| one == other).count());
        let differs_at = differs_at.filter(|&position| position < ids.len());
        let unchecked = UncheckedSample { sample: at, configuration: case.configuration, differs_at };
        by_configuration.entry(case.configuration).or_default().push(unchecked);
    }
    let chosen: Vec<Vec<Vec<UncheckedSample>>> =
        by_configuration.into_values().map(|unchecked_samples| choose(record, unchecked_samples)).collect();
    let in_rounds =
        (0..SAMPLES).map(|round| chosen.iter().map(move |of| of.get(round).map_or(&[][..], |it| it)));
    in_rounds.flat_map(|of_round| in_turn(&of_round.collect::<Vec<_>>())).collect()
}

/// The ids of a greedy sample.
pub fn greedy_ids<'a>(record: &RunRecord, sample: &'a Sample) -> Option<&'a [u32]> {
    let workload = &record.header.plan.cases[sample.case].workload;
    let [sequence] = &sample.iteration.sequences[..] else { return None };
    sequence.output_ids.as_deref().filter(|_| workload.is_greedy())
}

/// The first of each, then the second of each, until none has more.
fn in_turn(orders: &[&[UncheckedSample]]) -> Vec<UncheckedSample> {
    let longest = orders.iter().map(|of| of.len()).max().unwrap_or(0);
    (0..longest).flat_map(|turn| orders.iter().filter_map(move |of| of.get(turn).copied())).collect()
}

/// Rounds of samples, each with one sample of every workload, long outputs first. A workload's last sample comes first, then
/// random ones from as many blocks as possible. So correct output at the start or in one block is not enough.
fn choose(record: &RunRecord, unchecked_samples: Vec<UncheckedSample>) -> Vec<Vec<UncheckedSample>> {
    let sample = |unchecked: &UncheckedSample| &record.samples[unchecked.sample];
    let mut by_case: BTreeMap<usize, Vec<UncheckedSample>> = BTreeMap::new();
    for unchecked in unchecked_samples {
        by_case.entry(sample(&unchecked).case).or_default().push(unchecked);
    }
    let blocks: HashMap<u32, u32> = record.launches.iter().map(|it| (it.launch, it.block)).collect();
    let plan = &record.header.plan;
    let mut cases: Vec<(usize, Vec<UncheckedSample>)> = by_case.into_iter().collect();
    cases.sort_by_key(|(case, _)| std::cmp::Reverse(plan.cases[*case].workload.max_new_tokens));
    let orders = cases.into_iter().map(|(_, mut unchecked_samples)| {
        let last = unchecked_samples.pop();
        // The same order for every configuration: if all gave the same ids, one answer serves them all.
        Random::seeded(plan.seed).shuffle(&mut unchecked_samples);
        let block = |unchecked: &UncheckedSample| blocks.get(&sample(unchecked).launch).copied();
        let mut blocks_taken: BTreeSet<Option<u32>> = last.iter().map(block).collect();
        let (new, again): (Vec<_>, Vec<_>) =
            unchecked_samples.into_iter().partition(|unchecked| blocks_taken.insert(block(unchecked)));
        last.into_iter().chain(new).chain(again).collect::<Vec<_>>()
    });
    let orders: Vec<Vec<UncheckedSample>> = orders.collect();
    let longest = orders.iter().map(Vec::len).max().unwrap_or(0);
    let mut room = SAMPLES.max(orders.len());
    let mut rounds = Vec::new();
    for turn in 0..longest {
        let round: Vec<UncheckedSample> =
            orders.iter().filter_map(|of| of.get(turn).copied()).take(room).collect();
        room -= round.len();
        rounds.push(round);
    }
    rounds
}

/// The positions to check in an output, the most important first because time may run out. They are the first difference from the
/// verifier's output, the end, the least likely ids, and then others from the beginning to the end.
pub fn positions(length: usize, differs_at: Option<usize>, likely: &[Option<f64>]) -> Vec<usize> {
    let last = length.saturating_sub(1);
    let mut by_likelihood: Vec<usize> = (0..length.min(likely.len())).collect();
    let of = |position: &usize| likely[*position].unwrap_or(f64::NEG_INFINITY);
    by_likelihood.sort_by(|one, other| of(one).total_cmp(&of(other)));
    let spread = (0..POSITIONS).map(|part| last * part / (POSITIONS - 1));
    // Repeated positions are replaced by any others.
    let wanted = differs_at.into_iter().chain([last]).chain(by_likelihood.into_iter().take(LEAST_LIKELY));
    let mut positions: Vec<usize> = Vec::new();
    for position in wanted.chain(spread).chain(0..length).filter(|&position| position < length) {
        if positions.len() < POSITIONS && !positions.contains(&position) {
            positions.push(position);
        }
    }
    positions
}

#[cfg(test)]
mod tests;
