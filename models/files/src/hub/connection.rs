//! Requests to the hub: every wait has a bound, passing failures are retried, and a refusal names a remedy.
//!
//! The crate `hf-hub` does not fit: version 1 needs tokio, and the client of version 0.5 has no timeouts and checks no
//! hash. A test proves that `hf-hub` finds the models pulled here.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, anyhow};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::listing::Listing;
use super::repository::Repository;
use super::settings::{Settings, Token};

pub struct Hub<'a> {
    agent: Agent,
    endpoint: &'a str,
    token: Option<&'a Token>,
    /// Whether the hub has answered before. Without any answer it may not exist, so retries make no sense.
    answered: Cell<bool>,
}

/// The reason for a failed request.
pub enum Trouble {
    /// A failure that may pass: a broken connection, an overloaded server.
    Passing {
        why: String,
        wait: Option<Duration>,
    },
    Lasting(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Lasting(error)
    }
}

/// The most consecutive failures of a request.
const TRIES: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The timeout for name resolution, and for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest accepted list of files.
const LONGEST_LISTING: u64 = 64 << 20;

/// Counts consecutive failures.
#[derive(Default)]
pub struct Patience {
    failures: u32,
}

impl Patience {
    /// Waits before the next try; after the last try, returns the failure as an error.
    pub fn wait(&mut self, trouble: Trouble, waiting: &mut dyn FnMut(&str, Duration)) -> Result<()> {
        let (why, wait) = match trouble {
            Trouble::Lasting(error) => return Err(error),
            Trouble::Passing { why, wait } => (why, wait),
        };
        self.failures += 1;
        if self.failures >= TRIES {
            return Err(anyhow!(
                "{why}, {TRIES} times in a row\nhint: what has come is kept: the same command goes on from there"
            ));
        }
        let wait = wait.unwrap_or(FIRST_WAIT * 2_u32.pow(self.failures - 1)).min(LONGEST_WAIT);
        waiting(&why, wait);
        // The other side sends no signal when it recovers.
        std::thread::sleep(wait);
        Ok(())
    }

    /// Resets the count after progress.
    pub fn renew(&mut self) {
        self.failures = 0;
    }
}

impl<'a> Hub<'a> {
    pub fn new(settings: &'a Settings) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(settings.silence))
            .timeout_per_read(Some(settings.silence))
            .timeout_per_write(Some(settings.silence))
            // A renamed repository redirects on the same host. Large files are on other hosts, which must not get the
            // token.
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .user_agent(concat!("orchestrate/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.into(),
            endpoint: &settings.endpoint,
            token: settings.token.as_ref(),
            answered: Cell::new(false),
        }
    }

    /// The files of the repository at its revision.
    pub fn listing(
        &self,
        repository: &Repository,
        waiting: &mut dyn FnMut(&str, Duration),
    ) -> Result<Listing> {
        let revision = repository.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, repository.id);
        let mut patience = Patience::default();
        loop {
            let json = self.get(&url, None, repository).and_then(|mut response| {
                let body = response.body_mut().with_config().limit(LONGEST_LISTING);
                body.read_to_vec().map_err(|error| self.broken(&error))
            });
            match json {
                Ok(json) => {
                    return Listing::parse(&json)
                        .map_err(|error| anyhow!("`{repository}` on {}: {error:#}", self.endpoint));
                }
                Err(trouble) => patience.wait(trouble, waiting)?,
            }
        }
    }

    /// One file of a commit, from this byte on. The status of the answer is 200 (from the first byte), 206 or 416.
    pub fn file(
        &self,
        repository: &Repository,
        commit: &str,
        name: &str,
        from: u64,
    ) -> Result<Response<Body>, Trouble> {
        let name = escaped(name);
        let url = format!("{}/{}/resolve/{commit}/{name}", self.endpoint, repository.id);
        self.get(&url, (from > 0).then_some(from), repository)
    }

