//! Requests that overlap: those of users who each want the next one when the last one is answered, or those that arrive at given
//! times. An engine gets as many as it takes; the others wait here, and their wait counts.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use protocol::{Generate, Id, Message, Request};

use super::conversation::{Answer, Conversation, check_folder, unexpected};
use super::error::Cause;

/// The answer to a request that overlapped with others.
#[derive(Debug)]
pub struct Served {
    /// The time at which its user wanted it, on the orchestrator's clock since the process started.
    pub wanted_ns: u64,
    pub answer: Answer,
}

/// A request without an answer.
struct Open {
    /// Its position among the requests of the window.
    index: usize,
    wanted: Instant,
    sent: Instant,
}

/// When requests are wanted.
#[derive(Debug, Clone)]
pub enum Wishes {
    /// By so many users: one request of each at the start, then the next one when it is answered.
    Users(usize),
    /// At these times since the start, one for each request.
    At(Vec<Duration>),
}

/// Sends these requests, of which each has a number as its id, and gives their answers in the same order. `engine`: the most requests
/// that the engine takes at once. `deadline`: the longest time without an answer.
pub async fn serve(
    conversation: &mut Conversation,
    requests: Vec<Generate>,
    wishes: Wishes,
    engine: usize,
    deadline: Duration,
) -> Result<Vec<Served>, Cause> {
    check_folder(&conversation.process.folder).await?;
    conversation.refuse_unrequested()?;
    let mut served: Vec<Option<Served>> = requests.iter().map(|_| None).collect();
    let mut unsent: VecDeque<(usize, Generate)> = requests.into_iter().enumerate().collect();
    let mut open: HashMap<u64, Open> = HashMap::new();
    // The times at which users wanted a request that is not sent yet.
    let (mut waiting, mut arrivals) = match wishes {
        Wishes::Users(users) => (VecDeque::from(vec![Instant::now(); users]), None),
        Wishes::At(times) => (VecDeque::new(), Some(Arrivals::start(times))),
    };
    let mut answer_by = tokio::time::Instant::now() + deadline;
    loop {
        if let Some(arrivals) = &mut arrivals {
            waiting.extend(std::iter::from_fn(|| arrivals.arrived.try_recv().ok()));
        }
        while open.len() < engine && !waiting.is_empty() {
            let Some((index, request)) = unsent.pop_front() else { break };
            let Some(wanted) = waiting.pop_front() else { break };
            if open.is_empty() {
                answer_by = tokio::time::Instant::now() + deadline;
            }
            let id = number(&request.id)?;
            let sent = Instant::now();
            conversation.write_within(&Request::Generate(request), deadline).await?;
            open.insert(id, Open { index, wanted, sent });
        }
        if unsent.is_empty() && open.is_empty() {
            return Ok(served.into_iter().flatten().collect());
        }
        let message = tokio::select! {
            biased;
            message = conversation.message_by(answer_by, deadline), if !open.is_empty() => message?,
            wanted = next(&mut arrivals), if waiting.len() < unsent.len() => {
                waiting.extend(wanted);
                continue;
            }
        };
        match message {
            // A loaded engine has no load, so its progress is ignored.
            (Message::Progress(_), _) => {}
            (Message::Generated(generated), at) => {
                let of_id = |id| open.remove(&id).ok_or_else(|| unknown(&generated.id));
                let Open { index, wanted: since, sent } = number(&generated.id).and_then(of_id)?;
                let [wanted_ns, sent_ns, answered_ns] =
                    [since, sent, at].map(|time| conversation.since_start(time));
                let answer = Answer { generated, tokens: Vec::new(), sent_ns, answered_ns };
                served[index] = Some(Served { wanted_ns, answer });
                if arrivals.is_none() {
                    waiting.push_back(at);
                }
                answer_by = tokio::time::Instant::now() + deadline;
            }
            (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
            (other, _) => return Err(unexpected(&other, "generated")),
        }
    }
}

/// Requests that arrive at given times. A thread of its own waits for them, because the timer of the asynchronous runtime counts in
/// milliseconds.
struct Arrivals {
    arrived: mpsc::UnboundedReceiver<Instant>,
    /// Ends the thread when it is dropped.
    _ends: std::sync::mpsc::Sender<()>,
}

impl Arrivals {
    fn start(times: Vec<Duration>) -> Self {
        let start = Instant::now();
        let (sender, arrived) = mpsc::unbounded_channel();
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for at in times.into_iter().map(|time| start + time) {
                let wait = at.saturating_duration_since(Instant::now());
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) || sender.send(at).is_err() {
                    return;
                }
            }
        });
        Self { arrived, _ends: ends }
    }
}

/// The time of the next arrival. Without arrivals at given times, none comes.
async fn next(arrivals: &mut Option<Arrivals>) -> Option<Instant> {
    match arrivals {
        Some(arrivals) => arrivals.arrived.recv().await,
        None => std::future::pending().await,
    }
}

fn number(id: &Option<Id>) -> Result<u64, Cause> {
    match id {
        Some(Id::Number(number)) => Ok(*number),
        _ => Err(unknown(id)),
    }
}

fn unknown(id: &Option<Id>) -> Cause {
    let id = id.as_ref().map_or("no id".into(), |id| match id {
        Id::Number(number) => format!("the id `{number}`"),
        Id::Text(text) => format!("the id `{}`", text.chars().take(40).collect::<String>()),
    });
    Cause::Protocol(format!("`generated` has {id}, and no open request has it"))
}
