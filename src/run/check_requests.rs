//! The two questions of an output check to one launch: the log-probabilities of given ids, and the ids that follow them.

use std::time::Duration;

use protocol::{Generate, Id, IgnoreEos, Score};

use super::check_time::CheckTime;
use super::launch::Launched;
use crate::run::process::Cause;
use crate::run::verify::verify_scores;
use crate::text::counted;

/// The factor on estimates from other windows: attention grows with the square of the tokens.
const GROWTH: f64 = 1.5;

impl Launched {
    /// The log-probability of every id but the first, and the time of the answer.
    pub async fn score(
        &mut self,
        ids: &[u32],
        within: Duration,
    ) -> Result<(Vec<Option<f64>>, Duration), Cause> {
        let id = Some(self.next_id());
        let sequences = vec![ids.to_vec()];
        let was = self.allow(within);
        let scored = self.conversation.score(Score { id, sequences: sequences.clone() }).await;
        self.conversation.deadlines.answer = was;
        let (mut scored, took) = scored?;
        verify_scores(&scored, &sequences)?;
        Ok((scored.logprobs.swap_remove(0), took))
    }

    /// The greedy continuation of a prompt, past EOS if the engine can ignore it.
    pub async fn continue_prompt(
        &mut self,
        prompt: &[u32],
        max_new_tokens: u32,
        within: Duration,
    ) -> Result<Vec<u32>, Cause> {
        let ignore_eos = self.hello().is_some_and(|hello| hello.capabilities.ignore_eos != IgnoreEos::No);
        let id = Some(self.next_id());
        let prompt_ids = Some(prompt.to_vec());
        let request = Generate { id, prompt_ids, max_new_tokens, ignore_eos, ..Generate::default() };
        let was = self.allow(within);
        let answer = self.conversation.generate(request).await;
        self.conversation.deadlines.answer = was;
        let mut answer = answer?;
        self.verify(&answer, Some(prompt.len() as u32), max_new_tokens, ignore_eos)?;
        self.conversation.refuse_unrequested()?;
        let mut sequences = answer.generated.iterations.drain(..).flat_map(|it| it.sequences);
        let ids = sequences.next().and_then(|sequence| sequence.output_ids);
        ids.ok_or_else(|| Cause::Unsupported("gives text, not ids".into()))
    }

    fn next_id(&mut self) -> Id {
        self.asked += 1;
        Id::Number(self.asked - 1)
    }

    /// Limits the deadline. Gives the previous one.
    fn allow(&mut self, within: Duration) -> Duration {
        let answer = self.conversation.deadlines.answer;
        self.conversation.deadlines.answer = answer.min(within);
        answer
    }
}

/// The time of the windows so far.
#[derive(Debug, Default)]
pub(super) struct Scoring {
    tokens: usize,
    /// The slowest window, for each token.
    per_token: Duration,
}

impl Scoring {
    pub fn took(&mut self, tokens: usize, took: Duration) {
        self.tokens += tokens;
        self.per_token = self.per_token.max(took / tokens.max(1) as u32);
    }

    /// The reason why a window of so many tokens is not requested.
    pub fn reason_to_skip(
        &self,
        tokens: usize,
        launched: &Launched,
        check_time: CheckTime,
    ) -> Option<String> {
        let context = launched.launch.loaded.as_ref().and_then(|loaded| loaded.facts.context_tokens);
        if let Some(context) = context.filter(|&context| (context as usize) < tokens) {
            let so_far = self.so_far();
            return Some(format!("a window of {tokens} tokens exceeds its context of {context}{so_far}"));
        }
        let estimate = self.per_token.mul_f64(tokens as f64 * GROWTH);
        let is_first = self.tokens == 0;
        (check_time.is_over() || (!is_first && estimate > check_time.left())).then(|| {
            let (estimate, whole) = (estimate.as_secs_f64(), check_time.whole.as_secs_f64());
            let time = format!(
                "{} tokens would take about {estimate:.0} s, and the check has {whole:.0} s",
                counted(tokens)
            );
            match self.tokens {
                0 => format!("no log-probabilities were requested: the {whole:.0} s of the check were over"),
                scored => {
                    format!("its log-probabilities were compared on {} tokens: {time}", counted(scored))
                }
            }
        })
    }

    pub fn so_far(&self) -> String {
        match self.tokens {
            0 => "; no tokens were scored".into(),
            tokens => format!("; {tokens} tokens were scored"),
        }
    }
}
