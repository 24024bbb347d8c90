//! An engine that computes nothing: its measured cost is the cost of a request. It uses no engine kit, which would add to the
//! cost. Its time stamps come from a real clock. It sleeps for each token as long as the option `ms_per_token` says.
//!
//! With the option `streams` it collects that many streamed requests, and answers them together (`streams.rs`).
//!
//! The engine is a separate crate, because a release build optimises the engines' crates more than the package `orchestrate`
//! (`profile.release` in `Cargo.toml`). The crate is linked into `orchestrate`, so users install no second program. Its
//! functions are not generic, because generic code is optimised like the crate that calls it.

mod streams;
mod tokens;

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::{
    Capabilities, Facts, Failed, FailureKind, Finish, Frame, Framer, Generate, Generated, HelloFacts,
    IgnoreEos, Iteration, Load, Loaded, Message, Request, Sequence, Token,
};

pub use streams::shared_clock_ns;
use tokens::{Write, id_of, sleep_until};

/// The load option for the time of a token. With `STREAMS_OPTION` it is the time of a step.
const TOKEN_TIME_OPTION: &str = "ms_per_token";
/// The load option for the number of streamed requests that are answered together.
const STREAMS_OPTION: &str = "streams";
/// The largest number of such requests, which is also that of overlapping ones.
const MAX_STREAMS: u64 = 64;

