//! The settings of the hub's programs from the environment.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Cache;
use super::cache::{home, variable};
use crate::text::shown;

pub struct Settings {
    /// The URL without a slash at its end.
    pub endpoint: String,
    pub cache: Cache,
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE` is set: downloads are forbidden.
    pub offline: bool,
    /// The longest silence of the hub within an answer.
    pub silence: Duration,
}

/// The user's token for the hub. It cannot be printed.
pub struct Token {
    pub(super) secret: String,
    /// The variable or file of the token, for errors.
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

/// Checks a token: it becomes a header line, so it must not contain a line end.
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
    // The value stays hidden: it may be a token.
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
