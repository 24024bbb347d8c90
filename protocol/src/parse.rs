//! Parses lines to requests and messages. An error names the column or the field where it can, and has the `id` of the line if
//! the id could be read. The error of a request is the engine's answer to it.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Failed, FailureKind, Generate, Id, Load, Message, Request};

/// The largest `iterations` and `warmup`. They have a limit because the answer holds all iterations.
const MAX_ITERATIONS: u32 = 1_000_000;

/// Parses a line of an engine's stdin.
pub fn parse_request(line: &[u8]) -> Result<Request, Failed> {
    let envelope = Envelope::read(line)?;
    match envelope.r#type.as_deref().unwrap_or("generate") {
        "hello" => envelope.body(line).map(Request::Hello),
        "load" => {
            let load = envelope.body(line)?;
            check_load(&load).map_err(|message| envelope.failure(message))?;
            Ok(Request::Load(load))
        }
        "generate" => {
            let generate = envelope.body(line)?;
            check_generate(&generate).map_err(|message| envelope.failure(message))?;
            Ok(Request::Generate(generate))
        }
        "score" => {
            let score: crate::Score = envelope.body(line)?;
            if let Some(index) = score.sequences.iter().position(|ids| ids.len() < 2) {
                return Err(envelope.failure(format!("`sequences[{index}]`: needs at least two ids")));
            }
            Ok(Request::Score(score))
        }
        "facts" => Ok(Request::Facts {}),
        "cancel" => envelope.body(line).map(Request::Cancel),
        "shutdown" => Ok(Request::Shutdown {}),
        other => Err(envelope.failure(format!("unknown request type `{}`", shorten(other)))),
    }
}

/// Parses a line of an engine's stdout.
pub fn parse_message(line: &[u8]) -> Result<Message, Failed> {
    let envelope = Envelope::read(line)?;
    match envelope.r#type.as_deref() {
        Some("hello") => envelope.body(line).map(Message::Hello),
        Some("progress") => envelope.body(line).map(Message::Progress),
        Some("loaded") => envelope.body(line).map(Message::Loaded),
        Some("token") => envelope.body(line).map(Message::Token),
        Some("generated") => envelope.body(line).map(Message::Generated),
        Some("scored") => envelope.body(line).map(Message::Scored),
        Some("facts") => envelope.body(line).map(Message::Facts),
        Some("bye") => Ok(Message::Bye {}),
        Some("failed") => envelope.body(line).map(Message::Failed),
        Some(other) => Err(envelope.failure(format!("unknown message type `{}`", shorten(other)))),
        None => Err(envelope.failure("no `type`".into())),
    }
}

/// The fields that identify a line.
#[derive(Deserialize)]
struct Envelope {
    r#type: Option<String>,
    id: Option<Id>,
}

impl Envelope {
    fn read(line: &[u8]) -> Result<Self, Failed> {
        let unknown = Self { r#type: None, id: None };
        if line.iter().all(u8::is_ascii_whitespace) {
            return Err(unknown.failure("empty line: expected one JSON object".into()));
        }
        if let Err(error) = std::str::from_utf8(line) {
            return Err(unknown.failure(format!("byte {}: not UTF-8", error.valid_up_to() + 1)));
        }
        let start = line.iter().position(|byte| !b" \t\n\r".contains(byte)).unwrap_or(0);
        if line[start] != b'{' {
            let found = String::from_utf8_lossy(&line[start..]).chars().next().unwrap_or(' ');
            let found = if found.is_control() { found.escape_unicode().to_string() } else { found.into() };
            return Err(unknown.failure(format!("column {}: expected `{{`, found `{found}`", start + 1)));
        }
        serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(line))
            .map_err(|error| unknown.failure(describe(&error)))
    }

    fn body<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, Failed> {
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let body = serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|error| self.failure(describe(&error)))?;
        deserializer.end().map_err(|error| {
            self.failure(format!("column {}: more text after the JSON object", error.column()))
        })?;
        Ok(body)
    }

    fn failure(&self, message: String) -> Failed {
        Failed { id: self.id.clone(), ..Failed::new(FailureKind::BadRequest, message) }
    }
}

/// The field, the column and serde's error, without serde's "at line 1 column N".
fn describe(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, error) = (error.path().to_string(), error.inner());
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    match path.as_str() {
        "." | "?" => format!("column {}: {}", error.column(), shorten(text)),
        field => format!("column {}: `{field}`: {}", error.column(), shorten(text)),
    }
}

const MAX_QUOTED_CHARACTERS: usize = 120;

/// Limits the text of a line that an error message quotes.
fn shorten(text: &str) -> String {
    let shortened: String = text.chars().take(MAX_QUOTED_CHARACTERS).collect();
    if shortened.len() < text.len() { format!("{shortened}...") } else { shortened }
}

fn check_load(load: &Load) -> Result<(), String> {
    if load.model.is_empty() {
        return Err("`model`: empty".into());
    }
    let counts = [("threads", load.threads), ("context_tokens", load.context_tokens)];
    match counts.into_iter().find(|(_, count)| *count == Some(0)) {
        Some((field, _)) => Err(format!("`{field}`: expected at least 1, found 0")),
        None => Ok(()),
    }
}

