//! Selects the unverified samples of a run, and the tokens of these samples that the verifier checks. This file does no input or
//! output.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::plan::prompts::Prompts;
use crate::plan::{Model, Role};
use crate::record::{RunRecord, Sample};
use stats::Random;

/// The maximum number of samples of each configuration that are checked at `MAX_POSITIONS` positions. If the configuration has
/// more workloads, one sample of each is checked in this way.
const MAX_SAMPLES: usize = 4;
/// The maximum number of checked positions of each of these samples.
const MAX_POSITIONS: usize = 8;
/// The maximum number of checked positions of the last sample of each workload in each block. These samples find output
/// that becomes wrong late in a launch. Three positions are enough, because such output is wrong from its first token on or at
/// its least likely ones.
const MAX_POSITIONS_OF_LAST: usize = 3;
/// The maximum number of samples with a dependent prompt that are checked of each workload.
const MAX_DEPENDENT: usize = 8;
/// The maximum number of further samples of each configuration. Of these, only the tokens that differ from the verifier's are
/// counted.
const MAX_FURTHER_SAMPLES: usize = 64;
/// Shorter outputs are no further samples, because their prompts would take long and check few positions. Outputs that depend on
/// all of a long prompt are an exception: each shows whether the engine computed the whole prompt.
const MIN_FURTHER_TOKENS: usize = 8;
/// The number of positions that are chosen because their tokens are the least likely ones to the verifier.
const LEAST_LIKELY_POSITIONS: usize = 3;

/// A measured sample that is unverified: the verifier was not measured with the same prompt, or gave other ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnverifiedSample {
    /// An index into the record's samples.
    pub sample: usize,
    pub configuration: usize,
    /// The first position where the verifier's measured output for the same prompt has another id, if there is one.
    pub differs_at: Option<usize>,
    /// The maximum number of positions to check. 0 for a further sample.
    pub max_positions: usize,
}

impl UnverifiedSample {
    /// Whether this is a further sample: only its tokens that differ from the verifier's are counted, if time remains.
    pub fn is_further(&self) -> bool {
        self.max_positions == 0
    }
}

/// The samples of this model to check, in order. Configurations take turns, and each workload is checked once before any
/// workload is checked twice. So an early end affects all configurations alike.
pub fn unverified_samples(
    record: &RunRecord,
    model: &Model,
    verifier: Option<usize>,
) -> Vec<UnverifiedSample> {
    let by_configuration = all_unverified(record, model, verifier);
    let chosen: Vec<Vec<Vec<UnverifiedSample>>> =
        by_configuration.into_values().map(|unverified_samples| choose(record, unverified_samples)).collect();
    let groups = chosen.iter().map(Vec::len).max().unwrap_or(0);
    let by_group =
        (0..groups).map(|group| chosen.iter().map(move |groups| groups.get(group).map_or(&[][..], |it| it)));
    by_group.flat_map(|lists| interleave(&lists.collect::<Vec<_>>())).collect()
}

