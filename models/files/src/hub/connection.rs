//! Requests to the hub, and their settings from the environment. Every wait has a limit. Transient failures are retried, and
//! most error messages have a hint.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::cache::{home, variable};
use super::listing::Listing;
use super::{Cache, Repository};
use crate::text::printable;

pub struct Hub<'a> {
    agent: Agent,
    endpoint: &'a str,
    token: Option<&'a Token>,
    /// Whether the hub has answered a request. Without any answer it may not exist, so retries make no sense.
    has_answered: Cell<bool>,
}

/// The reason for a failed request.
pub enum RequestError {
    /// The same request may succeed later: a broken connection, an overloaded server.
    Transient {
        why: String,
        /// The wait that the server asks for (`MAX_WAIT` limits it); `None` if it asks for none.
        wait: Option<Duration>,
    },
    Permanent(anyhow::Error),
}

impl From<anyhow::Error> for RequestError {
    fn from(error: anyhow::Error) -> Self {
        Self::Permanent(error)
    }
}

/// The number of consecutive failures after which no further try follows.
const MAX_FAILURES: u32 = 8;
/// The wait after the first failure. Each further failure doubles it, up to `MAX_WAIT`.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The timeout for name resolution, and for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest accepted answer with the list of a repository's files.
const MAX_LISTING_BYTES: u64 = 64 << 20;

/// Counts consecutive failures.
#[derive(Default)]
pub struct Retries {
    failures: u32,
}

impl Retries {
    /// Waits before the next try. A permanent failure, and the last of `MAX_FAILURES`, are returned as errors.
    pub fn wait(&mut self, error: RequestError, on_wait: &mut dyn FnMut(&str, Duration)) -> Result<()> {
        let (why, wait) = match error {
            RequestError::Permanent(error) => return Err(error),
            RequestError::Transient { why, wait } => (why, wait),
        };
        self.failures += 1;
        if self.failures >= MAX_FAILURES {
            return Err(anyhow!(
                "{why}, {MAX_FAILURES} times in a row\nhint: the same command continues the download"
            ));
        }
        let wait = wait.unwrap_or(FIRST_WAIT * 2_u32.pow(self.failures - 1)).min(MAX_WAIT);
        on_wait(&why, wait);
        // A server sends no signal when it recovers, so there is no event to wait for.
        std::thread::sleep(wait);
        Ok(())
    }

    /// Resets the count after progress.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

impl<'a> Hub<'a> {
    pub fn new(settings: &'a Settings) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(settings.read_timeout))
            .timeout_per_read(Some(settings.read_timeout))
            .timeout_per_write(Some(settings.read_timeout))
            // A renamed repository redirects on the same host; large files are on other hosts, which must not get the token.
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .user_agent(concat!("orchestrate/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.into(),
            endpoint: &settings.endpoint,
            token: settings.token.as_ref(),
            has_answered: Cell::new(false),
        }
    }

    /// The files of the repository at its revision.
    pub fn listing(
        &self,
        repository: &Repository,
        on_wait: &mut dyn FnMut(&str, Duration),
    ) -> Result<Listing> {
        let revision = repository.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, repository.id);
        let mut retries = Retries::default();
        loop {
            let json = self.get(&url, None, repository).and_then(|mut response| {
                let body = response.body_mut().with_config().limit(MAX_LISTING_BYTES);
                body.read_to_vec().map_err(|error| self.connection_error(&error))
            });
            match json {
                Ok(json) => {
                    return Listing::parse(&json)
                        .map_err(|error| anyhow!("`{repository}` on {}: {error:#}", self.endpoint));
                }
                Err(error) => retries.wait(error, on_wait)?,
            }
        }
    }

    /// One file of a commit, from the byte `from` on. The answer has status 206, 200 (the whole file) or 416 (no such byte).
    pub fn file(
        &self,
        repository: &Repository,
        commit: &str,
        name: &str,
        from: u64,
    ) -> Result<Response<Body>, RequestError> {
        let name = percent_encoded(name);
        let url = format!("{}/{}/resolve/{commit}/{name}", self.endpoint, repository.id);
        self.get(&url, (from > 0).then_some(from), repository)
    }

    fn get(
        &self,
        url: &str,
        from: Option<u64>,
        repository: &Repository,
    ) -> Result<Response<Body>, RequestError> {
        // A compressed download could not be resumed, and its length would not match the listing.
        let mut request = self.agent.get(url).header("Accept-Encoding", "identity");
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {}", token.secret));
        }
        if let Some(from) = from {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let response = request.call().map_err(|error| self.connection_error(&error))?;
        self.has_answered.set(true);
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::RANGE_NOT_SATISFIABLE if from.is_some() => Ok(response),
            status if is_transient(status) => Err(RequestError::Transient {
                why: format!("{} answered `{status}`", self.endpoint),
                wait: header(&response, "retry-after")
                    .and_then(|seconds| seconds.parse().ok())
                    .map(Duration::from_secs),
            }),
            _ => Err(RequestError::Permanent(self.status_error(&response, repository))),
        }
    }

    /// The error for a connection that failed or ended too soon. It is permanent if the hub has never answered.
    pub fn connection_error(&self, error: &ureq::Error) -> RequestError {
        let why = match error {
            ureq::Error::Io(error) => error.to_string(),
            ureq::Error::Timeout(_) => "timed out".into(),
            error => error.to_string(),
        };
        if self.has_answered.get() {
            return RequestError::Transient {
                why: format!("the connection to {} failed: {why}", self.endpoint),
                wait: None,
            };
        }
        RequestError::Permanent(anyhow!("cannot reach {}: {why}\n{SYNTH_HINT}", self.endpoint))
    }