fn check_generate(generate: &Generate) -> Result<(), String> {
    let prompts = [
        generate.prompt.is_some(),
        generate.prompt_ids.is_some(),
        generate.prompts.is_some(),
        generate.prompts_ids.is_some(),
    ];
    match prompts.iter().filter(|&&is_given| is_given).count() {
        0 => {
            return Err("no prompt: one of `prompt`, `prompt_ids`, `prompts`, `prompts_ids` is needed".into());
        }
        1 => {}
        _ => return Err("more than one of `prompt`, `prompt_ids`, `prompts`, `prompts_ids`".into()),
    }
    if generate.prompts.as_ref().is_some_and(Vec::is_empty) {
        return Err("`prompts`: empty batch".into());
    }
    if generate.prompts_ids.as_ref().is_some_and(Vec::is_empty) {
        return Err("`prompts_ids`: empty batch".into());
    }
    if generate.prompt_ids.as_ref().is_some_and(Vec::is_empty) {
        return Err("`prompt_ids`: no ids".into());
    }
    if let Some(index) = generate.prompts_ids.iter().flatten().position(Vec::is_empty) {
        return Err(format!("`prompts_ids[{index}]`: no ids"));
    }
    if generate.max_new_tokens == 0 {
        return Err("`max_new_tokens`: expected at least 1, found 0".into());
    }
    if generate.iterations == 0 || generate.iterations > MAX_ITERATIONS {
        return Err(format!("`iterations`: expected 1 to {MAX_ITERATIONS}, found {}", generate.iterations));
    }
    if generate.warmup > MAX_ITERATIONS {
        return Err(format!("`warmup`: expected 0 to {MAX_ITERATIONS}, found {}", generate.warmup));
    }
    let Some(sampling) = generate.sampling else { return Ok(()) };
    if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
        return Err(format!("`sampling.temperature`: expected 0 or more, found {}", sampling.temperature));
    }
    match sampling.top_p {
        Some(top_p) if !(top_p > 0.0 && top_p <= 1.0) => {
            Err(format!("`sampling.top_p`: expected more than 0 and at most 1, found {top_p}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        parse_request(line.as_bytes()).unwrap_err().message
    }

    #[test]
    fn a_line_without_a_type_is_a_generate_with_the_documented_defaults() {
        let Ok(Request::Generate(generate)) = parse_request(br#"{"prompt":"Hello","iterations":50}"#) else {
            panic!("expected a `generate`")
        };
        assert_eq!((generate.iterations, generate.max_new_tokens, generate.warmup), (50, 32, 0));
        assert!(
            generate.use_cache && !generate.ignore_eos && !generate.stream && generate.sampling.is_none()
        );
    }

    #[test]
    fn an_invalid_line_is_refused_with_the_reason() {
        assert_eq!(refusal(r#"<"prompt":"Hello","iterations":50}"#), "column 1: expected `{`, found `<`");
        assert_eq!(refusal(""), "empty line: expected one JSON object");
        assert_eq!(refusal("   "), "empty line: expected one JSON object");
        assert_eq!(refusal(r#"{"prompt":"Hello""#), "column 17: EOF while parsing an object");
        assert_eq!(refusal(r#"{"prompt":"Hello"} {}"#), "column 20: more text after the JSON object");
        assert_eq!(parse_request(b"{\"prompt\":\"\xff\"}").unwrap_err().message, "byte 12: not UTF-8");
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_field() {
        let negative = refusal(r#"{"prompt":"a","iterations":-1}"#);
        assert_eq!(negative, "column 29: `iterations`: invalid value: integer `-1`, expected u32");
        assert!(
            refusal(r#"{"prompt":"a","iterations":1e400}"#).contains("`iterations`: number out of range")
        );
        assert!(refusal(r#"{"prompt":"a","max_new_tokens":99999999999}"#).contains("`max_new_tokens`"));
        assert!(refusal(r#"{"prompt":"a","iterations":4000000000}"#).contains("expected 1 to 1000000"));
        assert!(refusal(r#"{"prompt_ids":[1,-5]}"#).contains("`prompt_ids[1]`"));
        assert!(
            refusal(r#"{"prompt":"a","sampling":{"temperature":-1}}"#).contains("`sampling.temperature`")
        );
        assert!(refusal(r#"{"prompt":"a","sampling":{"top_p":2}}"#).contains("`sampling.top_p`"));
    }

    #[test]
    fn a_failure_has_the_id_of_its_request() {
        let failed = parse_request(br#"{"id":7,"prompt":"a","iterations":0}"#).unwrap_err();
        assert_eq!(failed.id, Some(Id::Number(7)));
        let failed = parse_request(br#"{"type":"dance","id":"x"}"#).unwrap_err();
        assert_eq!(
            (failed.id, failed.message.as_str()),
            (Some(Id::Text("x".into())), "unknown request type `dance`")
        );
    }

    #[test]
    fn unknown_fields_are_ignored_by_both_sides() {
        assert!(parse_request(br#"{"prompt":"a","mood":"good"}"#).is_ok());
        assert_eq!(parse_message(br#"{"type":"bye","mood":"good"}"#), Ok(Message::Bye {}));
    }

    #[test]
    fn a_generate_needs_exactly_one_kind_of_prompt() {
        assert!(refusal("{}").starts_with("no prompt"));
        assert!(refusal(r#"{"prompt":"a","prompt_ids":[1]}"#).starts_with("more than one"));
        assert_eq!(refusal(r#"{"prompts":[]}"#), "`prompts`: empty batch");
        assert_eq!(refusal(r#"{"prompts_ids":[]}"#), "`prompts_ids`: empty batch");
        assert_eq!(refusal(r#"{"prompt_ids":[]}"#), "`prompt_ids`: no ids");
        assert_eq!(refusal(r#"{"prompts_ids":[[3],[]]}"#), "`prompts_ids[1]`: no ids");
    }

    #[test]
    fn deep_nesting_is_skipped_in_an_unknown_field_and_refused_in_a_known_one() {
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        assert!(parse_request(format!(r#"{{"prompt":"a","x":{deep}}}"#).as_bytes()).is_ok());
        let refusal = refusal(&format!(r#"{{"type":"load","model":"m","options":{{"x":{deep}}}}}"#));
        assert!(refusal.contains("recursion limit"), "{refusal}");
    }
}
