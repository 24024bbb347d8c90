//! Requests that overlap: those of users who each want the next one when the last one is answered, or those that arrive at given
//! times. In a conversation, a request follows from the answer before it. An engine gets as many as it takes; the others wait here, and
//! their wait counts.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use protocol::{Generate, Id, Message, Request, Token};

use super::conversation::{Answer, Conversation, check_folder, unexpected};
use super::error::Cause;

/// The answer to a request that overlapped with others.
#[derive(Debug)]
pub struct Served {
    /// The time at which its user wanted it, on the orchestrator's clock since the process started.
    pub wanted_ns: u64,
    /// The number of ids that were sent. `None` if the prompt was sent as text.
    pub prompt_tokens: Option<u32>,
    pub max_new_tokens: u32,
    pub answer: Answer,
}

/// A request that is wanted and not sent yet.
struct Wanted {
    /// The number of its conversation.
    number: usize,
    since: Instant,
    request: Generate,
}

/// A request without an answer.
struct Open {
    number: usize,
    since: Instant,
    sent: Instant,
    prompt_tokens: Option<u32>,
    max_new_tokens: u32,
    is_streamed: bool,
    /// Its streamed tokens so far, as in `Answer`.
    tokens: Vec<(Token, u64)>,
}

/// When conversations begin. Most have one request.
#[derive(Debug, Clone)]
pub enum Wishes {
    /// By so many users: one of each at the start, then the next one when it has ended.
    Users(usize),
    /// At these times since the start, one for each conversation.
    At(Vec<Duration>),
}

/// Sends these requests, the first of each conversation, and those that follow. Each has a number as its id. Gives the answers by
/// conversation and turn. `next_turn`: the request that a user sends after the answers of the conversation with this number, if it goes on.
/// `engine`: the most requests that the engine takes at once. `deadline`: the longest time without an answer.
pub async fn serve(
    conversation: &mut Conversation,
    firsts: Vec<Generate>,
    mut next_turn: impl FnMut(usize, &[Served]) -> Result<Option<Generate>, Cause>,
    wishes: Wishes,
    engine: usize,
    deadline: Duration,
) -> Result<Vec<Served>, Cause> {
    check_folder(&conversation.process.folder).await?;
    conversation.refuse_unrequested()?;
    let mut served: Vec<Vec<Served>> = firsts.iter().map(|_| Vec::new()).collect();
    let mut firsts: VecDeque<(usize, Generate)> = firsts.into_iter().enumerate().collect();
    let mut waiting: VecDeque<Wanted> = VecDeque::new();
    let mut open: HashMap<u64, Open> = HashMap::new();
    let mut arrivals = None;
    match wishes {
        Wishes::Users(users) => {
            let start = Instant::now();
            waiting.extend((0..users).map_while(|_| begin(&mut firsts, start)));
        }
        Wishes::At(times) => arrivals = Some(Arrivals::start(times)),
    }
    let mut answer_by = tokio::time::Instant::now() + deadline;
    loop {
        if let Some(arrivals) = &mut arrivals {
            waiting.extend(std::iter::from_fn(|| begin(&mut firsts, arrivals.arrived.try_recv().ok()?)));
        }
        while open.len() < engine {
            let Some(Wanted { number, since, request }) = waiting.pop_front() else { break };
            if open.is_empty() {
                answer_by = tokio::time::Instant::now() + deadline;
            }
            let id = number_of("generate", &request.id)?;
            let prompt_tokens = request.prompt_ids.as_ref().map(|ids| ids.len() as u32);
            let max_new_tokens = request.max_new_tokens;
            let is_streamed = request.stream;
            let sent = Instant::now();
            conversation.write_within(&Request::Generate(request), deadline).await?;
            let tokens = Vec::new();
            open.insert(id, Open { number, since, sent, prompt_tokens, max_new_tokens, is_streamed, tokens });
        }
        if firsts.is_empty() && open.is_empty() {
            return Ok(served.into_iter().flatten().collect());
        }
        let message = tokio::select! {
            biased;
            message = conversation.message_by(answer_by, deadline), if !open.is_empty() => message?,
            since = next(&mut arrivals), if !firsts.is_empty() => {
                waiting.extend(since.and_then(|since| begin(&mut firsts, since)));
                continue;
            }
        };
        match message {
            // A loaded engine has no load, so its progress is ignored.
            (Message::Progress(_), _) => {}
            (Message::Token(token), at) => {
                let id = number_of("token", &token.id)?;
                let request = open.get_mut(&id).ok_or_else(|| unknown("token", &token.id))?;
                if !request.is_streamed {
                    return Err(unexpected(&Message::Token(token), "generated"));
                }
                request.tokens.push((token, conversation.since_start(at)));
            }
            (Message::Generated(generated), at) => {
                let of_id = |id| open.remove(&id).ok_or_else(|| unknown("generated", &generated.id));
                let request = number_of("generated", &generated.id).and_then(of_id)?;
                let Open { number, since, sent, prompt_tokens, max_new_tokens, tokens, .. } = request;
                let [wanted_ns, sent_ns, answered_ns] =
                    [since, sent, at].map(|time| conversation.since_start(time));
                let answer = Answer { generated, tokens, sent_ns, answered_ns };
                let answered = &mut served[number];
                answered.push(Served { wanted_ns, prompt_tokens, max_new_tokens, answer });
                match next_turn(number, answered)? {
                    Some(request) => waiting.push_back(Wanted { number, since: at, request }),
                    None if arrivals.is_none() => waiting.extend(begin(&mut firsts, at)),
                    None => {}
                }
                answer_by = tokio::time::Instant::now() + deadline;
            }
            (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
            (other, _) => return Err(unexpected(&other, "generated")),
        }
    }
}

/// The first request of the next conversation, which is wanted since this time. `None` if all have begun.
fn begin(firsts: &mut VecDeque<(usize, Generate)>, since: Instant) -> Option<Wanted> {
    let (number, request) = firsts.pop_front()?;
    Some(Wanted { number, since, request })
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

fn number_of(message: &str, id: &Option<Id>) -> Result<u64, Cause> {
    match id {
        Some(Id::Number(number)) => Ok(*number),
        _ => Err(unknown(message, id)),
    }
}

fn unknown(message: &str, id: &Option<Id>) -> Cause {
    let id = id.as_ref().map_or("no id".into(), |id| match id {
        Id::Number(number) => format!("the id `{number}`"),
        Id::Text(text) => format!("the id `{}`", text.chars().take(40).collect::<String>()),
    });
    Cause::Protocol(format!("`{message}` has {id}, and no open request has it"))
}
