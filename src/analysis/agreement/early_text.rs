//! The answers to dependent prompts, whose next token can depend on their first half. An engine that computes only a part of each
//! prompt gives tokens that are much less likely than the verifier's.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::bounds::Precision;
use super::gaps::gap as gap_of_answer;
use super::token_loss::gap as gap_of_token;
use super::tokens::SampleKey;
use super::verifier::Verifier;
use crate::record::{ReferenceToken, RunRecord, Sample};
use stats::binomial_tail;

/// The largest share of a correct engine's answers that rounding makes unlikely. In q4_0, 9 of 900 were (`MEASURED.md`).
const MAX_SHARE_OF_ROUNDING: f64 = 0.02;
/// In 6 bits or fewer, the share after dependent prompts may be this many times the share after text. In finer precision, an
/// engine could raise the share after text itself.
const MULTIPLE_OF_TEXT: f64 = 3.0;
/// The largest probability that a correct engine is called wrong.
const PROBABILITY: f64 = 1e-5;

/// The first tokens that a configuration gave after dependent prompts, as far as the verifier checked them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EarlyText {
    pub answers: usize,
    /// The answers that are not the verifier's token.
    pub differing: usize,
    /// The sum of their gaps: by how many nats they are less likely than the verifier's tokens.
    pub nats: f64,
    /// The answers with a larger gap than the largest mean gap of a correct engine in this precision.
    pub unlikely: usize,
    /// The share of tokens after text that are as unlikely. Only in 6 bits or fewer.
    #[serde(skip)]
    share_after_text: f64,
}

impl EarlyText {
    /// `None` without a checked answer.
    pub fn of(
        record: &RunRecord,
        configuration: usize,
        verifier: &Verifier,
        precision: Precision,
    ) -> Option<Self> {
        let plan = &record.header.plan;
        let (verifier, bounds) = (verifier.configuration?, precision.bounds());
        let of = |configuration| {
            let dependent = record.measured().filter(|it| it.dependent);
            dependent.filter(move |it| plan.cases[it.case].configuration == configuration)
        };
        let of_verifier: HashMap<&str, u32> =
            of(verifier).filter_map(|it| Some((it.prompt_hash.as_str(), first_id(it)?))).collect();
        let mut checked: HashMap<SampleKey, Option<f64>> = HashMap::new();
        // Of a longer output, a verifier that gives no likeliest ids checks the first token only if the token is unlikely.
        let is_only_token = |it: &&ReferenceToken| plan.cases[it.case].workload.max_new_tokens == 1;
        let of_verifier_at_0 = |it: &&ReferenceToken| it.verifier == verifier && it.position == 0;
        for answer in record.reference_tokens.iter().filter(of_verifier_at_0).filter(is_only_token) {
            let differs = answer.engine_token != answer.verifier_token;
            let gap = if differs { gap_of_answer(answer) } else { None };
            checked.insert((answer.launch, answer.case, answer.index), gap);
        }
        for output in record.checked_outputs.iter().filter(|it| it.verifier == verifier) {
            let first = output.differing.iter().find(|it| it.position == 0);
            checked.insert((output.launch, output.case, output.index), first.and_then(gap_of_token));
        }
        let mut all = Self::default();
        for sample in of(configuration) {
            let equals_verifier =
                first_id(sample).is_some_and(|id| of_verifier.get(sample.prompt_hash.as_str()) == Some(&id));
            let gap = checked.get(&(sample.launch, sample.case, sample.index));
            let Some(gap) = gap.copied().or(equals_verifier.then_some(None)) else { continue };
            all.answers += 1;
            all.differing += usize::from(gap.is_some());
            all.nats += gap.unwrap_or(0.0);
            all.unlikely += usize::from(gap.is_some_and(|gap| gap > bounds.gap));
        }
        if precision >= Precision::Bits6 {
            all.share_after_text = share_after_text(record, configuration, verifier, bounds.gap);
        }
        (all.answers > 0).then_some(all)
    }

    /// The mean gap of an answer.
    pub fn mean(&self) -> f64 {
        self.nats / self.answers.max(1) as f64
    }

    /// Whether more answers are unlikely than rounding explains.
    pub fn is_wrong(&self) -> bool {
        let share = MAX_SHARE_OF_ROUNDING.max(MULTIPLE_OF_TEXT * self.share_after_text).min(1.0);
        binomial_tail(self.unlikely, self.answers, share) < PROBABILITY
    }
}

/// The share of the checked tokens after other prompts whose gap is larger than `gap`.
fn share_after_text(record: &RunRecord, configuration: usize, verifier: usize, gap: f64) -> f64 {
    let plan = &record.header.plan;
    let after_text: HashSet<SampleKey> = record
        .measured()
        .filter(|it| !it.dependent && plan.cases[it.case].configuration == configuration)
        .map(|it| (it.launch, it.case, it.index))
        .collect();
    let (mut tokens, mut unlikely) = (0, 0);
    for output in record.checked_outputs.iter().filter(|it| it.verifier == verifier) {
        if after_text.contains(&(output.launch, output.case, output.index)) {
            tokens += output.positions as usize;
            unlikely += output.differing.iter().filter_map(gap_of_token).filter(|it| *it > gap).count();
        }
    }
    if tokens == 0 { 0.0 } else { unlikely as f64 / tokens as f64 }
}

fn first_id(sample: &Sample) -> Option<u32> {
    sample.iteration.sequences.first()?.output_ids.as_deref()?.first().copied()
}
