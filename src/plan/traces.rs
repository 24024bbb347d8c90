//! Traces: the arrivals and lengths of requests that a service recorded, from a file of the user.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::arrivals::MAX_REQUESTS;
use super::texts;

/// The requests of a window. A copy is small, because the values are never freed, as those of a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredTrace", into = "StoredTrace")]
pub struct Trace(&'static StoredTrace);

/// A trace in a record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoredTrace {
    path: String,
    requests: Vec<TraceRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// The time of its arrival since that of the first request.
    pub at_ns: u64,
    pub prompt_tokens: u32,
    pub new_tokens: u32,
}

impl Trace {
    pub fn path(self) -> &'static str {
        &self.0.path
    }

    /// The name in labels.
    pub fn name(self) -> String {
        texts::name_in_labels(&self.0.path)
    }

    /// In the order of their arrival.
    pub fn requests(self) -> &'static [TraceRequest] {
        &self.0.requests
    }

    pub fn arrivals(self) -> Vec<Duration> {
        self.requests().iter().map(|it| Duration::from_nanos(it.at_ns)).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let requests = parse(&texts::read_text(path)?)?;
        Ok(StoredTrace { path: path.to_string_lossy().into(), requests }.into())
    }
}

impl From<StoredTrace> for Trace {
    fn from(stored: StoredTrace) -> Self {
        Self(Box::leak(Box::new(stored)))
    }
}

impl From<Trace> for StoredTrace {
    fn from(trace: Trace) -> Self {
        trace.0.clone()
    }
}

impl FromStr for Trace {
    type Err = String;

    fn from_str(path: &str) -> Result<Self, String> {
        Self::read(Path::new(path)).map_err(|error| format!("{error:#}"))
    }
}

const EXPECTED: &str = "expected a time, the tokens of the prompt and the new tokens, as in `0.25,120,64`";

/// A request in each line: the time in seconds, or a date with a time, then the two numbers of tokens. The first line may be a heading.
fn parse(text: &str) -> Result<Vec<TraceRequest>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    let mut requests = Vec::new();
    for (line, number) in lines {
        match parse_line(line) {
            Some(request) => requests.push(request),
            // A heading.
            None if requests.is_empty() && number == 1 => {}
            None => return Err(anyhow::anyhow!(EXPECTED)).with_context(|| format!("line {number}")),
        }
    }
    ensure!(!requests.is_empty(), "the trace has no requests: {EXPECTED}");
    ensure!(
        requests.len() <= MAX_REQUESTS as usize,
        "the trace has {} requests, and a round takes {MAX_REQUESTS} at most\nhint: head -n {MAX_REQUESTS} TRACE > SHORTER",
        requests.len()
    );
    requests.sort_by_key(|it| it.at_ns);
    let first_ns = requests[0].at_ns;
    requests.iter_mut().for_each(|it| it.at_ns -= first_ns);
    Ok(requests)
}

fn parse_line(line: &str) -> Option<TraceRequest> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [time, prompt_tokens, new_tokens] = fields[..] else { return None };
    let count = |text: &str| text.parse::<u32>().ok().filter(|&count| count > 0);
    let seconds = time.parse::<f64>().ok().filter(|it| (0.0..1e9).contains(it)).map(Duration::from_secs_f64);
    let date = || humantime::parse_rfc3339_weak(time).ok()?.duration_since(UNIX_EPOCH).ok();
    let at_ns = u64::try_from(seconds.or_else(date)?.as_nanos()).ok()?;
    Some(TraceRequest { at_ns, prompt_tokens: count(prompt_tokens)?, new_tokens: count(new_tokens)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(text: &str) -> Vec<(u64, u32, u32)> {
        parse(text)
            .unwrap()
            .iter()
            .map(|it| (it.at_ns / 1_000_000, it.prompt_tokens, it.new_tokens))
            .collect()
    }

    #[test]
    fn a_trace_has_seconds_or_dates_and_begins_with_its_first_request() {
        let seconds = "seconds,prompt,new\n# a comment\n\n3.5, 20, 4\n1,10,8\n";
        assert_eq!(requests(seconds), [(0, 10, 8), (2500, 20, 4)]);
        let dates = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.680590,374,44\n\
                     2023-11-16 18:15:50.9805,396,109\n";
        assert_eq!(requests(dates), [(0, 374, 44), (4299, 396, 109)]);
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        let reason = |text: &str| format!("{:#}", parse(text).unwrap_err());
        for bad in [
            "0,1,1\n1,x,1",
            "0,1,1\n1,1",
            "0,1,1\n1,0,1",
            "0,1,1\n-1,1,1",
            "0,1,1\nnan,1,1",
            "0,1,1\n1,1,1,1",
        ] {
            assert!(reason(bad).starts_with("line 2: expected a time"), "{bad}: {}", reason(bad));
        }
        assert!(
            reason("").starts_with("the trace has no requests") && reason("a,b,c").starts_with("the trace")
        );
        let long = "0,1,1\n".repeat(MAX_REQUESTS as usize + 1);
        assert!(
            reason(&long).contains("4097 requests") && reason(&long).contains("\nhint: head"),
            "{}",
            reason(&long)
        );
    }
}
