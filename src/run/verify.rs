//! Verifies that the engine did the requested work. Every answer is checked against the request and the orchestrator's own
//! clock. An engine with a wrong answer gets a failure in place of times.

use protocol::{
    Chunk, Facts, FailureKind, Finish, Generated, HelloFacts, IgnoreEos, Iteration, Scored, Sequence, Token,
};

use crate::record::{Late, output_tokens};
use crate::run::process::{Answer, Cause};
use crate::text::plural;

/// The values that an answer must agree with.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The number of tokens of each prompt, if ids were sent. `None` accepts the engine's own count.
    pub prompt_tokens: Vec<Option<u32>>,
    pub max_new_tokens: u32,
    pub ignore_eos: bool,
    /// The request asks for `speculation`.
    pub may_draft: bool,
    /// Empty if EOS is not checked.
    pub eos_ids: Vec<u32>,
    pub vocabulary_size: Option<u32>,
    /// The time from the request's line to the answer's, on the orchestrator's clock.
    pub elapsed_ns: u64,
}

/// The result of a request that the engine must refuse with this kind of `failed`.
pub fn refusal(expected: FailureKind, answer: Result<Answer, Cause>) -> Cause {
    let expected_text = format!("expected `failed` of kind `{}`", expected.as_str());
    match answer {
        Ok(_) => Cause::WrongOutput(format!("{expected_text}, and the engine generated tokens")),
        Err(Cause::FailedAnswer(failed)) if failed.kind == expected => {
            Cause::Refused(format!("as it must (`{}`): {}", expected.as_str(), failed.message))
        }
        Err(Cause::FailedAnswer(failed)) => {
            let (kind, message) = (failed.kind.as_str(), failed.message);
            Cause::WrongOutput(format!("{expected_text}, got `{kind}`: {message}"))
        }
        Err(cause) => cause,
    }
}

/// The accepted difference between times that should be equal or in order: an engine's clock may be coarser than the
/// orchestrator's.
const CLOCK_TOLERANCE_NS: u64 = 1_000_000;
/// The highest accepted log-probability. It is above 0, because narrow floats may round a logarithm up.
const MAX_LOGPROB: f64 = 1e-3;

impl Expected {
    /// Adds the facts of hello and load that matter for an answer.
    pub fn with_engine(mut self, hello: Option<&HelloFacts>, facts: Option<&Facts>) -> Self {
        // If the request ignores EOS, an engine masks it or treats it as an ordinary token. So EOS ids are not checked then.
        let can_ignore_eos = hello.is_none_or(|hello| hello.capabilities.ignore_eos != IgnoreEos::No);
        if !(self.ignore_eos && can_ignore_eos) {
            self.eos_ids = facts.and_then(|facts| facts.eos_ids.clone()).unwrap_or_default();
        }
        self.vocabulary_size = facts.and_then(|facts| facts.vocabulary_size);
        self
    }

    /// Verifies an answer of one iteration, except for its streamed tokens.
    pub fn verify(&self, generated: &Generated) -> Result<(), Cause> {
        if let (Some(_), []) = (&generated.summary, generated.iterations.as_slice()) {
            return protocol_error("a `summary` without measured iterations: `iterations` is empty".into());
        }
        let [iteration] = generated.iterations.as_slice() else {
            return wrong_output(format!("expected 1 iteration, got {}", generated.iterations.len()));
        };
        let warm_ups = generated.warmup_iterations.len();
        if warm_ups > 0 {
            return wrong_output(format!("expected no warm-up iterations, got {warm_ups}"));
        }
        self.verify_clock(iteration)?;
        if iteration.sequences.len() != self.prompt_tokens.len() {
            let (found, requested) = (iteration.sequences.len(), self.prompt_tokens.len());
            return wrong_output(format!("expected {requested} sequences, got {found}"));
        }
        for (sequence, prompt_tokens) in iteration.sequences.iter().zip(&self.prompt_tokens) {
            self.verify_sequence(iteration, sequence, *prompt_tokens)?;
        }
        Ok(())
    }

