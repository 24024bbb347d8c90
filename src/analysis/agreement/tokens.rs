//! The tokens of measured requests: how messages name a generated text, and the check of token counts.

use std::collections::{BTreeMap, HashMap};

use protocol::{Capabilities, IgnoreEos};
use serde::Serialize;

use crate::plan::{Plan, Prompt};
use crate::record::{RunRecord, Sample};
use crate::text::{line, plural};

/// The launch, the case and the index of a sample.
pub type SampleKey = (u32, usize, u32);

/// A text that an engine generated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Text {
    /// The continuation of the held-out prompt.
    HeldOut,
    /// The output of a measured request.
    Sample { workload: String, index: u32, block: u32 },
}

impl Text {
    /// The name in a sentence: `` `decode` sample 3 (block 0) ``.
    pub fn name(&self) -> String {
        match self {
            Self::HeldOut => "the held-out prompt's continuation".into(),
            Self::Sample { workload, index, block } => format!("`{workload}` sample {index} (block {block})"),
        }
    }

    pub fn of(plan: &Plan, blocks: &HashMap<u32, u32>, (launch, case, index): SampleKey) -> Self {
        let workload = line(&plan.cases[case].workload.label);
        Self::Sample { workload, index, block: blocks.get(&launch).copied().unwrap_or(0) }
    }
}

/// The block of each launch.
pub fn blocks(record: &RunRecord) -> HashMap<u32, u32> {
    record.launches.iter().map(|it| (it.launch, it.block)).collect()
}

/// The measured greedy requests of a configuration, in their order.
pub fn greedy_samples(record: &RunRecord, configuration: usize) -> impl Iterator<Item = &Sample> {
    let cases = &record.header.plan.cases;
    record.measured().filter(move |sample| {
        let case = &cases[sample.case];
        case.configuration == configuration && case.workload.is_greedy()
    })
}

/// The wrong token counts of a configuration: a sentence for the first wrong prompt, and one for the first wrong output. Only
/// prompts that were sent as ids are checked. A prompt of the plan must have the planned length. For a prompt that the user gave
/// as text, the plan has no length, so the count that most engines report is right. The count of an output is wrong if the
/// request ignores EOS, the engine can do so, and the output does not have the requested length.
pub fn wrong_counts(record: &RunRecord, configuration: usize) -> Vec<String> {
    let plan = &record.header.plan;
    let hellos = record.launches.iter().filter_map(|it| Some((it.launch, it.hello.as_ref()?)));
    let capabilities: HashMap<u32, &Capabilities> =
        hellos.map(|(it, hello)| (it, &hello.capabilities)).collect();
    let configuration_of = |sample: &Sample| plan.cases[sample.case].configuration;
    let takes_ids = |it: &&Sample| {
        !it.prompt_hash.is_empty() && capabilities.get(&it.launch).is_some_and(|it| it.prompt_ids)
    };
    let may_end_early =
        |launch: u32| capabilities.get(&launch).is_some_and(|it| it.ignore_eos == IgnoreEos::No);
    // The engines with each count, by prompt and index in its batch.
    let mut counts: HashMap<(&str, usize), BTreeMap<u32, Vec<usize>>> = HashMap::new();
    for sample in record.measured().filter(takes_ids) {
        let engine = configuration_of(sample);
        for (in_batch, sequence) in sample.iteration.sequences.iter().enumerate() {
            let by_count = counts.entry((&sample.prompt_hash, in_batch)).or_default();
            let engines = by_count.entry(sequence.prompt_tokens).or_default();
            if !engines.contains(&engine) {
                engines.push(engine);
            }
        }
    }
    let blocks = blocks(record);
    let (mut wrong_prompt, mut wrong_output) = (None, None);
    for sample in record.measured().filter(|it| configuration_of(it) == configuration) {
        let workload = &plan.cases[sample.case].workload;
        let text = || Text::of(plan, &blocks, (sample.launch, sample.case, sample.index)).name();
        for (in_batch, sequence) in sample.iteration.sequences.iter().enumerate() {
            let reported = sequence.prompt_tokens;
            let expected = match &workload.prompt {
                Prompt::Tokens(planned) => {
                    let answer = |index: u32| {
                        let answer = sample.iteration.sequences.get(index as usize)?;
                        answer.output_ids.as_ref().map(|ids| ids.len() as u32)
                    };
                    workload.shape.length_with_history(*planned, in_batch as u32, answer)
                }
                Prompt::Text(_) => {
                    counts.get(&(sample.prompt_hash.as_str(), in_batch)).and_then(most_counted)
                }
            };
            if let Some(expected) = expected.filter(|&it| it != reported && takes_ids(&sample)) {
                wrong_prompt.get_or_insert_with(|| {
                    let expected = plural(expected, "prompt token");
                    format!("expected {expected} in {}, got {reported}", text())
                });
            }
            let given = sequence.output_ids.as_ref().map(Vec::len);
            let requested = workload.shape.output_length(workload.max_new_tokens, in_batch as u32) as usize;
            let has_fixed_length = workload.ignore_eos && !may_end_early(sample.launch);
            if let Some(given) = given.filter(|&given| has_fixed_length && given != requested) {
                let reason = || format!("expected {} in {}, got {given}", plural(requested, "token"), text());
                wrong_output.get_or_insert_with(reason);
            }
        }
    }
    wrong_prompt.into_iter().chain(wrong_output).collect()
}

/// The count that most engines report; `None` for a tie.
fn most_counted(counts: &BTreeMap<u32, Vec<usize>>) -> Option<u32> {
    let most = counts.values().map(Vec::len).max()?;
    let mut with_most = counts.iter().filter(|(_, engines)| engines.len() == most);
    let count = *with_most.next()?.0;
    with_most.next().is_none().then_some(count)
}
