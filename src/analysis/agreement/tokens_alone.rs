//! Engines without `score`: their tokens alone are compared with the verifier's. An engine that gives text has the tokens that the
//! verifier reads from it (`run/read_text.rs`).

use super::bounds::{NEAR_TIE, Precision};
use super::status::{Agreement, Status, two_digits};
use super::tokens::{Text, blocks};
use super::verifier::Verifier;
use crate::record::{CheckedOutput, RunRecord};
use crate::shell::HINT;
use crate::text::{plural, with_commas};

/// The fewest compared tokens of an engine without `score`. The text of another model has fewer equal tokens in any precision.
const MIN_TOKENS: usize = 32;

/// Whether an engine gives log-probabilities. An engine that was never launched counts as one that does.
pub fn can_score(record: &RunRecord, configuration: usize) -> bool {
    let mut hellos = record.launches_of(configuration).filter_map(|launch| launch.hello.as_ref()).peekable();
    hellos.peek().is_none() || hellos.any(|hello| hello.capabilities.score)
}

/// Whether an engine gives text in place of ids.
fn gives_text(record: &RunRecord, configuration: usize) -> bool {
    let mut hellos = record.launches_of(configuration).filter_map(|launch| launch.hello.as_ref());
    hellos.any(|hello| hello.output == protocol::Output::Text)
}

/// Whether the verifier may read other tokens than the engine gave. It reads a text by its own likeliest tokens. An engine that
/// rounds gives some other tokens, and after one of them, the same text can be divided in another way.
pub fn may_misread(record: &RunRecord, configuration: usize, precision: Precision) -> bool {
    precision != Precision::Full && gives_text(record, configuration)
}

/// The reasons why a text that differs from the verifier's verifies nothing, and contradicts nothing.
pub fn misread(differences: &[String]) -> Vec<String> {
    let why =
        "it gives only text and rounds to few bits, so the verifier may have divided the text in another way";
    differences.iter().take(1).cloned().chain([why.into()]).collect()
}

/// The status of an engine without `score` whose tokens were checked in every workload, with the reasons why it is no better.
pub fn status(record: &RunRecord, configuration: usize, agreement: &Agreement) -> (Status, Vec<String>) {
    let compared = [
        agreement.token_loss.as_ref().map(|it| it.positions),
        agreement.gaps.as_ref().map(|it| it.positions),
        agreement.greedy.as_ref().map(|it| it.equal),
    ];
    let compared = compared.into_iter().flatten().max().unwrap_or(0);
    if compared < MIN_TOKENS {
        let reason = format!(
            "it does not support `score`, so {MIN_TOKENS} of its tokens must be compared, and the run has only {compared}\
             {HINT}`--new-tokens {MIN_TOKENS}`"
        );
        return (Status::Unverified, vec![reason]);
    }
    let status = if gives_text(record, configuration) { Status::TextAgrees } else { Status::TokensAgree };
    (status, Vec::new())
}

/// The reason why a token is wrong in f32, where only a near tie explains a difference.
pub fn wrong_token(agreement: &Agreement, verifier: &str) -> Option<String> {
    let largest = agreement.token_loss.as_ref()?.largest.as_ref()?;
    let is_wrong = agreement.precision == Precision::Full && largest.gap > NEAR_TIE;
    is_wrong.then(|| {
        format!(
            "token {} of {} is {} nats less likely than that of {verifier}; in f32 only a near tie explains another token",
            largest.position,
            largest.text.name(),
            two_digits(largest.gap)
        )
    })
}

/// The wrong counts of an engine that gives text: the first prompt with another number of tokens, and the first output whose text
/// has another number of tokens than the engine reports.
pub fn wrong_counts(record: &RunRecord, configuration: usize, verifier: &Verifier) -> Vec<String> {
    let plan = &record.header.plan;
    let Some(verifier) = verifier.configuration else { return Vec::new() };
    let of_configuration =
        |it: &&CheckedOutput| it.verifier == verifier && plan.cases[it.case].configuration == configuration;
    let blocks = blocks(record);
    let (mut wrong_prompt, mut wrong_output) = (None, None);
    for checked in record.checked_outputs.iter().filter(of_configuration) {
        let Some(read) = &checked.read else { continue };
        let key = (checked.launch, checked.case, checked.index);
        let mut samples = record.measured();
        let Some(sample) = samples.find(|it| (it.launch, it.case, it.index) == key) else { continue };
        let sequences = &sample.iteration.sequences;
        let Some(sequence) = sequences.get(record.checked_sequence(sample)) else { continue };
        let text = || Text::of(plan, &blocks, key).name();
        if sequence.prompt_tokens != read.prompt_tokens {
            wrong_prompt.get_or_insert_with(|| {
                let (expected, got) = (plural(read.prompt_tokens, "prompt token"), sequence.prompt_tokens);
                format!("expected {expected} in {}, got {got}", text())
            });
        }
        let (reported, found) = (sequence.output_tokens.unwrap_or(0) as usize, read.ids.len());
        // At a near tie, an engine may divide the same text into tokens in another way.
        let tolerance = 1 + checked.differing.len();
        if read.unread > 0 && checked.differing.is_empty() {
            wrong_output.get_or_insert_with(|| {
                let unread = plural(with_commas(read.unread as usize), "further character");
                format!("it reports {} in {}, whose text has {unread}", plural(reported, "token"), text())
            });
        } else if read.unread == 0 && found + tolerance <= reported {
            wrong_output.get_or_insert_with(|| {
                let (reported, found) = (plural(reported, "token"), with_commas(found));
                format!("it reports {reported} in {}, whose text has {found}", text())
            });
        }
    }
    wrong_prompt.into_iter().chain(wrong_output).collect()
}