    fn status_error(&self, response: &Response<Body>, repository: &Repository) -> anyhow::Error {
        let (status, hub, id) = (response.status(), self.endpoint, &repository.id);
        // For users without a token, the hub answers 401 for a missing repository, as for a private one.
        let code = header(response, "x-error-code").unwrap_or_default();
        match (code, status) {
            ("RevisionNotFound", _) => anyhow!(
                "`{id}` has no revision `{}`\nhint: its branches and tags are at {hub}/{id}/tree/main",
                repository.revision
            ),
            ("RepoNotFound", _) | ("", StatusCode::NOT_FOUND) => {
                let token_hint = if self.token.is_none() { "; a private model needs `HF_TOKEN`" } else { "" };
                anyhow!(
                    "no model `{repository}` at {hub}{token_hint}\nhint: names are case-sensitive: `OWNER/NAME`"
                )
            }
            ("EntryNotFound", _) => anyhow!("{hub} lists a file of `{repository}` that it does not have"),
            ("GatedRepo", _) | (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                let reason = match self.token {
                    None => "the hub requires a token".into(),
                    Some(token) => format!("the owner of the token in {} has no access", token.source),
                };
                anyhow!(
                    "{hub} refuses `{repository}` (`{status}`): {reason}\nhint: accept the licence at {hub}/{id}, then set HF_TOKEN to a token from {hub}/settings/tokens"
                )
            }
            _ => anyhow!("{hub} answered `{status}` to the request for `{repository}`"),
        }
    }
}

pub const SYNTH_HINT: &str = "hint: without a network, `orchestrate model synth NAME --out DIR` makes a model of a named shape with random weights";

pub fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

fn percent_encoded(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub struct Settings {
    /// The hub's URL without a slash at its end.
    pub endpoint: String,
    pub cache: Cache,
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE` is on (`1`, `ON`, `YES` or `TRUE`): downloads are forbidden.
    pub offline: bool,
    /// The longest wait for an answer of the hub, and for more data within an answer.
    pub read_timeout: Duration,
}

/// The user's token for the hub. It has no `Debug`, so that no message shows it.
pub struct Token {
    secret: String,
    /// The variable or file that holds the token, for errors.
    source: String,
}

impl Settings {
    pub fn from_environment() -> Result<Self> {
        let endpoint = variable_text("HF_ENDPOINT")?.unwrap_or_else(|| "https://huggingface.co".into());
        ensure!(
            endpoint.starts_with("http://") || endpoint.starts_with("https://"),
            "`HF_ENDPOINT`: expected `http://...` or `https://...`, found `{}`",
            printable(&endpoint)
        );
        let offline = variable_text("HF_HUB_OFFLINE")?;
        let read_timeout = match variable_text("HF_HUB_DOWNLOAD_TIMEOUT")? {
            None => DEFAULT_READ_TIMEOUT,
            Some(seconds) => {
                seconds.parse().ok().filter(|&s| s > 0).map(Duration::from_secs).with_context(|| {
                    format!("`HF_HUB_DOWNLOAD_TIMEOUT`: expected seconds, found `{}`", printable(&seconds))
                })?
            }
        };
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').into(),
            cache: Cache::from_environment()?,
            token: token()?,
            offline: offline
                .is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&&*value.to_uppercase())),
            read_timeout,
        })
    }
}

const DEFAULT_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The token in `$HF_TOKEN`, else in the file that `hf auth login` writes.
fn token() -> Result<Option<Token>> {
    if let Some(secret) = variable_text("HF_TOKEN")?.filter(|secret| !secret.trim().is_empty()) {
        return parse_token(&secret, "`HF_TOKEN`".into()).map(Some);
    }
    let path = match variable("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        None => home()?.join("token"),
    };
    match std::fs::read_to_string(&path) {
        Ok(secret) if !secret.trim().is_empty() => {
            parse_token(&secret, format!("`{}`", path.display())).map(Some)
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read the token in `{}`", path.display())),
    }
}

/// Parses a token. It becomes a header line, so it must not contain a line end.
fn parse_token(secret: &str, source: String) -> Result<Token> {
    let secret = secret.trim();
    ensure!(
        secret.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token in {source} has invalid characters"
    );
    Ok(Token { secret: secret.into(), source })
}

fn variable_text(name: &str) -> Result<Option<String>> {
    let Some(value) = variable(name) else { return Ok(None) };
    // The value stays hidden: it may be a token.
    value.into_string().map(Some).map_err(|_| anyhow::anyhow!("`{name}` is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_url_cannot_become_a_query_or_a_fragment() {
        assert_eq!(percent_encoded("a b/ü?x#y%.json"), "a%20b/%C3%BC%3Fx%23y%25.json");
    }

    #[test]
    fn retries_end_after_eight_failures_with_the_cause() {
        let (mut retries, mut waits) = (Retries::default(), Vec::new());
        let mut fail = || {
            let transient = RequestError::Transient { why: "overloaded".into(), wait: Some(Duration::ZERO) };
            retries.wait(transient, &mut |why, wait| waits.push((why.to_string(), wait)))
        };
        let last = (0..100).find_map(|_| fail().err()).unwrap();
        assert!(last.to_string().starts_with("overloaded, 8 times in a row"), "{last}");
        assert_eq!(waits.len(), 7);
    }

    #[test]
    fn an_invalid_token_is_refused_and_not_printed() {
        let error = parse_token("secret\r\nHost: elsewhere", "`HF_TOKEN`".into()).err().unwrap().to_string();
        assert!(error.contains("`HF_TOKEN`") && !error.contains("secret"), "{error}");
        assert_eq!(parse_token(" hf_x\n", "`HF_TOKEN`".into()).unwrap().secret, "hf_x");
    }
}
