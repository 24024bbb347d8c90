//! One JSON object per line. The framer cuts bytes into complete lines, and never holds more than `max_bytes` of a line.

use serde::Serialize;

/// The longest line, without its newline. A longer one is skipped and reported once.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A line without its newline (and without a carriage return before it).
    Line(Vec<u8>),
    /// A line longer than `max_bytes`; its bytes are dropped.
    TooLong { bytes: usize },
}

#[derive(Debug)]
pub struct Framer {
    line: Vec<u8>,
    skipped_bytes: usize,
    max_bytes: usize,
}

impl Default for Framer {
    fn default() -> Self {
        Self::with_max_bytes(MAX_LINE_BYTES)
    }
}

impl Framer {
    pub fn with_max_bytes(max_bytes: usize) -> Self {
        Self { line: Vec::new(), skipped_bytes: 0, max_bytes }
    }

    /// Takes the next bytes and calls `frame` for every completed line.
    pub fn push(&mut self, mut bytes: &[u8], mut frame: impl FnMut(Frame)) {
        while let Some(newline) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..newline]);
            frame(self.take());
            bytes = &bytes[newline + 1..];
        }
        self.extend(bytes);
    }

    /// Whether the line that is being read is longer than `max_bytes` already. Its `TooLong` comes after its newline, if ever.
    pub fn is_too_long(&self) -> bool {
        self.skipped_bytes > 0
    }

    /// Ends the stream: bytes without a newline are the last line.
    pub fn finish(&mut self) -> Option<Frame> {
        (!self.line.is_empty() || self.skipped_bytes > 0).then(|| self.take())
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skipped_bytes > 0 || self.line.len() + bytes.len() > self.max_bytes {
            self.skipped_bytes += self.line.len() + bytes.len();
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn take(&mut self) -> Frame {
        if self.skipped_bytes > 0 {
            return Frame::TooLong { bytes: std::mem::take(&mut self.skipped_bytes) };
        }
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Frame::Line(line)
    }
}

/// One request or message as a line with its newline. serde_json escapes newlines inside strings, so only the last byte is
/// a newline.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    // Serialisation cannot fail: every type of this crate has string keys and no failing serializer.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(framer: &mut Framer, pieces: &[&[u8]]) -> Vec<Frame> {
        let mut frames = Vec::new();
        for piece in pieces {
            framer.push(piece, |frame| frames.push(frame));
        }
        frames.extend(framer.finish());
        frames
    }

    fn line(text: &str) -> Frame {
        Frame::Line(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_do_not_depend_on_the_pieces_of_the_stream() {
        let text = "{\"a\":1}\n\n{\"b\":\"ü\"}\r\nlast".as_bytes();
        let lines = frames(&mut Framer::default(), &[text]);
        assert_eq!(lines, [line("{\"a\":1}"), line(""), line("{\"b\":\"ü\"}"), line("last")]);
        for cut in 0..=text.len() {
            assert_eq!(frames(&mut Framer::default(), &[&text[..cut], &text[cut..]]), lines, "cut at {cut}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(frames(&mut Framer::default(), &single), lines);
    }

    #[test]
    fn a_line_of_maximum_length_is_accepted_and_a_longer_one_is_skipped() {
        let mut framer = Framer::with_max_bytes(4);
        framer.push(b"abcd", |frame| panic!("{frame:?}"));
        assert!(!framer.is_too_long());
        framer.push(b"e", |frame| panic!("{frame:?}"));
        assert!(framer.is_too_long());
        assert_eq!(frames(&mut framer, &[b"\n"]), [Frame::TooLong { bytes: 5 }]);
        assert!(!framer.is_too_long());
        let found = frames(&mut framer, &[b"abcd\nabcde\nxy\n"]);
        assert_eq!(found, [line("abcd"), Frame::TooLong { bytes: 5 }, line("xy")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_dropped_and_reported_once() {
        let mut framer = Framer::with_max_bytes(1024);
        for _ in 0..1000 {
            framer.push(&[b'a'; 1000], |frame| panic!("{frame:?}"));
            assert!(framer.line.capacity() <= 2 * 1024);
        }
        assert_eq!(frames(&mut framer, &[b"\n{}\n"]), [Frame::TooLong { bytes: 1_000_000 }, line("{}")]);
    }

    #[test]
    fn an_encoded_value_is_one_line_for_any_text() {
        let encoded = encode(&serde_json::json!({"prompt": "a\nb\r\u{2028}"}));
        assert_eq!(encoded.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(encoded.last(), Some(&b'\n'));
    }
}
