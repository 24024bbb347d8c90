//! The answers to dependent prompts, whose next token depends on their first half. An engine that computes only a part of each
//! prompt gives the tokens of that part.

use serde::Serialize;

use super::tokens::greedy_samples;
use crate::plan::Verification;
use crate::plan::prompts::dependent::NextToken;
use crate::record::RunRecord;
use crate::text::{line, with_commas};

/// The least number of differing answers in a workload: a single one may be due to rounding.
const MIN_DIFFERING: usize = 2;
/// The least number of different prompts with a differing answer, over all workloads: the random ids at the start of a request
/// may change the token of one stored prompt.
const MIN_DIFFERING_PROMPTS: usize = 2;

/// The answers of a configuration to dependent prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EarlyText {
    pub answers: usize,
    /// The answers that are not the stored next token.
    pub differing: usize,
    /// The reasons why the answers are wrong, one for each workload in which they are.
    #[serde(skip)]
    pub wrong: Vec<String>,
}

impl EarlyText {
    /// Counts the answers of an engine that takes ids. A prompt counts only if every other token is less likely by more than
    /// `largest_gap`, that of a correct engine in this precision: then rounding does not explain another token. `None` without
    /// such an answer, or if the user named the verifier: the stored tokens may be those of another engine.
    pub fn of(record: &RunRecord, configuration: usize, largest_gap: f64) -> Option<Self> {
        let plan = &record.header.plan;
        if plan.verification != Verification::Usual {
            return None;
        }
        let takes_ids = record
            .launches_of(configuration)
            .any(|launch| launch.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids));
        let mut all = Self::default();
        let mut differing_prompts: Vec<&NextToken> = Vec::new();
        for (index, case) in plan.cases.iter().enumerate().filter(|_| takes_ids) {
            let (mut answers, mut differing, mut of_parts) = (0, 0, 0);
            let mut differing_prompts_of_case: Vec<&NextToken> = Vec::new();
            for sample in greedy_samples(record, configuration).filter(|it| it.case == index) {
                let ids = sample.iteration.sequences.first().and_then(|it| it.output_ids.as_deref());
                let next = sample.next.as_ref().filter(|next| next.margin > largest_gap);
                let Some((next, id)) = next.zip(ids.and_then(<[u32]>::first)) else { continue };
                answers += 1;
                if *id != next.token {
                    differing += 1;
                    of_parts += usize::from(next.after_parts.contains(id));
                    differing_prompts_of_case.push(next);
                }
            }
            if differing >= MIN_DIFFERING && 2 * differing > answers {
                for next in differing_prompts_of_case {
                    if !differing_prompts.contains(&next) {
                        differing_prompts.push(next);
                    }
                }
                let (workload, answered) = (line(&case.workload.label), with_commas(answers));
                all.wrong.push(format!(
                    "in `{workload}`, the next token of {answered} prompts depends on their first half: {} answers differ from \
                     the reference answers, and {} are those to a shorter prompt",
                    with_commas(differing),
                    with_commas(of_parts)
                ));
            }
            all.answers += answers;
            all.differing += differing;
        }
        if differing_prompts.len() < MIN_DIFFERING_PROMPTS {
            all.wrong.clear();
        }
        (all.answers > 0).then_some(all)
    }
}
