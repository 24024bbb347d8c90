//! Checks of invalid lines: each gets one `failed` of kind `bad_request`, and the engine continues.

use protocol::FailureKind::{BadRequest, Unsupported};

use super::result::Not;
use super::subject::{Check, Subject};

const ABOUT: &str = "the engine refuses the line and answers the next one";

pub const CHECKS: &[Check] = &[
    Check { name: "no-json", property: ABOUT, run: |it| bad(it, br#"<"prompt":"Hello","iterations":50}"#) },
    Check { name: "half-json", property: ABOUT, run: |it| bad(it, br#"{"prompt":"Hello","iterations""#) },
    Check { name: "empty-line", property: ABOUT, run: |it| bad(it, b"") },
    Check { name: "no-object", property: ABOUT, run: |it| bad(it, br#"["prompt","Hello"]"#) },
    Check { name: "noise", property: ABOUT, run: |it| bad(it, &noise()) },
    Check { name: "endless-line", property: ABOUT, run: |it| bad(it, &[b'a'; 1024].repeat(20 * 1024)) },
    Check { name: "no-prompt", property: ABOUT, run: |it| bad(it, br#"{"max_new_tokens":4}"#) },
    Check { name: "prompt-is-number", property: ABOUT, run: |it| bad(it, br#"{"prompt":5}"#) },
    Check { name: "two-prompts", property: ABOUT, run: |it| bad(it, br#"{"prompt":"a","prompt_ids":[3]}"#) },
    Check { name: "empty-batch", property: ABOUT, run: |it| bad(it, br#"{"prompts":[]}"#) },
    Check {
        name: "negative-count",
        property: ABOUT,
        run: |it| bad(it, br#"{"prompt":"Hello","iterations":-1}"#),
    },
    Check { name: "negative-id", property: ABOUT, run: |it| bad(it, br#"{"prompt_ids":[3,-5]}"#) },
    Check {
        name: "zero-tokens",
        property: ABOUT,
        run: |it| bad(it, br#"{"prompt":"Hello","max_new_tokens":0}"#),
    },
    Check {
        name: "huge-count",
        property: ABOUT,
        run: |it| bad(it, br#"{"prompt":"Hello","iterations":1e400}"#),
    },
    Check { name: "huge-length", property: ABOUT, run: refuses_a_huge_length },
    Check { name: "unknown-type", property: ABOUT, run: refuses_an_unknown_type },
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
