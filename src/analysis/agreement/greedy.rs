//! Compares the greedy tokens of an engine and of the verifier in the same request, up to the first difference. Later tokens
//! follow different texts, so they are not compared.

use std::collections::{BTreeSet, HashMap};

use protocol::IgnoreEos;
use serde::Serialize;

use super::tokens::{SampleKey, Text, blocks, greedy_samples};
use super::verifier::Verifier;
use crate::record::{Launch, RunRecord, Sample};

/// The agreement of an engine's greedy tokens with the verifier's.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Greedy {
    /// The number of texts that the engine and the verifier continued.
    pub texts: usize,
    /// The number of texts with a difference.
    pub differing: usize,
    /// The number of the verifier's tokens in the texts that both continued.
    pub compared: usize,
    /// The number of tokens before each text's first difference, in total.
    pub equal: usize,
    /// The difference at the lowest position in its text.
    pub first: Option<FirstDifference>,
    /// The number of the verifier's tokens in measured samples without a difference.
    #[serde(skip)]
    pub equal_sample_tokens: usize,
    /// The first difference of each text with a difference.
    #[serde(skip)]
    pub differences: Vec<FirstDifference>,
    /// The cases with an output whose tokens all equal the verifier's.
    #[serde(skip)]
    pub equal_cases: BTreeSet<usize>,
}

/// The first token of a text that differs from the verifier's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    pub text: Text,
    /// Counted from 0.
    pub position: usize,
    /// The engine's token; `None` if the engine's output ended.
    pub engine_token: Option<u32>,
    /// The verifier's token. Tokens of the engine after the verifier's last one are no difference.
    pub verifier_token: u32,
    /// The measured sample with this text; `None` for the held-out prompt.
    #[serde(skip)]
    pub sample: Option<SampleKey>,
}

impl Greedy {
    pub fn of<'r>(record: &'r RunRecord, configuration: usize, verifier: &Verifier) -> Option<Self> {
        let plan = &record.header.plan;
        let eos = Eos::of(record, configuration, verifier.configuration);
        let mut greedy = Self::default();
        if let Some(verifier_ids) = verifier.continued {
            for continued in record.continued.iter().filter(|it| it.configuration == configuration) {
                greedy.compare(&continued.ids, eos.cut(verifier_ids), Text::HeldOut, None);
            }
        }
        if let Some(verifier_index) = verifier.configuration.filter(|it| *it != configuration) {
            let request = |sample: &'r Sample| {
                (sample.prompt_hash.as_str(), plan.cases[sample.case].workload.max_new_tokens)
            };
            let of_verifier: HashMap<_, _> = greedy_samples(record, verifier_index)
                .map(|it| (request(it), &it.iteration.sequences))
                .collect();
            let blocks = blocks(record);
            for sample in greedy_samples(record, configuration).filter(|it| !it.prompt_hash.is_empty()) {
                let Some(expected) = of_verifier.get(&request(sample)) else { continue };
                // Of a batch, only the sequence counts that the verifier checks too.
                let index = record.checked_sequence(sample);
                let [sequence, expected] = [&sample.iteration.sequences, *expected].map(|it| it.get(index));
                let ids = sequence.and_then(|it| it.output_ids.as_ref());
                let expected = expected.and_then(|it| it.output_ids.as_ref());
                if let (Some(ids), Some(expected)) = (ids, expected) {
                    let key = (sample.launch, sample.case, sample.index);
                    greedy.compare(ids, eos.cut(expected), Text::of(plan, &blocks, key), Some(key));
                }
            }
        }
        (greedy.compared > 0).then_some(greedy)
    }

    fn compare(&mut self, engine: &[u32], verifier: &[u32], text: Text, sample: Option<SampleKey>) {
        let equal = engine.iter().zip(verifier).take_while(|(a, b)| a == b).count();
        self.texts += 1;
        self.compared += verifier.len();
        self.equal += equal;
        let Some(&verifier_token) = verifier.get(equal) else {
            self.equal_sample_tokens += sample.map_or(0, |_| verifier.len());
            self.equal_cases.extend(sample.filter(|_| equal > 0).map(|(_, case, _)| case));
            return;
        };
        self.differing += 1;
        let engine_token = engine.get(equal).copied();
        let difference = FirstDifference { text, position: equal, engine_token, verifier_token, sample };
        if self.first.as_ref().is_none_or(|first| difference.position < first.position) {
            self.first = Some(difference.clone());
        }
        self.differences.push(difference);
    }
}

/// The ids at which a comparison ends. An engine that masks EOS gives another token in place of EOS, so its tokens are compared
/// up to the verifier's first EOS.
struct Eos {
    is_masked: bool,
    ids: Vec<u32>,
}

impl Eos {
    fn of(record: &RunRecord, configuration: usize, verifier: Option<usize>) -> Self {
        let launches = |index: usize| record.launches.iter().filter(move |it| it.configuration == index);
        let masks = |it: &Launch| {
            it.hello.as_ref().is_some_and(|hello| hello.capabilities.ignore_eos == IgnoreEos::Masked)
        };
        let reported = |index: usize| {
            let facts = launches(index).filter_map(|it| Some(&it.loaded.as_ref()?.facts));
            facts.flat_map(|facts| facts.eos_ids.iter().flatten().copied()).collect::<Vec<u32>>()
        };
        let of_verifier = verifier.map(reported).unwrap_or_default();
        Self {
            is_masked: launches(configuration).any(masks),
            ids: if of_verifier.is_empty() { reported(configuration) } else { of_verifier },
        }
    }

    /// The ids before the first EOS if the engine masks EOS, else all ids.
    fn cut<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        let first = ids.iter().position(|id| self.is_masked && self.ids.contains(id));
        first.map_or(ids, |first| &ids[..first])
    }
}
