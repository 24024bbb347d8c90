//! Checks token counts of engines that got the same ids: an engine with another count did other work.

use std::collections::{BTreeMap, HashMap};

use protocol::IgnoreEos;

use super::positions::{Text, blocks};
use crate::plan::Prompt;
use crate::record::{RunRecord, Sample};

/// The wrong token counts of a configuration, in one sentence for the first of each kind. A prompt counts if the engine got ids
/// and its number differs from those sent, or from most engines. An output counts if its length is not the requested one, EOS
/// ignored.
pub fn counted_otherwise(record: &RunRecord, configuration: usize) -> Vec<String> {
    let plan = &record.header.plan;
    let took_ids: HashMap<u32, bool> = record
        .launches
        .iter()
        .map(|it| (it.launch, it.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids)))
        .collect();
    let cut_short: HashMap<u32, bool> = record
        .launches
        .iter()
        .map(|it| {
            let policy = it.hello.as_ref().map(|hello| hello.capabilities.ignore_eos);
            (it.launch, policy == Some(IgnoreEos::No))
        })
        .collect();
    let of = |sample: &Sample| plan.cases[sample.case].configuration;
    let measured = || record.measured();
    let with_ids = |it: &&Sample| took_ids.get(&it.launch) == Some(&true) && !it.prompt_hash.is_empty();
    // The engines with each count, by prompt.
    let mut counts: HashMap<(&str, usize), BTreeMap<u32, Vec<usize>>> = HashMap::new();
    for sample in measured().filter(with_ids) {
        let engine = of(sample);
        for (number, sequence) in sample.iteration.sequences.iter().enumerate() {
            let of_count = counts.entry((&sample.prompt_hash, number)).or_default();
            let engines = of_count.entry(sequence.prompt_tokens).or_default();
            if !engines.contains(&engine) {
                engines.push(engine);
            }
        }
    }
    let blocks = blocks(record);
    let (mut prompts, mut outputs) = (None, None);
    for sample in measured().filter(|it| of(it) == configuration) {
        let workload = &plan.cases[sample.case].workload;
        let text = || Text::of(plan, &blocks, sample.launch, sample.case, sample.index).name();
        for (number, sequence) in sample.iteration.sequences.iter().enumerate() {
            let own = sequence.prompt_tokens;
            let expected = match &workload.prompt {
                Prompt::Tokens(planned) => Some(*planned),
                Prompt::Text(_) => counts.get(&(sample.prompt_hash.as_str(), number)).and_then(most_counted),
            };
            if let Some(expected) = expected.filter(|&it| it != own && with_ids(&sample)) {
                prompts.get_or_insert_with(|| {
                    format!("expected {expected} prompt tokens in {}, got {own}", text())
                });
            }
            let given = sequence.output_ids.as_ref().map(Vec::len);
            let asked = workload.max_new_tokens as usize;
            let short = workload.ignore_eos && cut_short.get(&sample.launch) != Some(&true);
            if let Some(given) = given.filter(|&given| short && given != asked) {
                outputs.get_or_insert_with(|| format!("expected {asked} tokens in {}, got {given}", text()));
            }
        }
    }
    prompts.into_iter().chain(outputs).collect()
}

/// The count of most engines; `None` for a tie.
fn most_counted(counts: &BTreeMap<u32, Vec<usize>>) -> Option<u32> {
    let most = counts.values().map(Vec::len).max()?;
    let mut with_most = counts.iter().filter(|(_, engines)| engines.len() == most);
    let count = *with_most.next()?.0;
    with_most.next().is_none().then_some(count)
}