/// Answers the requests of `input` until `shutdown` or its end.
pub fn answer_requests(input: &mut dyn Read, write: Write) -> Result<()> {
    let (mut framer, mut bytes) = (Framer::default(), vec![0; 64 * 1024]);
    let mut engine = NullEngine::default();
    while let Ok(read @ 1..) = input.read(&mut bytes) {
        let clock_start = Instant::now();
        let mut frames = Vec::new();
        framer.push(&bytes[..read], |frame| frames.push(frame));
        for frame in frames {
            let Some(answer) = engine.answer(frame, clock_start, write)? else { continue };
            write(&protocol::encode(&answer))?;
            if answer == (Message::Bye {}) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[derive(Default)]
struct NullEngine {
    token_time: Duration,
    /// The number of streamed requests that are answered together. With less than two, each request is answered at once.
    streams: usize,
    /// Streamed requests that wait for others.
    waiting: Vec<Generate>,
    /// The facts of the last load.
    facts: Facts,
}

impl NullEngine {
    fn answer(&mut self, frame: Frame, clock_start: Instant, write: Write) -> Result<Option<Message>> {
        let refuse = |kind, message: String| Ok(Some(Message::Failed(Failed::new(kind, message))));
        let line = match frame {
            Frame::Line(line) => line,
            Frame::TooLong { bytes } => {
                return refuse(FailureKind::BadRequest, format!("a line of {bytes} bytes"));
            }
        };
        let request = match protocol::parse_request(&line) {
            Ok(request) => request,
            Err(refused) => return Ok(Some(Message::Failed(refused))),
        };
        Ok(Some(match request {
            Request::Hello(_) => Message::Hello(hello()),
            Request::Load(load) => {
                self.load(&load, clock_start).map_or_else(Message::Failed, Message::Loaded)
            }
            Request::Generate(generate) if generate.stream && self.streams > 1 => {
                self.waiting.push(generate);
                if self.waiting.len() == self.streams {
                    streams::answer(&std::mem::take(&mut self.waiting), self.token_time, write)?;
                }
                return Ok(None);
            }
            Request::Generate(generate) => Message::Generated(self.generate(generate, clock_start, write)?),
            Request::Facts {} => Message::Facts(self.facts.clone()),
            Request::Shutdown {} => Message::Bye {},
            Request::Score(_) => {
                return refuse(FailureKind::Unsupported, "the null engine computes nothing".into());
            }
            // Every earlier request is already answered, so there is nothing to cancel.
            Request::Cancel(_) => return Ok(None),
        }))
    }

    fn load(&mut self, load: &Load, clock_start: Instant) -> Result<Loaded, Failed> {
        let bad_request = |message| Failed::new(FailureKind::BadRequest, message);
        let is_unknown = |name: &&String| ![TOKEN_TIME_OPTION, STREAMS_OPTION].contains(&name.as_str());
        if let Some(unknown) = load.options.keys().find(is_unknown) {
            return Err(bad_request(format!("unknown option `{unknown}`"))
                .hint(format!("the options are `{TOKEN_TIME_OPTION}` and `{STREAMS_OPTION}`")));
        }
        let milliseconds = load.options.get(TOKEN_TIME_OPTION).map_or(Some(0.0), serde_json::Value::as_f64);
        let token_time = milliseconds.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        self.token_time = token_time
            .ok_or_else(|| bad_request(format!("option `{TOKEN_TIME_OPTION}`: expected 0 or more")))?;
        let streams = load.options.get(STREAMS_OPTION).map_or(Some(0), serde_json::Value::as_u64);
        self.streams = streams.filter(|count| *count <= MAX_STREAMS).ok_or_else(|| {
            bad_request(format!("option `{STREAMS_OPTION}`: expected an integer from 0 to {MAX_STREAMS}"))
        })? as usize;
        // The facts of a model of common dimensions, so that the answer to `facts` is as long as that of other engines.
        self.facts = Facts {
            device: Some("cpu".into()),
            threads: load.threads,
            layers: Some(16),
            heads: Some(32),
            kv_heads: Some(8),
            head_dim: Some(64),
            hidden_size: Some(2048),
            intermediate_size: Some(8192),
            ..Facts::default()
        };
        Ok(Loaded { load_ns: elapsed_ns(clock_start), facts: self.facts.clone(), ..Loaded::default() })
    }

    fn generate(&self, request: Generate, clock_start: Instant, write: Write) -> Result<Generated> {
        // A byte of text counts as a token.
        let prompt_lengths: Vec<u32> =
            match (&request.prompt_ids, &request.prompts_ids, &request.prompt, &request.prompts) {
                (Some(ids), ..) => vec![ids.len() as u32],
                (_, Some(prompts), ..) => prompts.iter().map(|ids| ids.len() as u32).collect(),
                (_, _, Some(text), _) => vec![text.len() as u32],
                (.., texts) => texts.iter().flatten().map(|text| text.len() as u32).collect(),
            };
        let mut iterate = |number| self.iterate(&request, &prompt_lengths, number, clock_start, write);
        let warmup_iterations = (0..request.warmup).map(&mut iterate).collect::<Result<_>>()?;
        let iterations = (0..request.iterations).map(&mut iterate).collect::<Result<_>>()?;
        Ok(Generated { id: request.id.clone(), iterations, warmup_iterations, ..Generated::default() })
    }

    fn iterate(
        &self,
        request: &Generate,
        prompt_lengths: &[u32],
        iteration: u32,
        clock_start: Instant,
        write: Write,
    ) -> Result<Iteration> {
        let start_ns = elapsed_ns(clock_start);
        let streamed_sequences = if request.stream { prompt_lengths.len() as u32 } else { 0 };
        let mut token_ns = Vec::with_capacity(request.max_new_tokens as usize);
        for index in 0..request.max_new_tokens {
            self.sleep_for_a_token();
            // With a coarse clock, the first token could have the same time as the start.
            let ns = elapsed_ns(clock_start).max(start_ns + 1);
            token_ns.push(ns);
            for sequence in 0..streamed_sequences {
                let id = request.id.clone();
                let token =
                    Message::Token(Token { id, iteration, sequence, index, ids: vec![id_of(index)], ns });
                write(&protocol::encode(&token))?;
            }
        }
        let sequence = |&prompt_tokens: &u32| Sequence {
            prompt_tokens,
            output_ids: Some((0..request.max_new_tokens).map(id_of).collect()),
            token_ns: Some(token_ns.clone()),
            finish: Finish::Length,
            ..Sequence::default()
        };
        let sequences = prompt_lengths.iter().map(sequence).collect();
        let end_ns = elapsed_ns(clock_start).max(token_ns.last().copied().unwrap_or(start_ns));
        Ok(Iteration { start_ns, end_ns, sequences })
    }

    /// Sleeps for the time of a token, without a busy loop.
    fn sleep_for_a_token(&self) {
        sleep_until(Instant::now(), self.token_time);
    }
}

fn hello() -> HelloFacts {
    HelloFacts {
        protocol: protocol::version::CURRENT,
        engine: "null".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        deterministic: true,
        capabilities: Capabilities {
            stream: true,
            prompt_ids: true,
            batch: 64,
            concurrency: MAX_STREAMS as u32,
            ignore_eos: IgnoreEos::Exact,
            facts: true,
            ..Capabilities::default()
        },
        ..HelloFacts::default()
    }
}

fn elapsed_ns(clock_start: Instant) -> u64 {
    clock_start.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> Message {
        let mut engine = NullEngine::default();
        let frame = Frame::Line(line.as_bytes().to_vec());
        engine.answer(frame, Instant::now(), &mut |_| Ok(())).unwrap().unwrap()
    }

    #[test]
    fn the_null_engine_generates_the_requested_tokens_in_order_of_time() {
        let Message::Generated(generated) =
            answer(r#"{"prompt_ids":[1,2,3],"max_new_tokens":5,"iterations":2,"warmup":1}"#)
        else {
            panic!("no answer")
        };
        assert_eq!((generated.iterations.len(), generated.warmup_iterations.len()), (2, 1));
        for iteration in &generated.iterations {
            let sequence = &iteration.sequences[0];
            let times = sequence.token_ns.as_ref().unwrap();
            let ids = sequence.output_ids.as_ref().unwrap();
            assert_eq!((sequence.prompt_tokens, ids.len(), times.len()), (3, 5, 5));
            assert!(iteration.start_ns < times[0] && times.is_sorted() && times[4] <= iteration.end_ns);
        }
    }

    #[test]
    fn the_null_engine_refuses_unknown_options() {
        let Message::Failed(failed) = answer(r#"{"type":"load","model":"m","options":{"x":1}}"#) else {
            panic!()
        };
        assert_eq!(failed.message, "unknown option `x`");
        let known = answer(r#"{"type":"load","model":"m","options":{"ms_per_token":0.5}}"#);
        assert!(matches!(known, Message::Loaded(_)), "{known:?}");
        let Message::Failed(failed) = answer(r#"{"type":"load","model":"m","options":{"streams":65}}"#)
        else {
            panic!()
        };
        assert_eq!(failed.message, "option `streams`: expected an integer from 0 to 64");
    }

    #[test]
    fn streams_are_answered_together_with_a_token_of_each_in_turn() {
        let load = r#"{"type":"load","model":"m","options":{"streams":2}}"#;
        let requests = [(7, 3), (8, 2)].map(|(id, tokens)| {
            format!(r#"{{"id":{id},"prompt_ids":[1,2],"max_new_tokens":{tokens},"stream":true}}"#)
        });
        let input = [load.to_string(), requests.join("\n")].join("\n") + "\n";
        let mut output = Vec::new();
        let before_ns = shared_clock_ns();
        answer_requests(&mut input.as_bytes(), &mut |bytes| {
            output.push(protocol::parse_message(bytes.trim_ascii_end()).unwrap());
            Ok(())
        })
        .unwrap();
        let number = |id: &Option<protocol::Id>| serde_json::to_value(id).unwrap().as_u64().unwrap();
        let (mut tokens, mut answers) = (Vec::new(), Vec::new());
        for message in &output[1..] {
            match message {
                Message::Token(token) => tokens.push((number(&token.id), token.index, token.ns)),
                Message::Generated(generated) => {
                    let sequence = &generated.iterations[0].sequences[0];
                    answers.push((number(&generated.id), sequence.token_ns.clone().unwrap()));
                }
                other => panic!("{other:?}"),
            }
        }
        let order: Vec<_> = tokens.iter().map(|(id, index, _)| (*id, *index)).collect();
        assert_eq!(order, [(7, 0), (8, 0), (7, 1), (8, 1), (7, 2)]);
        assert!(tokens.iter().all(|(_, _, ns)| (before_ns..=shared_clock_ns()).contains(ns)), "{tokens:?}");
        for (id, times) in answers {
            let streamed: Vec<u64> =
                tokens.iter().filter(|token| token.0 == id).map(|token| token.2).collect();
            assert_eq!(times, streamed);
        }
    }

    #[test]
    fn the_null_engine_answers_unsupported_and_invalid_requests_with_failed() {
        assert!(matches!(answer("<"), Message::Failed(_)));
        assert!(matches!(answer(r#"{"type":"score","sequences":[[1,2]]}"#), Message::Failed(_)));
    }
}
