//! Compares greedy tokens with the verifier's: the same request, token by token, up to the first difference. Later tokens follow
//! another text and say nothing.

use std::collections::{BTreeSet, HashMap};

use protocol::IgnoreEos;
use serde::Serialize;

use super::tokens::{SampleKey, Text, blocks, greedy_samples};
use super::verifier::Verifier;
use crate::record::{Launch, RunRecord, Sample};

/// The agreement of an engine's greedy tokens with the verifier's.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Greedy {
    /// The number of texts that both continued.
    pub texts: usize,
    /// The number of texts with a difference.
    pub differing: usize,
    /// The verifier's tokens in these texts, and the number of them before the first difference of each text.
    pub compared: usize,
    pub equal: usize,
    /// The earliest difference.
    pub first: Option<FirstDifference>,
    /// One for each text with a difference.
    #[serde(skip)]
    pub differences: Vec<FirstDifference>,
    /// The cases with a request that was answered as by the verifier, to the end.
    #[serde(skip)]
    pub cases: BTreeSet<usize>,
}

/// The first token of a text that differs from the verifier's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    pub text: Text,
    /// Counted from 0.
    pub position: usize,
    /// `None` where one output ended before the other.
    pub theirs: Option<u32>,
    pub own: Option<u32>,
    /// The sample that gaps refer to.
    #[serde(skip)]
    pub sample: Option<SampleKey>,
}

impl Greedy {
    pub fn of<'r>(record: &'r RunRecord, configuration: usize, verifier: &Verifier) -> Option<Self> {
        let plan = &record.header.plan;
        let eos = Eos::of(record, configuration, verifier.configuration);
        let mut found = Self::default();
        if let Some(own) = verifier.continued {
            for continued in record.continued.iter().filter(|it| it.configuration == configuration) {
                found.compare(&continued.ids, eos.before(own), Text::HeldOut, None);
            }
        }
        if let Some(other) = verifier.configuration.filter(|other| *other != configuration) {
            let request = |sample: &'r Sample| {
                (sample.prompt_hash.as_str(), plan.cases[sample.case].workload.max_new_tokens)
            };
            let owns: HashMap<_, _> =
                greedy_samples(record, other).map(|it| (request(it), &it.iteration.sequences)).collect();
            let blocks = blocks(record);
            for sample in greedy_samples(record, configuration).filter(|it| !it.prompt_hash.is_empty()) {
                let own = owns.get(&request(sample)).into_iter().flat_map(|own| own.iter());
                for (theirs, own) in sample.iteration.sequences.iter().zip(own) {
                    if let (Some(theirs), Some(own)) = (&theirs.output_ids, &own.output_ids) {
                        let key = (sample.launch, sample.case, sample.index);
                        found.compare(theirs, eos.before(own), Text::of(plan, &blocks, key), Some(key));
                    }
                }
            }
        }
        (found.compared > 0).then_some(found)
    }

    fn compare(&mut self, theirs: &[u32], own: &[u32], text: Text, sample: Option<SampleKey>) {
        let equal = theirs.iter().zip(own).take_while(|(theirs, own)| theirs == own).count();
        self.texts += 1;
        self.compared += own.len();
        self.equal += equal;
        if equal == own.len() {
            self.cases.extend(sample.filter(|_| equal > 0).map(|(_, case, _)| case));
            return;
        }
        self.differing += 1;
        let (theirs, own) = (theirs.get(equal).copied(), own.get(equal).copied());
        let difference = FirstDifference { text, position: equal, theirs, own, sample };
        if self.first.as_ref().is_none_or(|first| difference.position < first.position) {
            self.first = Some(difference.clone());
        }
        self.differences.push(difference);
    }
}

/// The end of a comparison: an engine that masks EOS gives another token in its place.
struct Eos {
    masked: bool,
    ids: Vec<u32>,
}

impl Eos {
    fn of(record: &RunRecord, configuration: usize, verifier: Option<usize>) -> Self {
        let launches = |of: usize| record.launches.iter().filter(move |it| it.configuration == of);
        let masks = |it: &Launch| {
            it.hello.as_ref().is_some_and(|hello| hello.capabilities.ignore_eos == IgnoreEos::Masked)
        };
        let stated = |of: usize| {
            let facts = launches(of).filter_map(|it| Some(&it.loaded.as_ref()?.facts));
            facts.flat_map(|facts| facts.eos_ids.iter().flatten().copied()).collect::<Vec<u32>>()
        };
        let own = verifier.map(stated).unwrap_or_default();
        Self {
            masked: launches(configuration).any(masks),
            ids: if own.is_empty() { stated(configuration) } else { own },
        }
    }

    fn before<'a>(&self, own: &'a [u32]) -> &'a [u32] {
        let first = own.iter().position(|id| self.masked && self.ids.contains(id));
        first.map_or(own, |first| &own[..first])
    }
}