/// Further samples, beside the chosen ones. Configurations take turns, and so do the long outputs and the long prompts of each
/// one.
pub fn further_samples(
    record: &RunRecord,
    model: &Model,
    verifier: Option<usize>,
    chosen: &[UnverifiedSample],
) -> Vec<UnverifiedSample> {
    let chosen: BTreeSet<usize> = chosen.iter().map(|it| it.sample).collect();
    let plan = &record.header.plan;
    let has_long_output = |it: &UnverifiedSample| {
        greedy_ids(record, &record.samples[it.sample]).is_some_and(|ids| ids.len() >= MIN_FURTHER_TOKENS)
    };
    let depends =
        |it: &UnverifiedSample| Prompts::can_depend(&plan.cases[record.samples[it.sample].case].workload);
    let further = |all: Vec<UnverifiedSample>| -> Vec<UnverifiedSample> {
        let others = all.into_iter().filter(|it| !chosen.contains(&it.sample));
        let others = others.map(|it| UnverifiedSample { max_positions: 0, ..it });
        let (mut long_prompts, others): (Vec<_>, Vec<_>) = others.partition(depends);
        let long_outputs: Vec<_> = others.into_iter().filter(has_long_output).collect();
        // The order is the same for all configurations, so that one answer serves all that gave the same token.
        Random::seeded(plan.seed).shuffle(&mut long_prompts);
        let mut mixed = interleave(&[&long_outputs, &long_prompts]);
        mixed.truncate(MAX_FURTHER_SAMPLES);
        mixed
    };
    let lists: Vec<Vec<UnverifiedSample>> =
        all_unverified(record, model, verifier).into_values().map(further).collect();
    interleave(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// The unverified samples of each configuration.
fn all_unverified(
    record: &RunRecord,
    model: &Model,
    verifier: Option<usize>,
) -> BTreeMap<usize, Vec<UnverifiedSample>> {
    let plan = &record.header.plan;
    let mut verifier_ids: HashMap<&str, &[u32]> = HashMap::new();
    // An output with drafts does not verify others: engines may share a fault of drafting.
    let of_verifier = |sample: &&Sample| {
        let case = &plan.cases[sample.case];
        Some(case.configuration) == verifier && case.workload.shape.speculation.is_off()
    };
    for sample in record.measured().filter(of_verifier) {
        if let Some(ids) = greedy_ids(record, sample) {
            verifier_ids.entry(&sample.prompt_hash).or_insert(ids);
        }
    }
    let mut by_configuration: BTreeMap<usize, Vec<UnverifiedSample>> = BTreeMap::new();
    for (index, sample) in record.measured_with_index() {
        let case = &plan.cases[sample.case];
        let configuration = &plan.configurations[case.configuration];
        let needs_check = matches!(configuration.role, None | Some(Role::Baseline { .. }))
            && configuration.model.path == model.path
            && Some(case.configuration) != verifier;
        let output = greedy_output(record, sample).filter(|it| needs_check && !it.is_empty());
        let ids = match output {
            Some(Output::Ids(ids)) => ids,
            Some(Output::Text { .. }) => &[],
            None => continue,
        };
        // The ids of a text are not known yet.
        let correct_ids = verifier_ids.get(&*sample.prompt_hash).filter(|_| !ids.is_empty());
        if correct_ids.is_some_and(|correct| *correct == ids) {
            continue;
        }
        let differs_at =
            correct_ids.map(|correct| correct.iter().zip(ids).take_while(|(id, other)| id == other).count());
        let differs_at = differs_at.filter(|&position| position < ids.len());
        let (configuration, max_positions) = (case.configuration, MAX_POSITIONS);
        let unverified = UnverifiedSample { sample: index, configuration, differs_at, max_positions };
        by_configuration.entry(case.configuration).or_default().push(unverified);
    }
    by_configuration
}

/// The output of a sample's checked sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<'a> {
    Ids(&'a [u32]),
    /// A text, with the number of tokens that the engine reports.
    Text {
        text: String,
        tokens: usize,
    },
}

impl Output<'_> {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Ids(ids) => ids.is_empty(),
            Self::Text { tokens, .. } => *tokens == 0,
        }
    }
}

/// The greedy output of the sample's checked sequence. `None` if the sample has no output, or if it was drawn with a temperature.
pub fn greedy_output<'a>(record: &RunRecord, sample: &'a Sample) -> Option<Output<'a>> {
    if let Some(ids) = greedy_ids(record, sample) {
        return Some(Output::Ids(ids));
    }
    let workload = &record.header.plan.cases[sample.case].workload;
    let sequence = sample.iteration.sequences.get(record.checked_sequence(sample))?;
    let chunks = sequence.chunks.as_ref().filter(|_| workload.is_greedy())?;
    let text = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
    Some(Output::Text { text, tokens: sequence.output_tokens? as usize })
}

/// The ids of the sample's checked sequence. `None` if the sample has no ids, or if they were drawn with a temperature.
pub fn greedy_ids<'a>(record: &RunRecord, sample: &'a Sample) -> Option<&'a [u32]> {
    let workload = &record.header.plan.cases[sample.case].workload;
    let sequence = sample.iteration.sequences.get(record.checked_sequence(sample))?;
    sequence.output_ids.as_deref().filter(|_| workload.is_greedy())
}

/// Merges lists: the first sample of each list, then the second sample of each list, and so on.
fn interleave(lists: &[&[UnverifiedSample]]) -> Vec<UnverifiedSample> {
    let longest = lists.iter().map(|list| list.len()).max().unwrap_or(0);
    (0..longest).flat_map(|turn| lists.iter().filter_map(move |list| list.get(turn).copied())).collect()
}

