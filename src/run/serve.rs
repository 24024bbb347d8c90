//! A round of a workload with overlapping requests: a window of them, recorded as one sample.

use std::time::Duration;

use protocol::{Generate, Iteration};

use super::launch::Launched;
use super::verify::{self, Expected};
use crate::plan::Workload;
use crate::plan::prompts::Prompts;
use crate::record::{RequestTimes, Sample};
use crate::run::process::{self, Cause, Concurrency, Served};

/// Makes a request for each of these prompts, and verifies each answer. The sample has the sequences of all answers, with times since
/// the start of the window. `longest` is the longest time without an answer.
pub(super) async fn window(
    launched: &mut Launched,
    prompts: &Prompts,
    workload: &Workload,
    batch: &[Vec<u32>],
    longest: Duration,
) -> Result<Sample, Cause> {
    let capabilities = launched.hello().map(|hello| hello.capabilities.clone());
    let request = |ids: &Vec<u32>| {
        prompts.request(workload, std::slice::from_ref(ids), capabilities.as_ref(), launched.next_id())
    };
    let requests: Vec<Generate> = batch.iter().map(request).collect();
    let lengths: Vec<Option<u32>> =
        requests.iter().map(|it| it.prompt_ids.as_ref().map(|ids| ids.len() as u32)).collect();
    let concurrency = Concurrency {
        users: workload.shape.concurrency as usize,
        engine: capabilities.map_or(1, |it| it.concurrency.max(1)) as usize,
    };
    let deadline = launched.conversation.deadlines.answer.min(longest);
    let cpu_time = launched.cpu_time();
    let before = cpu_time.read();
    let served = process::serve(&mut launched.conversation, requests, concurrency, deadline).await;
    let served = served.map_err(|cause| cause.if_too_slow(deadline == longest, longest))?;
    launched.cpu_use_of_request = cpu_time.read().since(before);
    for (Served { answer, .. }, prompt_tokens) in served.iter().zip(lengths) {
        let expected = Expected {
            prompt_tokens: vec![prompt_tokens],
            max_new_tokens: workload.max_new_tokens,
            ignore_eos: workload.ignore_eos,
            ..Expected::default()
        };
        launched.verify(answer, expected)?;
        verify::verify_not_streamed(answer)?;
    }
    launched.conversation.refuse_unrequested()?;
    Ok(sample(served))
}

/// The sample of a window. An engine's clock starts when it has read the request, so its times are added to the time of sending.
fn sample(served: Vec<Served>) -> Sample {
    let start_ns = served.iter().map(|it| it.wanted_ns).min().unwrap_or_default();
    let answered_ns = served.iter().map(|it| it.answer.answered_ns).max().unwrap_or_default();
    let end_ns = answered_ns.saturating_sub(start_ns);
    let (mut requests, mut sequences, mut device_memory) = (Vec::new(), Vec::new(), None);
    for Served { wanted_ns, answer } in served {
        let since_start = |ns: u64| ns.saturating_sub(start_ns);
        let sent_ns = since_start(answer.sent_ns);
        let answered_ns = since_start(answer.answered_ns);
        requests.push(RequestTimes { wanted_ns: since_start(wanted_ns), sent_ns, answered_ns });
        device_memory = answer.generated.device_memory.or(device_memory);
        for mut sequence in answer.generated.iterations.into_iter().flat_map(|it| it.sequences) {
            let stamps = sequence.token_ns.iter_mut().flatten();
            let stamps = stamps.chain(sequence.chunks.iter_mut().flatten().map(|chunk| &mut chunk.ns));
            stamps.for_each(|ns| *ns = ns.saturating_add(sent_ns));
            sequences.push(sequence);
        }
    }
    let iteration = Iteration { start_ns: 0, end_ns, sequences };
    Sample { sent_ns: start_ns, answered_ns, iteration, requests, device_memory, ..Sample::default() }
}

#[cfg(test)]
mod tests {
    use protocol::{Generated, Sequence};

    use super::*;
    use crate::run::process::Answer;

    fn served(wanted_ns: u64, sent_ns: u64, answered_ns: u64, stamps: &[u64]) -> Served {
        let sequence = Sequence { token_ns: Some(stamps.to_vec()), ..Sequence::default() };
        let iteration = Iteration { start_ns: 1, end_ns: answered_ns - sent_ns, sequences: vec![sequence] };
        let generated = Generated { iterations: vec![iteration], ..Generated::default() };
        Served { wanted_ns, answer: Answer { generated, tokens: Vec::new(), sent_ns, answered_ns } }
    }

    #[test]
    fn a_window_has_the_times_of_all_its_requests_since_its_start() {
        let sample = sample(vec![served(100, 110, 200, &[30, 60]), served(100, 200, 300, &[40, 90])]);
        assert_eq!((sample.sent_ns, sample.answered_ns, sample.iteration.end_ns), (100, 300, 200));
        let stamps: Vec<_> =
            sample.iteration.sequences.iter().map(|it| it.token_ns.clone().unwrap()).collect();
        assert_eq!(stamps, [[40, 70], [140, 190]]);
        let second = RequestTimes { wanted_ns: 0, sent_ns: 100, answered_ns: 200 };
        assert_eq!(sample.requests[1], second);
    }
}