    fn verify_clock(&self, iteration: &Iteration) -> Result<(), Cause> {
        let Iteration { start_ns, end_ns, .. } = iteration;
        if end_ns < start_ns {
            return protocol_error(format!("`end_ns` {end_ns} lies before `start_ns` {start_ns}"));
        }
        if *end_ns > self.elapsed_ns.saturating_add(CLOCK_TOLERANCE_NS) {
            let elapsed = self.elapsed_ns;
            return protocol_error(format!(
                "`end_ns` {end_ns} lies after the answer arrived ({elapsed} ns on the orchestrator's clock)"
            ));
        }
        Ok(())
    }

    fn verify_sequence(
        &self,
        iteration: &Iteration,
        sequence: &Sequence,
        prompt_tokens: Option<u32>,
    ) -> Result<(), Cause> {
        let found = sequence.prompt_tokens;
        if let Some(sent) = prompt_tokens.filter(|&sent| sent != found) {
            return wrong_output(format!("`prompt_tokens` is {found}, but {sent} ids were sent"));
        }
        if sequence.finish == Finish::Cancelled {
            return protocol_error("finished `cancelled`, and nothing was cancelled".into());
        }
        if let Some(cached) = sequence.cached_prompt_tokens.filter(|&it| it > found) {
            return protocol_error(format!(
                "`cached_prompt_tokens` {cached} exceeds `prompt_tokens` {found}"
            ));
        }
        self.verify_drafts(sequence)?;
        let (count, times) = match (&sequence.output_ids, &sequence.token_ns, &sequence.chunks) {
            (Some(ids), Some(times), None) => {
                let (count, stamps) = (ids.len(), times.len());
                if count != stamps {
                    return protocol_error(format!(
                        "expected {count} `token_ns`, one for each of `output_ids`, got {stamps}"
                    ));
                }
                self.verify_ids(ids, sequence.finish)?;
                (count, times.clone())
            }
            (None, None, Some(chunks)) => {
                let Some(count) = sequence.output_tokens else {
                    return protocol_error("`chunks` without `output_tokens`".into());
                };
                verify_chunks(chunks, count)?;
                (count as usize, chunks.iter().map(|chunk| chunk.ns).collect())
            }
            _ => return protocol_error("neither `output_ids` with `token_ns` nor `chunks`".into()),
        };
        self.verify_length(count, sequence.finish)?;
        let mut previous = iteration.start_ns;
        for (index, &time) in times.iter().enumerate() {
            let early = if index == 0 { time <= previous } else { time < previous };
            if early || time > iteration.end_ns {
                let end = iteration.end_ns;
                let name = if sequence.chunks.is_some() { "chunks" } else { "token_ns" };
                return protocol_error(format!("`{name}[{index}]` {time} lies outside {previous} to {end}"));
            }
            previous = time;
        }
        Ok(())
    }

    /// Drafts without a request for them would be compared with plain decoding.
    fn verify_drafts(&self, sequence: &Sequence) -> Result<(), Cause> {
        let (drafted, accepted) = (sequence.drafted_tokens, sequence.accepted_tokens);
        let (drafted, accepted) = match (drafted, accepted) {
            (Some(drafted), Some(accepted)) => (drafted, accepted),
            (None, None) => return Ok(()),
            _ => return protocol_error("`drafted_tokens` and `accepted_tokens` belong together".into()),
        };
        if !self.may_draft && drafted > 0 {
            return wrong_output(format!(
                "{drafted} drafted tokens, and the request asks for no `speculation`"
            ));
        }
        let output = u64::from(accepted) > output_tokens(sequence);
        if accepted > drafted || output {
            return protocol_error(format!(
                "`accepted_tokens` {accepted} exceeds `drafted_tokens` {drafted} or the output"
            ));
        }
        Ok(())
    }

    fn verify_ids(&self, ids: &[u32], finish: Finish) -> Result<(), Cause> {
        if let Some(id) = self.vocabulary_size.and_then(|size| ids.iter().find(|&&id| id >= size)) {
            return wrong_output(format!("token id {id} lies outside the vocabulary"));
        }
        let eos = ids.iter().position(|id| self.eos_ids.contains(id));
        match (eos, finish) {
            (Some(position), _) if position + 1 < ids.len() => {
                wrong_output(format!("continues after the EOS at token {position}"))
            }
            (None, Finish::Eos) if !self.eos_ids.is_empty() => {
                wrong_output("finished `eos` without an EOS token".into())
            }
            _ => Ok(()),
        }
    }

