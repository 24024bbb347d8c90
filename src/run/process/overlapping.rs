//! Requests that overlap. Users have some requests open at once, and each answer is followed by the next request of its user. An
//! engine gets as many as it takes; the others wait here, and their wait counts.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

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

/// The most requests that are open at once.
#[derive(Debug, Clone, Copy)]
pub struct Concurrency {
    /// Those of the users.
    pub users: usize,
    /// Those that the engine takes.
    pub engine: usize,
}

/// Sends these requests, of which each has a number as its id, and gives their answers in the same order. `deadline` is the
/// longest time without an answer.
pub async fn serve(
    conversation: &mut Conversation,
    requests: Vec<Generate>,
    concurrency: Concurrency,
    deadline: Duration,
) -> Result<Vec<Served>, Cause> {
    check_folder(&conversation.process.folder).await?;
    conversation.refuse_unrequested()?;
    let mut served: Vec<Option<Served>> = requests.iter().map(|_| None).collect();
    let mut unsent: VecDeque<(usize, Generate)> = requests.into_iter().enumerate().collect();
    let mut open: HashMap<u64, Open> = HashMap::new();
    // The times at which users wanted a request that is not sent yet.
    let mut wanted = VecDeque::from(vec![Instant::now(); concurrency.users]);
    let mut answer_by = tokio::time::Instant::now() + deadline;
    while !unsent.is_empty() || !open.is_empty() {
        while open.len() < concurrency.engine && !wanted.is_empty() {
            let Some((index, request)) = unsent.pop_front() else { break };
            let Some(wanted) = wanted.pop_front() else { break };
            let id = number(&request.id)?;
            let sent = Instant::now();
            conversation.write_within(&Request::Generate(request), deadline).await?;
            open.insert(id, Open { index, wanted, sent });
        }
        match conversation.message_by(answer_by, deadline).await? {
            // A loaded engine has no load, so its progress is ignored.
            (Message::Progress(_), _) => {}
            (Message::Generated(generated), at) => {
                let of_id = |id| open.remove(&id).ok_or_else(|| unknown(&generated.id));
                let Open { index, wanted: since, sent } = number(&generated.id).and_then(of_id)?;
                let [wanted_ns, sent_ns, answered_ns] =
                    [since, sent, at].map(|time| conversation.since_start(time));
                let answer = Answer { generated, tokens: Vec::new(), sent_ns, answered_ns };
                served[index] = Some(Served { wanted_ns, answer });
                wanted.push_back(at);
                answer_by = tokio::time::Instant::now() + deadline;
            }
            (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
            (other, _) => return Err(unexpected(&other, "generated")),
        }
    }
    Ok(served.into_iter().flatten().collect())
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