/// Groups of samples. A group has at most one sample of every workload, long outputs first. The first group has the last sample
/// of each workload, or the last one with a dependent prompt; the next groups have random samples, from as many
/// blocks as possible. So the check finds output that becomes wrong during the run. Then groups with a
/// dependent prompt of each workload take turns with groups that have the last sample of each workload in a block, the latest block
/// first. So the check also finds output that becomes wrong after some number of requests, which not every block may reach.
fn choose(record: &RunRecord, unverified_samples: Vec<UnverifiedSample>) -> Vec<Vec<UnverifiedSample>> {
    let sample = |unverified: &UnverifiedSample| &record.samples[unverified.sample];
    let mut by_case: BTreeMap<usize, Vec<UnverifiedSample>> = BTreeMap::new();
    for unverified in unverified_samples {
        by_case.entry(sample(&unverified).case).or_default().push(unverified);
    }
    let blocks: HashMap<u32, u32> = record.launches.iter().map(|it| (it.launch, it.block)).collect();
    let plan = &record.header.plan;
    let mut cases: Vec<(usize, Vec<UnverifiedSample>)> = by_case.into_iter().collect();
    cases.sort_by_key(|(case, _)| Reverse(plan.cases[*case].workload.max_new_tokens));
    let mut last_of_blocks: BTreeMap<Reverse<Option<u32>>, BTreeMap<usize, UnverifiedSample>> =
        BTreeMap::new();
    for (order, (_, unverified_samples)) in cases.iter().enumerate() {
        for unverified in unverified_samples {
            let block = blocks.get(&sample(unverified).launch).copied();
            // A later sample of the block replaces an earlier one.
            last_of_blocks.entry(Reverse(block)).or_default().insert(order, *unverified);
        }
    }
    let orders = cases.into_iter().map(|(_, mut unverified_samples)| {
        // A dependent prompt comes first, because it shows whether the engine computes whole prompts even if the time is short.
        let dependent = unverified_samples.iter().rposition(|it| sample(it).dependent);
        let last =
            dependent.map(|index| unverified_samples.remove(index)).or_else(|| unverified_samples.pop());
        // Every configuration has the same order, so that one answer serves all configurations with the same ids.
        Random::seeded(plan.seed).shuffle(&mut unverified_samples);
        let block = |unverified: &UnverifiedSample| blocks.get(&sample(unverified).launch).copied();
        let mut blocks_taken: BTreeSet<Option<u32>> = last.iter().map(block).collect();
        let (from_new_blocks, others): (Vec<_>, Vec<_>) =
            unverified_samples.into_iter().partition(|unverified| blocks_taken.insert(block(unverified)));
        last.into_iter().chain(from_new_blocks).chain(others).collect::<Vec<_>>()
    });
    let orders: Vec<Vec<UnverifiedSample>> = orders.collect();
    let longest = orders.iter().map(Vec::len).max().unwrap_or(0);
    let mut remaining = MAX_SAMPLES.max(orders.len());
    let mut groups = Vec::new();
    for turn in 0..longest {
        let group: Vec<UnverifiedSample> =
            orders.iter().filter_map(|order| order.get(turn).copied()).take(remaining).collect();
        remaining -= group.len();
        groups.push(group);
    }
    let mut last_of_blocks = last_of_blocks.into_values().map(|it| it.into_values().collect());
    let mut dependent: Vec<_> = orders
        .iter()
        .map(|order| order.iter().copied().filter(|it| sample(it).dependent).take(MAX_DEPENDENT).collect())
        .map(|of_case: Vec<UnverifiedSample>| of_case.into_iter())
        .collect();
    let mut chosen: BTreeSet<usize> = groups.iter().flatten().map(|it| it.sample).collect();
    loop {
        let last: Option<Vec<UnverifiedSample>> = last_of_blocks.next();
        let next_dependent: Vec<UnverifiedSample> = dependent.iter_mut().filter_map(Iterator::next).collect();
        if last.is_none() && next_dependent.is_empty() {
            return groups;
        }
        for group in [next_dependent, last.unwrap_or_default()] {
            let new = group.into_iter().filter(|it| chosen.insert(it.sample));
            let new = new.map(|it| UnverifiedSample { max_positions: MAX_POSITIONS_OF_LAST, ..it });
            groups.push(new.collect());
        }
    }
}

/// The positions to check in an output, the most important first because time may run out. They are the first difference from
/// the verifier's output, the last position, the least likely ids, and then positions spread over the output.
pub fn positions(
    length: usize,
    differs_at: Option<usize>,
    logprobs: &[Option<f64>],
    max_positions: usize,
) -> Vec<usize> {
    let last = length.saturating_sub(1);
    let mut by_likelihood: Vec<usize> = (0..length.min(logprobs.len())).collect();
    let logprob = |position: &usize| logprobs[*position].unwrap_or(f64::NEG_INFINITY);
    by_likelihood.sort_by(|a, b| logprob(a).total_cmp(&logprob(b)));
    let spread = (0..MAX_POSITIONS).map(|part| last * part / (MAX_POSITIONS - 1));
    // Further positions replace repeated ones.
    let wanted =
        differs_at.into_iter().chain([last]).chain(by_likelihood.into_iter().take(LEAST_LIKELY_POSITIONS));
    let mut positions: Vec<usize> = Vec::new();
    for position in wanted.chain(spread).chain(0..length).filter(|&position| position < length) {
        if positions.len() < max_positions && !positions.contains(&position) {
            positions.push(position);
        }
    }
    positions
}

#[cfg(test)]
mod tests;