    fn verify_length(&self, count: usize, finish: Finish) -> Result<(), Cause> {
        let requested = self.max_new_tokens as usize;
        let short = count < requested && (self.ignore_eos || finish == Finish::Length);
        if count > requested || short || count == 0 {
            return wrong_output(format!("expected {}, got {count}", plural(requested, "token")));
        }
        Ok(())
    }
}

/// Verifies that no token was streamed in answer to a request without a stream.
pub fn verify_not_streamed(answer: &Answer) -> Result<(), Cause> {
    let tokens = answer.tokens.len();
    if tokens == 0 { Ok(()) } else { protocol_error(format!("expected no `token` messages, got {tokens}")) }
}

/// Verifies the tokens of a requested stream. They have the ids and times of the answer, and arrive after their time stamps.
pub fn verify_streamed(answer: &Answer) -> Result<(), Cause> {
    if let Some((token, _)) = answer.tokens.iter().find(|(token, _)| sequence_of(answer, token).is_none()) {
        let Token { iteration, sequence, .. } = token;
        return protocol_error(format!(
            "a streamed token of iteration {iteration}, sequence {sequence}: the answer has no such sequence"
        ));
    }
    for (number, iteration) in answer.generated.iterations.iter().enumerate() {
        for (position, sequence) in iteration.sequences.iter().enumerate() {
            let is_of_sequence =
                |token: &&Token| (token.iteration as usize, token.sequence as usize) == (number, position);
            let mut streamed = Vec::new();
            for token in answer.tokens.iter().map(|(token, _)| token).filter(is_of_sequence) {
                let (found, expected) = (token.index as usize, streamed.len());
                if found != expected {
                    return protocol_error(format!("expected streamed token {expected}, got {found}"));
                }
                streamed.extend(&token.ids);
            }
            if Some(&streamed) != sequence.output_ids.as_ref() {
                return protocol_error("the streamed ids are not the final ids".into());
            }
        }
    }
    for (token, _) in &answer.tokens {
        // Metrics use the final times, so the streamed times must be equal to them.
        let last_index = (token.index as usize + token.ids.len()).saturating_sub(1);
        let final_ns = final_ns(answer, token).unwrap_or(token.ns);
        if final_ns.abs_diff(token.ns) > CLOCK_TOLERANCE_NS {
            return protocol_error(format!(
                "`token_ns[{last_index}]` {final_ns} was streamed with `ns` {}",
                token.ns
            ));
        }
    }
    match delays_ns(answer).min() {
        Some(early) if early < -(CLOCK_TOLERANCE_NS as i64) => {
            protocol_error(format!("a streamed token arrived {} ns before its stamp", early.unsigned_abs()))
        }
        _ => Ok(()),
    }
}

/// The delays of streamed tokens after their stamps in the answer, on the orchestrator's clock: of the first token, and the
/// median.
pub fn lateness(answer: &Answer) -> Option<Late> {
    let mut late: Vec<i64> = delays_ns(answer).collect();
    let first_ns = *late.first()?;
    late.sort_unstable();
    Some(Late { first_ns, median_ns: *late.get(late.len() / 2)? })
}

fn delays_ns(answer: &Answer) -> impl Iterator<Item = i64> {
    let delay_ns = |arrived_ns: u64, stamped_ns: u64| {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        signed(arrived_ns) - signed(stamped_ns)
    };
    answer.tokens.iter().map(move |(token, arrived_ns)| {
        let stamped_ns = final_ns(answer, token).unwrap_or(token.ns);
        delay_ns(*arrived_ns, answer.sent_ns.saturating_add(stamped_ns))
    })
}

/// The time of the last id of a streamed token, in the complete answer.
fn final_ns(answer: &Answer, token: &Token) -> Option<u64> {
    let last = (token.index as usize).checked_add(token.ids.len())?.checked_sub(1)?;
    sequence_of(answer, token)?.token_ns.as_ref()?.get(last).copied()
}

fn sequence_of<'a>(answer: &'a Answer, token: &Token) -> Option<&'a Sequence> {
    answer.generated.iterations.get(token.iteration as usize)?.sequences.get(token.sequence as usize)
}

