//! Checks of invalid lines: each gets one `failed` of kind `bad_request`, and the engine continues.

use protocol::FailureKind::{BadRequest, Unsupported};

use super::entry::Check;
use super::result::Not;
use super::subject::Subject;

const ABOUT: &str = "is refused, and the next request is answered";

pub const CHECKS: &[Check] = &[
    Check { name: "no-json", proves: ABOUT, run: |it| bad(it, br#"<"prompt":"Hello","iterations":50}"#) },
    Check { name: "half-json", proves: ABOUT, run: |it| bad(it, br#"{"prompt":"Hello","iterations""#) },
    Check { name: "empty-line", proves: ABOUT, run: |it| bad(it, b"") },
    Check { name: "no-object", proves: ABOUT, run: |it| bad(it, br#"["prompt","Hello"]"#) },
    Check { name: "noise", proves: ABOUT, run: |it| bad(it, &noise()) },
    Check { name: "endless-line", proves: ABOUT, run: |it| bad(it, &[b'a'; 1024].repeat(20 * 1024)) },
    Check { name: "no-prompt", proves: ABOUT, run: |it| bad(it, br#"{"max_new_tokens":4}"#) },
    Check { name: "prompt-is-number", proves: ABOUT, run: |it| bad(it, br#"{"prompt":5}"#) },
    Check { name: "two-prompts", proves: ABOUT, run: |it| bad(it, br#"{"prompt":"a","prompt_ids":[3]}"#) },
    Check { name: "empty-batch", proves: ABOUT, run: |it| bad(it, br#"{"prompts":[]}"#) },
    Check {
        name: "negative-count",
        proves: ABOUT,
        run: |it| bad(it, br#"{"prompt":"Hello","iterations":-1}"#),
    },
    Check { name: "negative-id", proves: ABOUT, run: |it| bad(it, br#"{"prompt_ids":[3,-5]}"#) },
    Check {
        name: "zero-tokens",
        proves: ABOUT,
        run: |it| bad(it, br#"{"prompt":"Hello","max_new_tokens":0}"#),
    },
    Check {
        name: "huge-count",
        proves: ABOUT,
        run: |it| bad(it, br#"{"prompt":"Hello","iterations":1e400}"#),
    },
    Check { name: "huge-length", proves: ABOUT, run: refuses_a_huge_length },
    Check { name: "unknown-type", proves: ABOUT, run: refuses_an_unknown_type },
];

fn bad(subject: &mut Subject, line: &[u8]) -> Result<(), Not> {
    let line = [line, b"\n"].concat();
    let refused = subject.refused(&line, &[BadRequest]);
    subject.unless_minimal(refused)
}

/// Not for an engine without hello: if it accepts the number, it is busy for hours.
fn refuses_a_huge_length(subject: &mut Subject) -> Result<(), Not> {
    subject.hello()?;
    bad(subject, br#"{"prompt":"Hello","max_new_tokens":99999999999}"#)
}

fn refuses_an_unknown_type(subject: &mut Subject) -> Result<(), Not> {
    let refused = subject.refused(b"{\"type\":\"dance\"}\n", &[BadRequest, Unsupported]);
    subject.unless_minimal(refused)
}

/// The same random bytes each time, without the byte that ends a line.
fn noise() -> Vec<u8> {
    let byte = |place: u32| (place.wrapping_mul(2_654_435_761) >> 24) as u8;
    (1..2000).map(byte).filter(|&byte| byte != b'\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_form_one_line_that_is_not_utf8() {
        let noise = noise();
        assert!(noise.len() > 1900 && !noise.contains(&b'\n'));
        assert!(noise.contains(&0) && noise.contains(&0xff) && std::str::from_utf8(&noise).is_err());
    }
}
