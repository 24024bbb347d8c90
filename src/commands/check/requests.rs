//! The requests of checks: valid ones, whose answers are compared with the request, and invalid ones, which the engine must
//! refuse.

use std::time::{Duration, Instant};

use protocol::{Failed, FailureKind, Generated, Message, Sequence};
use serde_json::{Value, json};

use super::checked_engine::{CheckedEngine, elapsed_ns};
use super::result::{Finding, Outcome, require, unexpected, wrong};
use crate::run::process::Answer;
use crate::run::verify::{self, Expected};

/// A text that any model can read, for requests with an arbitrary prompt.
const TEXT: &str = "The engine reads a line and answers it.";

/// The fault of an engine that answers an invalid line with tokens.
pub const ANSWERED_AS_VALID: &str = "answered `generated`, as if the line were valid";

/// The output of every sequence of every iteration: its ids, or its text where an engine gives text.
pub fn outputs(answer: &Answer) -> Vec<Value> {
    let sequences = answer.generated.iterations.iter().flat_map(|iteration| &iteration.sequences);
    let output = |sequence: &Sequence| match &sequence.output_ids {
        Some(ids) => ids.clone().into(),
        None => sequence.chunks.iter().flatten().map(|chunk| chunk.text.as_str()).collect::<String>().into(),
    };
    sequences.map(output).collect()
}

/// The line with these fields added. They replace the line's own fields of the same names.
pub fn with_fields(mut line: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().into_iter().flatten() {
        line[name] = value.clone();
    }
    line
}

pub fn first_sequence(answer: &Answer) -> Option<&Sequence> {
    answer.generated.iterations.first()?.sequences.first()
}

impl CheckedEngine {
    /// A `generate` with these fields and a prompt: as ids if the engine takes them, otherwise as text.
    pub fn line(&self, fields: Value) -> Value {
        let takes_ids = self.known_hello().is_some_and(|hello| hello.capabilities.prompt_ids);
        let line = match takes_ids {
            true => json!({ "prompt_ids": self.prompt_ids() }),
            false => json!({ "prompt": TEXT }),
        };
        with_fields(line, &fields)
    }

    /// A `generate` with a batch of this many prompts.
    pub fn batch(&self, prompts: u32) -> Value {
        let takes_ids = self.known_hello().is_some_and(|hello| hello.capabilities.prompt_ids);
        let prompts = prompts as usize;
        match takes_ids {
            true => json!({ "prompts_ids": vec![[3, 4]; prompts], "max_new_tokens": 1 }),
            false => json!({ "prompts": vec!["Hello"; prompts], "max_new_tokens": 1 }),
        }
    }

    /// A `generate` with these fields and this text as its prompt. If the engine takes no text, or takes ids and the model has no
    /// tokenizer, `line` gives another prompt.
    pub fn line_of_text(&self, text: &str, fields: Value) -> Value {
        let takes_ids = self.known_hello().is_some_and(|hello| hello.capabilities.prompt_ids);
        if !self.takes_text() || (takes_ids && self.tokenizer.is_none()) {
            return self.line(fields);
        }
        with_fields(json!({ "prompt": text }), &fields)
    }

