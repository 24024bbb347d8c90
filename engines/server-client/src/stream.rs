//! Reads the events of an answer as they arrive: lines `data: {...}` until `data: [DONE]`, or until the end of the answer.

use std::io::{BufRead, ErrorKind};
use std::time::Instant;

use serde_json::Value;

/// The longest event.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// The next step of the reader of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// More events must follow.
    More,
    /// The answer may end here.
    MayEnd,
    /// The rest of the answer is not read.
    Stop,
}

/// Calls `take` with each event and the time of its arrival. Returns an error in words if the answer breaks off, or is no stream
/// of events.
pub fn read_events(
    mut lines: impl BufRead,
    mut take: impl FnMut(Value, Instant) -> Next,
) -> Result<(), String> {
    let (mut line, mut next, mut json) = (Vec::new(), Next::More, None);
    loop {
        line.clear();
        let is_whole = read_line(&mut lines, &mut line)?;
        let at = Instant::now();
        // A server that ignores `stream` answers with one JSON.
        if line.starts_with(b"{") {
            json.get_or_insert_with(|| start_of(String::from_utf8_lossy(&line).trim_end()));
        }
        if !is_whole {
            return match (next, json) {
                (Next::MayEnd, _) => Ok(()),
                (_, Some(json)) => Err(format!("the server sent no stream of events: {json}")),
                _ => Err("the server closed the connection before the end of the answer".into()),
            };
        }
        let text =
            std::str::from_utf8(&line).map_err(|_| "the server sent a line that is no UTF-8".to_string())?;
        // Empty lines separate events. Lines that begin with a colon are comments, and other fields have no data.
        let Some(data) = text.trim_end().strip_prefix("data:") else { continue };
        let data = data.trim_start();
        if data == "[DONE]" {
            return Ok(());
        }
        let event: Value = serde_json::from_str(data).map_err(|error| {
            format!("the server sent an event that is no JSON ({error}): {}", start_of(data))
        })?;
        if let Some(error) = error_of(&event) {
            return Err(format!("the server reports an error: {error}"));
        }
        next = take(event, at);
        if next == Next::Stop {
            return Ok(());
        }
    }
}

/// Reads a line with its end. Returns false at the end of the answer, which may be within a line.
fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, String> {
    loop {
        let available = match lines.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("the connection to the server broke: {error}")),
        };
        let end = available.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        let length = end.unwrap_or(available.len());
        line.extend_from_slice(&available[..length]);
        let is_end_of_answer = available.is_empty();
        lines.consume(length);
        if line.len() > MAX_EVENT_BYTES {
            return Err(format!("the server sent a line of more than {MAX_EVENT_BYTES} bytes"));
        }
        if end.is_some() || is_end_of_answer {
            return Ok(end.is_some());
        }
    }
}

/// The message of an error in an event or in the body of an answer.
pub fn error_of(event: &Value) -> Option<String> {
    let error = event.get("error").filter(|error| !error.is_null())?;
    let message = error["message"].as_str().or_else(|| error.as_str());
    Some(message.map_or_else(|| start_of(&error.to_string()), start_of))
}

/// The start of a text of unknown length, for an error.
pub fn start_of(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(answer: &[u8]) -> (Vec<Value>, Result<(), String>) {
        let mut events = Vec::new();
        let result = read_events(answer, |event, _| {
            let is_last = event["last"] == true;
            events.push(event);
            if is_last { Next::MayEnd } else { Next::More }
        });
        (events, result)
    }

    #[test]
    fn events_are_read_until_done() {
        let (read, result) =
            events(b": ping\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:{\"a\":2}\n\ndata: [DONE]\n\n");
        assert_eq!(read, [serde_json::json!({"a": 1}), serde_json::json!({"a": 2})]);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn an_answer_may_end_after_its_last_event_without_done() {
        let (read, result) = events(b"data: {\"last\":true}\n\n");
        assert_eq!((read.len(), result), (1, Ok(())));
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error() {
        let (read, result) = events(b"data: {\"a\":1}\n\ndata: {\"a\"");
        assert_eq!(read.len(), 1);
        assert_eq!(result.unwrap_err(), "the server closed the connection before the end of the answer");
    }

    #[test]
    fn an_answer_without_a_stream_is_an_error_with_its_start() {
        let (read, result) = events(b"{\"choices\":[{\"text\":\"a\"}]}");
        assert_eq!(read.len(), 0);
        assert_eq!(
            result.unwrap_err(),
            "the server sent no stream of events: {\"choices\":[{\"text\":\"a\"}]}"
        );
    }

    #[test]
    fn half_a_character_is_an_error() {
        let (_, result) = events(b"data: {\"text\":\"\xc3\"}\n\n");
        assert_eq!(result.unwrap_err(), "the server sent a line that is no UTF-8");
    }

    #[test]
    fn an_error_inside_a_stream_is_an_error_with_its_message() {
        let (_, result) = events(b"data: {\"error\":{\"message\":\"out of slots\"}}\n\n");
        assert_eq!(result.unwrap_err(), "the server reports an error: out of slots");
    }
}
