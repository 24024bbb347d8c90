//! What the hub's programs are told by the environment, read in one place.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Cache;
use super::cache::{home, variable};
use crate::shown::shown;

pub struct Settings {
    /// Without a slash at its end.
    pub endpoint: String,
    pub cache: Cache,
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE` is set: nothing is to be fetched.
    pub offline: bool,
    /// How long the hub may say nothing in the middle of an answer.
    pub silence: Duration,
}

/// Who the user is to the hub. There is no way to print it.
pub struct Token {
    pub(super) secret: String,
    /// The variable or the file that it came from, as an error names it.
    pub(super) source: String,
}

impl Settings {
    pub fn from_environment() -> Result<Self> {
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| "https://huggingface.co".into());
        ensure!(
            endpoint.starts_with("http://") || endpoint.starts_with("https://"),
            "`HF_ENDPOINT`: expected `http://...` or `https://...`, found `{}`",
            shown(&endpoint)
        );
        let offline = text("HF_HUB_OFFLINE")?;
        let silence = match text("HF_HUB_DOWNLOAD_TIMEOUT")? {
            None => SILENCE,
            Some(seconds) => {
                seconds.parse().ok().filter(|&it| it > 0).map(Duration::from_secs).with_context(|| {
                    format!("`HF_HUB_DOWNLOAD_TIMEOUT`: expected seconds, found `{}`", shown(&seconds))
                })?
            }
        };
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').into(),
            cache: Cache::from_environment()?,
            token: token()?,
            offline: offline.is_some_and(|it| ["1", "ON", "YES", "TRUE"].contains(&&*it.to_uppercase())),
            silence,
        })
    }
}

const SILENCE: Duration = Duration::from_secs(30);

/// `$HF_TOKEN`, else the file that a log-in writes.
fn token() -> Result<Option<Token>> {
    if let Some(secret) = text("HF_TOKEN")?.filter(|it| !it.trim().is_empty()) {
        return sound(&secret, "`HF_TOKEN`".into()).map(Some);
    }
    let path = match variable("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        None => home()?.join("token"),
    };
    match std::fs::read_to_string(&path) {
        Ok(secret) if !secret.trim().is_empty() => sound(&secret, format!("`{}`", path.display())).map(Some),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read the token in `{}`", path.display())),
    }
}

/// It becomes a line of a request, so nothing in it may end that line.
fn sound(secret: &str, source: String) -> Result<Token> {
    let secret = secret.trim();
    ensure!(
        secret.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token in {source} has characters that no token has"
    );
    Ok(Token { secret: secret.into(), source })
}

fn text(name: &str) -> Result<Option<String>> {
    let Some(value) = variable(name) else { return Ok(None) };
    // The value itself is not shown: it may be a token.
    value.into_string().map(Some).map_err(|_| anyhow::anyhow!("`{name}` is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_would_break_a_request_is_refused_without_being_shown() {
        let refused = sound("secret\r\nHost: elsewhere", "`HF_TOKEN`".into()).err().unwrap().to_string();
        assert!(refused.contains("`HF_TOKEN`") && !refused.contains("secret"), "{refused}");
        assert_eq!(sound(" hf_x\n", "`HF_TOKEN`".into()).unwrap().secret, "hf_x");
    }
}
