//! Requests that the engine answers together, as an engine with continuous batching does: in each step, each of them gets a token.

use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::{Finish, Generate, Generated, Iteration, Message, Sequence, Token};
use rustix::time::{ClockId, clock_gettime};

use crate::tokens::{Write, id_of, sleep_until};

/// The time on the monotonic clock of this machine, which all processes share.
pub fn shared_clock_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The monotonic clock is never negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Streams the tokens of all requests, and then writes their answers. Times are those of the shared clock, and not since the
/// request, so that a reader of the tokens knows how late each one arrives. A token's time is taken just before it is written.
pub fn answer(requests: &[Generate], step_time: Duration, write: Write) -> Result<()> {
    let (began, start_ns) = (Instant::now(), shared_clock_ns());
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); requests.len()];
    let steps = requests.iter().map(|it| it.max_new_tokens).max().unwrap_or(0);
    for index in 0..steps {
        // The times of steps are fixed in advance, so a late step does not delay the next ones.
        sleep_until(began, step_time.saturating_mul(index + 1));
        for (request, times) in requests.iter().zip(&mut times) {
            if index < request.max_new_tokens {
                let ns = shared_clock_ns().max(start_ns + 1);
                times.push(ns);
                let token =
                    Token { id: request.id.clone(), index, ids: vec![id_of(index)], ns, ..Token::default() };
                write(&protocol::encode(&Message::Token(token)))?;
            }
        }
    }
    let end_ns = shared_clock_ns();
    for (request, times) in requests.iter().zip(times) {
        let sequence = Sequence {
            prompt_tokens: request.prompt_ids.as_ref().map_or(0, |ids| ids.len() as u32),
            output_ids: Some((0..request.max_new_tokens).map(id_of).collect()),
            token_ns: Some(times),
            finish: Finish::Length,
            ..Sequence::default()
        };
        let iterations = vec![Iteration { start_ns, end_ns, sequences: vec![sequence] }];
        let generated = Generated { id: request.id.clone(), iterations, ..Generated::default() };
        write(&protocol::encode(&Message::Generated(generated)))?;
    }
    Ok(())
}