    /// The ids of a short text. Without a tokenizer of the model: small ids, which every vocabulary has.
    pub fn prompt_ids(&self) -> Vec<u32> {
        let ids = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.encode(TEXT).ok());
        ids.filter(|ids| ids.len() > 2).unwrap_or_else(|| (3..12).collect())
    }

    /// Loads the model if necessary, and sends a `generate`. Of the answer, checks only that it belongs to this request.
    pub fn generate(&mut self, line: &Value) -> Outcome<Answer> {
        self.ensure_loaded()?;
        self.expect_no_message()?;
        // An engine without `load` loads with the first request to its process.
        let loads = self.is_minimal() && self.is_fresh();
        let sent = self.send_json(line)?;
        self.receive_generated(line, sent, loads)
    }

    /// Waits for the `generated` of a request that was sent. `loads`: the engine loads the model for this request.
    pub fn receive_generated(&mut self, line: &Value, sent: Instant, loads: bool) -> Outcome<Answer> {
        let answer = self.next_generated(line, sent, loads);
        self.has_answered |= answer.is_ok();
        match answer {
            // A minimal engine that never answered gets no more requests.
            Err(Finding::Wrong(fault)) if self.is_minimal() && !self.has_answered => self.block(fault),
            answer => answer,
        }
    }

    fn next_generated(&mut self, line: &Value, sent: Instant, loads: bool) -> Outcome<Answer> {
        let deadline = if loads { self.deadlines.load } else { self.deadlines.answer };
        let mut tokens = Vec::new();
        loop {
            match self.receive_at(deadline)? {
                // The progress of a load within the request. An engine without `load` has none.
                (Message::Progress(_), _) if loads && !self.is_minimal() => self.restart_deadline(),
                (Message::Progress(_), _) => {}
                (Message::Token(token), at) => {
                    require_same_id(&token.id, line, "token")?;
                    tokens.push((token, elapsed_ns(sent, at)));
                }
                (Message::Generated(generated), at) => {
                    // The next of several open requests has a deadline of its own.
                    self.restart_deadline();
                    require_same_id(&generated.id, line, "generated")?;
                    return Ok(Answer { generated, tokens, sent_ns: 0, answered_ns: elapsed_ns(sent, at) });
                }
                (other, _) => return unexpected(&other, "generated"),
            }
        }
    }

    /// Sends a `generate`, and compares the answer with it: counts, ids, times, streamed ids.
    pub fn generate_verified(&mut self, line: &Value) -> Outcome<Answer> {
        let answer = self.generate(line)?;
        self.verify(line, &answer)?;
        Ok(answer)
    }

    pub fn verify(&self, line: &Value, answer: &Answer) -> Outcome {
        let generated = &answer.generated;
        let count = |field: &str, default: u64| line[field].as_u64().unwrap_or(default);
        for (field, found, requested) in [
            ("iterations", generated.iterations.len(), count("iterations", 1)),
            ("warmup_iterations", generated.warmup_iterations.len(), count("warmup", 0)),
        ] {
            require(found as u64 == requested, format!("expected {requested} `{field}`, got {found}"))?;
        }
        let expected = self.expected(line, answer);
        for iteration in generated.warmup_iterations.iter().chain(&generated.iterations) {
            let single = Generated { iterations: vec![iteration.clone()], ..Generated::default() };
            expected.verify(&single).map_err(|cause| Finding::Wrong(cause.to_string()))?;
        }
        if line["stream"] == true {
            verify::verify_streamed(answer).map_err(|cause| Finding::Wrong(cause.to_string()))?;
        }
        Ok(())
    }

    fn expected(&self, line: &Value, answer: &Answer) -> Expected {
        let length = |ids: &Value| ids.as_array().map(|ids| ids.len() as u32);
        let prompt_tokens = match (line["prompts_ids"].as_array(), line["prompts"].as_array()) {
            (Some(prompts), _) => prompts.iter().map(length).collect(),
            (None, Some(prompts)) => vec![None; prompts.len()],
            (None, None) => vec![length(&line["prompt_ids"])],
        };
        let expected = Expected {
            prompt_tokens,
            max_new_tokens: line["max_new_tokens"].as_u64().unwrap_or(32) as u32,
            ignore_eos: line["ignore_eos"] == true,
            may_draft: line["speculation"].as_str().is_some_and(|kind| kind != "off"),
            elapsed_ns: answer.answered_ns,
            ..Expected::default()
        };
        let facts = self.known_loaded().or(answer.generated.loaded.as_ref()).map(|loaded| &loaded.facts);
        expected.with_engine(self.known_hello(), facts)
    }

    /// Sends an invalid or impossible line, and expects one `failed` of one of these kinds. The engine must then answer
    /// the next request as usual.
    pub fn expect_refusal(&mut self, line: &[u8], kinds: &[FailureKind]) -> Outcome {
        self.ensure_loaded()?;
        self.expect_no_message()?;
        self.send(line)?;
        // No computation is requested, so the deadline is short.
        let deadline = self.deadlines.answer.min(Duration::from_secs(10));
        let refused = self.expect_failure(kinds, deadline);
        if refused.is_err() {
            self.ignore_timeout();
        }
        refused?;
        self.answers_next_request()
    }

    pub fn expect_failure(&mut self, kinds: &[FailureKind], deadline: Duration) -> Outcome<Failed> {
        let answer = loop {
            match self.receive_within(deadline)? {
                // A load may fail after some of its phases.
                Message::Progress(_) => {}
                answer => break answer,
            }
        };
        match answer {
            Message::Failed(failed) if !kinds.contains(&failed.kind) => {
                let wanted: Vec<_> = kinds.iter().map(|kind| format!("`{}`", kind.as_str())).collect();
                let kind = failed.kind.as_str();
                wrong(format!("`failed` of kind `{kind}`, expected {}", wanted.join(" or ")))
            }
            Message::Failed(failed) if failed.message.trim().is_empty() => {
                wrong("`failed` has an empty `message`")
            }
            Message::Failed(failed) => Ok(failed),
            Message::Generated(_) => wrong(ANSWERED_AS_VALID),
            other => unexpected(&other, "failed"),
        }
    }

    /// Requires that earlier requests caused no further message, and that the next request gets its answer.
    pub fn answers_next_request(&mut self) -> Outcome {
        match self.generate(&self.line(json!({ "max_new_tokens": 1 }))) {
            Err(Finding::Wrong(fault)) => wrong(format!("the next request: {fault}")),
            answer => answer.map(drop),
        }
    }
}

fn require_same_id(found: &Option<protocol::Id>, line: &Value, message: &str) -> Outcome {
    // Serializing an id cannot fail.
    let found = serde_json::to_value(found).unwrap_or_default();
    let expected = &line["id"];
    require(found == *expected, format!("expected `{message}` with id `{expected}`, got `{found}`"))
}
