//! Tones: the meaning of a piece of text, which a format may show as a colour. A tone is a pair of invisible characters around
//! the text. They have no width, so code that fits text into columns needs no knowledge of tones. `text::line` drops these
//! characters from all text of engines and users.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// The best of its column, or a difference for the better.
    Good,
    /// Wrong, failed, or a difference for the worse.
    Bad,
    /// Something that the reader must know before using the results.
    Warning,
    /// Less important, or not to be relied on.
    Dim,
    Heading,
}

/// The tones with the character that begins each.
const STARTS: [(Tone, char); 5] = [
    (Tone::Good, '\u{2061}'),
    (Tone::Bad, '\u{2062}'),
    (Tone::Warning, '\u{2063}'),
    (Tone::Dim, '\u{2064}'),
    (Tone::Heading, '\u{2066}'),
];
const END: char = '\u{2060}';

impl Tone {
    /// The text in this tone. A text that already has a tone keeps it.
    pub fn of(self, text: &str) -> String {
        let start = STARTS.iter().find(|(tone, _)| *tone == self).map_or(END, |(_, start)| *start);
        if text.is_empty() || text.contains(END) { text.into() } else { format!("{start}{text}{END}") }
    }

    /// The class of this tone in a picture.
    pub fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Warning => "warning",
            Self::Dim => "dim",
            Self::Heading => "heading",
        }
    }

    /// The parameters of the control sequence (SGR) that begins this tone on a terminal.
    fn terminal_code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "31",
            Self::Warning => "33",
            Self::Dim => "2",
            Self::Heading => "1",
        }
    }
}

/// The pieces of one line, each with its tone. A tone ends with the line.
pub fn pieces(line: &str) -> Vec<(Option<Tone>, String)> {
    let mut pieces: Vec<(Option<Tone>, String)> = vec![(None, String::new())];
    for char in line.chars() {
        if char == END {
            pieces.push((None, String::new()));
        } else if let Some((tone, _)) = STARTS.iter().find(|(_, start)| *start == char) {
            pieces.push((Some(*tone), String::new()));
        } else if let Some((_, text)) = pieces.last_mut() {
            text.push(char);
        }
    }
    pieces.retain(|(_, text)| !text.is_empty());
    pieces
}

/// The text without its tones.
pub fn plain(text: &str) -> String {
    text.chars().filter(|char| *char != END && STARTS.iter().all(|(_, start)| start != char)).collect()
}

/// The text with its tones as colours of a terminal.
pub fn coloured(text: &str) -> String {
    let line = |line: &str| -> String {
        let pieces = pieces(line).into_iter();
        let write = |(tone, text): (Option<Tone>, String)| match tone {
            Some(tone) => format!("\u{1b}[{}m{text}\u{1b}[0m", tone.terminal_code()),
            None => text,
        };
        pieces.map(write).collect()
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The lines of a text that was broken into lines: each begins again with the tone in which the line before it ended.
pub fn continued(lines: Vec<String>) -> Vec<String> {
    let mut open: Option<char> = None;
    let with_tone = |line: String| {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        let toned: String = open.into_iter().chain(text.chars()).collect();
        for char in text.chars() {
            if char == END {
                open = None;
            } else if STARTS.iter().any(|(_, start)| *start == char) {
                open = Some(char);
            }
        }
        format!("{indent}{toned}")
    };
    lines.into_iter().map(with_tone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{line, width, wrap};

    #[test]
    fn a_tone_has_no_width_and_cannot_come_from_an_engine() {
        for (tone, _) in STARTS {
            let toned = tone.of("12.3x");
            assert_eq!((width(&toned), plain(&toned).as_str()), (5, "12.3x"), "{tone:?}");
            assert_eq!(line(&toned), "12.3x", "{tone:?}");
        }
    }

    #[test]
    fn colours_begin_and_end_in_the_same_line() {
        let text = format!("a {} b\n{}", Tone::Bad.of("wrong"), Tone::Dim.of("dim"));
        assert_eq!(coloured(&text), "a \u{1b}[31mwrong\u{1b}[0m b\n\u{1b}[2mdim\u{1b}[0m");
        assert_eq!(Tone::Good.of(&Tone::Dim.of("x")), Tone::Dim.of("x"));
        assert_eq!(Tone::Good.of(""), "");
    }

    #[test]
    fn a_broken_line_keeps_its_tone() {
        let lines = continued(wrap(&format!("! {} end", Tone::Warning.of("one two three")), 11, "  "));
        let toned: Vec<Vec<(Option<Tone>, String)>> = lines.iter().map(|line| pieces(line)).collect();
        let warning = |text: &str| (Some(Tone::Warning), text.to_string());
        let plain = |text: &str| (None, text.to_string());
        assert_eq!(toned[0], [plain("! "), warning("one two")]);
        assert_eq!(toned[1], [plain("  "), warning("three"), plain(" end")]);
    }
}