    fn get(&self, url: &str, from: Option<u64>, repository: &Repository) -> Result<Response<Body>, Trouble> {
        // A compressed download could not be resumed, and its length would not match the hub's.
        let mut request = self.agent.get(url).header("Accept-Encoding", "identity");
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {}", token.secret));
        }
        if let Some(from) = from {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let response = request.call().map_err(|error| self.broken(&error))?;
        self.answered.set(true);
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::RANGE_NOT_SATISFIABLE if from.is_some() => Ok(response),
            status if is_passing(status) => Err(Trouble::Passing {
                why: format!("{} answered `{status}`", self.endpoint),
                wait: header(&response, "retry-after")
                    .and_then(|it| it.parse().ok())
                    .map(Duration::from_secs),
            }),
            _ => Err(Trouble::Lasting(self.refusal(&response, repository))),
        }
    }

    /// A connection that failed or ended too soon.
    pub fn broken(&self, error: &ureq::Error) -> Trouble {
        let why = match error {
            ureq::Error::Io(error) => error.to_string(),
            ureq::Error::Timeout(_) => "it took too long to answer".into(),
            error => error.to_string(),
        };
        if self.answered.get() {
            return Trouble::Passing {
                why: format!("the connection to {} broke: {why}", self.endpoint),
                wait: None,
            };
        }
        Trouble::Lasting(anyhow!("cannot reach {}: {why}\n{SYNTH_HINT}", self.endpoint))
    }

    fn refusal(&self, response: &Response<Body>, repository: &Repository) -> anyhow::Error {
        let (status, hub, id) = (response.status(), self.endpoint, &repository.id);
        // For users without a token, the hub answers 401 for a missing repository, as for a private one.
        let code = header(response, "x-error-code").unwrap_or_default();
        match (code, status) {
            ("RevisionNotFound", _) => anyhow!(
                "`{id}` has no revision `{}`\nhint: its branches and tags stand at {hub}/{id}/tree/main",
                repository.revision
            ),
            ("RepoNotFound", _) | ("", StatusCode::NOT_FOUND) => {
                let perhaps = if self.token.is_none() { "; a private one needs `HF_TOKEN`" } else { "" };
                anyhow!(
                    "no model `{repository}` at {hub}{perhaps}\nhint: names are case-sensitive: `OWNER/NAME`"
                )
            }
            ("EntryNotFound", _) => anyhow!("{hub} lists a file of `{repository}` that it does not have"),
            ("GatedRepo", _) | (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                let who = match self.token {
                    None => "it asks who you are".into(),
                    Some(token) => format!("it does not let in the owner of the token in {}", token.source),
                };
                anyhow!(
                    "{hub} does not give out `{repository}` (`{status}`): {who}\nhint: accept the licence at {hub}/{id}, then set HF_TOKEN to a token from {hub}/settings/tokens"
                )
            }
            _ => anyhow!("{hub} answered `{status}` when asked for `{repository}`"),
        }
    }
}

pub const SYNTH_HINT: &str =
    "hint: without a network, `orchestrate model synth NAME --out DIR` makes a model of the same shape";

pub fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

/// Percent-encodes a path for a URL.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_url_cannot_become_a_query_or_a_fragment() {
        assert_eq!(escaped("a b/ü?x#y%.json"), "a%20b/%C3%BC%3Fx%23y%25.json");
    }

    #[test]
    fn a_trouble_that_does_not_pass_ends_the_waiting_with_what_it_was() {
        let (mut patience, mut waits) = (Patience::default(), Vec::new());
        let mut tried = || {
            let busy = Trouble::Passing { why: "too much to do".into(), wait: Some(Duration::ZERO) };
            patience.wait(busy, &mut |why, wait| waits.push((why.to_string(), wait)))
        };
        let given_up = (0..100).find_map(|_| tried().err()).unwrap();
        assert!(given_up.to_string().starts_with("too much to do, 8 times in a row"), "{given_up}");
        assert_eq!(waits.len(), 7);
    }
}