/// Verifies the total number of tokens, if every chunk has a token count.
fn verify_chunks(chunks: &[Chunk], count: u32) -> Result<(), Cause> {
    let counted: Option<u64> = chunks.iter().map(|chunk| chunk.tokens.map(u64::from)).sum();
    match counted.filter(|&counted| counted != u64::from(count)) {
        Some(counted) => {
            protocol_error(format!("`chunks` have {counted} tokens, but `output_tokens` is {count}"))
        }
        None => Ok(()),
    }
}

pub fn verify_scores(scored: &Scored, sequences: &[Vec<u32>]) -> Result<(), Cause> {
    if scored.logprobs.len() != sequences.len() {
        let (found, requested) = (scored.logprobs.len(), sequences.len());
        return protocol_error(format!("expected {requested} scored sequences, got {found}"));
    }
    for (logprobs, ids) in scored.logprobs.iter().zip(sequences) {
        let (found, requested) = (logprobs.len(), ids.len().saturating_sub(1));
        if found != requested {
            return protocol_error(format!("expected {requested} `logprobs` for a sequence, got {found}"));
        }
        // This refuses NaN too.
        let possible = |logprob: &f64| *logprob <= MAX_LOGPROB;
        if let Some(logprob) = logprobs.iter().flatten().find(|logprob| !possible(logprob)) {
            return protocol_error(format!("the log-probability {logprob} is not a number up to 0"));
        }
    }
    let counts = scored.logprobs.iter().map(Vec::len);
    let is_complete = |found: Option<Vec<usize>>| found.is_none_or(|found| counts.clone().eq(found));
    let ids = scored.most_likely_ids.as_ref().map(|lists| lists.iter().map(Vec::len).collect());
    let values = scored.most_likely_logprobs.as_ref().map(|lists| lists.iter().map(Vec::len).collect());
    if !is_complete(ids) || !is_complete(values) {
        return protocol_error(
            "`most_likely_ids` and `most_likely_logprobs` need one value for each of `logprobs`".into(),
        );
    }
    Ok(())
}

/// The facts that may change after a load.
const CHANGING_FACTS: &[&str] = &["threads", "libraries", "device_memory"];

/// Verifies that an answer to `facts` has every fact of the load, with the same value.
pub fn verify_facts(facts: &Facts, loaded: &Facts) -> Result<(), Cause> {
    let fields = |facts: &Facts| serde_json::to_value(facts).unwrap_or_default();
    let (facts, loaded) = (fields(facts), fields(loaded));
    for (name, at_load) in loaded.as_object().into_iter().flatten() {
        let Some(now) = facts.get(name) else {
            return wrong_output(format!("`facts` has no `{name}`, and `loaded` has {at_load}"));
        };
        if now != at_load && !CHANGING_FACTS.contains(&name.as_str()) {
            return wrong_output(format!("`facts` has {now} as `{name}`, and `loaded` has {at_load}"));
        }
    }
    Ok(())
}

fn protocol_error(message: String) -> Result<(), Cause> {
    Err(Cause::Protocol(message))
}

fn wrong_output(message: String) -> Result<(), Cause> {
    Err(Cause::WrongOutput(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected {
            prompt_tokens: vec![Some(4)],
            max_new_tokens: 3,
            ignore_eos: true,
            vocabulary_size: Some(100),
            elapsed_ns: 1000,
            ..Expected::default()
        }
    }

    fn answer() -> Generated {
        let sequence = Sequence {
            prompt_tokens: 4,
            output_ids: Some(vec![5, 6, 7]),
            token_ns: Some(vec![20, 30, 30]),
            ..Sequence::default()
        };
        Generated {
            iterations: vec![Iteration { start_ns: 10, end_ns: 40, sequences: vec![sequence] }],
            ..Default::default()
        }
    }

    /// The kind and the message of a refusal.
    fn refused(verified: Result<(), Cause>) -> String {
        let cause = verified.unwrap_err();
        format!("{}: {cause}", cause.kind())
    }

    fn refusal(change: impl FnOnce(&mut Iteration)) -> String {
        let mut answer = answer();
        change(&mut answer.iterations[0]);
        refused(expected().verify(&answer))
    }

    #[test]
    fn an_answer_that_fits_the_request_passes() {
        assert!(expected().verify(&answer()).is_ok());
    }

    #[test]
    fn an_answer_with_another_number_of_tokens_than_requested_is_refused() {
        let short = refusal(|iteration| {
            iteration.sequences[0].output_ids = Some(vec![5]);
            iteration.sequences[0].token_ns = Some(vec![20]);
        });
        assert_eq!(short, "wrong_output: expected 3 tokens, got 1");
        assert_eq!(
            refusal(|it| it.sequences[0].prompt_tokens = 9),
            "wrong_output: `prompt_tokens` is 9, but 4 ids were sent"
        );
        assert!(refusal(|it| it.sequences.clear()).contains("expected 1 sequences, got 0"));
    }

    #[test]
    fn times_must_be_in_order_and_agree_with_the_orchestrators_clock() {
        for (times, start) in [
            (vec![20, 19, 30], "protocol: `token_ns[1]`"),
            (vec![10, 20, 30], "protocol: `token_ns[0]`"),
            (vec![20, 30, 41], "protocol: `token_ns[2]`"),
            (vec![20, 30], "protocol: expected 3 `token_ns`, one for each of `output_ids`, got 2"),
        ] {
            let refusal = refusal(|it| it.sequences[0].token_ns = Some(times));
            assert!(refusal.starts_with(start), "{refusal}");
        }
        assert!(refusal(|it| it.end_ns = 5).contains("lies before"));
        assert!(refusal(|it| it.end_ns = 2_000_000_000).contains("after the answer arrived"));
    }

    #[test]
    fn ids_are_in_the_vocabulary_and_end_at_eos_unless_ignored() {
        let outside = refusal(|it| it.sequences[0].output_ids = Some(vec![5, 100, 7]));
        assert!(outside.contains("outside the vocabulary"));
        let finished = |eos: u32, finish| {
            let mut answer = answer();
            answer.iterations[0].sequences[0].finish = finish;
            let expected_eos =
                Expected { ignore_eos: false, eos_ids: vec![eos], max_new_tokens: 8, ..expected() };
            expected_eos.verify(&answer).map_err(|cause| cause.to_string())
        };
        assert_eq!(finished(6, Finish::Length), Err("continues after the EOS at token 1".into()));
        assert_eq!(finished(7, Finish::Eos), Ok(()));
        assert_eq!(finished(9, Finish::Eos), Err("finished `eos` without an EOS token".into()));
        assert_eq!(finished(9, Finish::Length), Err("expected 8 tokens, got 3".into()));
        let facts = Facts { eos_ids: Some(vec![6]), ..Facts::default() };
        assert!(expected().with_engine(None, Some(&facts)).verify(&answer()).is_ok());
    }

    fn streamed(tokens: &[(u32, &[u32], u64)]) -> Answer {
        let token = |&(index, ids, arrived_ns): &(u32, &[u32], u64)| {
            (Token { index, ids: ids.to_vec(), ns: 20, ..Token::default() }, arrived_ns)
        };
        Answer {
            generated: answer(),
            tokens: tokens.iter().map(token).collect(),
            sent_ns: 5_000_000,
            answered_ns: 6_000_000,
        }
    }

    #[test]
    fn streamed_ids_must_equal_the_ids_of_the_answer_in_their_order() {
        let at = 5_000_100;
        assert!(verify_streamed(&streamed(&[(0, &[5], at), (1, &[6, 7], at)])).is_ok());
        assert!(verify_streamed(&streamed(&[(0, &[5], at), (1, &[6, 8], at)])).is_err());
        assert!(verify_streamed(&streamed(&[(0, &[5], at), (2, &[7], at)])).is_err());
        assert!(verify_streamed(&streamed(&[])).is_err());
    }

    #[test]
    fn a_token_may_arrive_after_its_time_stamp_and_not_before() {
        let early = refused(verify_streamed(&streamed(&[(0, &[5, 6, 7], 1_000_000)])));
        assert_eq!(early, "protocol: a streamed token arrived 4000030 ns before its stamp");
        let late = lateness(&streamed(&[(0, &[5], 5_000_220), (1, &[6], 5_000_130), (2, &[7], 5_000_150)]));
        assert_eq!(late, Some(Late { first_ns: 200, median_ns: 120 }));
        assert_eq!(lateness(&streamed(&[])), None);
    }

    #[test]
    fn streamed_times_and_sequences_must_equal_the_times_and_sequences_of_the_answer() {
        let message = |change: fn(&mut Token)| {
            let mut answer = streamed(&[(0, &[5, 6, 7], 9_000_000)]);
            change(&mut answer.tokens[0].0);
            verify_streamed(&answer).unwrap_err().to_string()
        };
        assert_eq!(message(|token| token.ns = 2_000_000), "`token_ns[2]` 30 was streamed with `ns` 2000000");
        assert_eq!(
            message(|token| token.sequence = 3),
            "a streamed token of iteration 0, sequence 3: the answer has no such sequence"
        );
        let unrequested = verify_not_streamed(&streamed(&[(0, &[5], 5_000_100)])).unwrap_err();
        assert_eq!(unrequested.to_string(), "expected no `token` messages, got 1");
    }

    #[test]
    fn contradicting_numbers_are_refused_by_name() {
        let cached = refusal(|it| it.sequences[0].cached_prompt_tokens = Some(5));
        assert_eq!(cached, "protocol: `cached_prompt_tokens` 5 exceeds `prompt_tokens` 4");
        let chunks = |tokens: [Option<u32>; 2]| {
            move |iteration: &mut Iteration| {
                let sequence = &mut iteration.sequences[0];
                (sequence.output_ids, sequence.token_ns) = (None, None);
                let chunk = |tokens| Chunk { ns: 20, tokens, ..Chunk::default() };
                sequence.chunks = Some(tokens.map(chunk).into());
                sequence.output_tokens = Some(3);
            }
        };
        let counted = refusal(chunks([Some(1), Some(9)]));
        assert_eq!(counted, "protocol: `chunks` have 10 tokens, but `output_tokens` is 3");
        let early = refusal(|it| {
            chunks([Some(1), Some(2)])(it);
            it.sequences[0].chunks.iter_mut().flatten().for_each(|chunk| chunk.ns = 5);
        });
        assert!(early.starts_with("protocol: `chunks[0]` 5 lies outside "), "{early}");
        let mut partly_counted = answer();
        chunks([None, Some(9)])(&mut partly_counted.iterations[0]);
        assert!(expected().verify(&partly_counted).is_ok());
        let mut only_summary = answer();
        (only_summary.iterations, only_summary.summary) =
            (Vec::new(), Some(serde_json::json!({ "tokens_per_second": 1e9 })));
        let empty = refused(expected().verify(&only_summary));
        assert_eq!(empty, "protocol: a `summary` without measured iterations: `iterations` is empty");
    }

    #[test]
    fn most_likely_ids_have_as_many_values_as_the_log_probabilities() {
        let verified = |ids: &[u32], values: &[f64]| {
            let (ids, values) = (Some(vec![ids.to_vec()]), Some(vec![values.to_vec()]));
            let logprobs = vec![vec![Some(-0.5), None]];
            let (most_likely_ids, most_likely_logprobs) = (ids, values);
            let scored = Scored { logprobs, most_likely_ids, most_likely_logprobs, ..Scored::default() };
            verify_scores(&scored, &[vec![1, 2, 3]]).is_ok()
        };
        assert!(verified(&[4, 5], &[-0.5, -0.25]));
        assert!(!verified(&[4], &[-0.5, -0.25]));
        assert!(!verified(&[4, 5], &[-0.5]));
    }

    #[test]
    fn n_ids_have_n_minus_one_log_probabilities_that_exceed_zero_at_most_by_rounding() {
        let verified = |logprobs| verify_scores(&Scored { logprobs, ..Scored::default() }, &[vec![1, 2, 3]]);
        assert!(verified(vec![vec![Some(-0.5), None]]).is_ok());
        // Rounded to just above zero.
        assert!(verified(vec![vec![Some(5e-4), Some(0.0)]]).is_ok());
        for (logprobs, refusal) in [
            (vec![], "expected 1 scored sequences, got 0"),
            (vec![vec![Some(-0.5)]], "expected 2 `logprobs` for a sequence, got 1"),
            (vec![vec![Some(-0.5), Some(0.25)]], "the log-probability 0.25 is not a number up to 0"),
            (vec![vec![Some(f64::NAN), None]], "the log-probability NaN is not a number up to 0"),
        ] {
            assert_eq!(refused(verified(logprobs)), format!("protocol: {refusal}"));
        }
    }
}
