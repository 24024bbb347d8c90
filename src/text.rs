//! Text that engines and users control, made safe to print and fitted into a width; numbers as text.

use std::time::Duration;

use tabled::grid::util::string::get_line_width;

/// Makes a text one line that is safe to print. Line breaks, tabs and repeated spaces become one space. Escape sequences,
/// control characters, and characters that reorder or hide text are dropped.
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' => skip_escape(&mut chars),
            '\u{9b}' => skip_control_sequence(&mut chars),
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => out.push(' '),
            _ if char.is_control() || is_invisible(char) => {}
            _ => out.push(char),
        }
    }
    out.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Skips the rest of an escape sequence: a control sequence (`[`), a string up to its terminator (`]`, `P`, `X`, `^`, `_`), or
/// one or two characters.
fn skip_escape(chars: &mut Chars) {
    match chars.next() {
        Some('[') => skip_control_sequence(chars),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(char) = chars.next() {
                match char {
                    '\u{7}' | '\u{9c}' => break,
                    '\u{1b}' => {
                        chars.next_if_eq(&'\\');
                        break;
                    }
                    _ => {}
                }
            }
        }
        // An intermediate character, then the final one: `ESC ( B`.
        Some(' '..='/') => drop(chars.next()),
        _ => {}
    }
}

/// Skips parameters and intermediate characters, then one final character.
fn skip_control_sequence(chars: &mut Chars) {
    while chars.next_if(|char| (' '..='?').contains(char)).is_some() {}
    chars.next_if(|char| ('@'..='~').contains(char));
}

fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{ad}')
}

/// A time for a person, in one style everywhere: `42 s`, `2 min 42 s`, `1 h 20 min`. Options take another form (`--budget 3m`).
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let two = |more: u64, of: &str, less: u64, unit: &str| match less {
        0 => format!("{more} {of}"),
        _ => format!("{more} {of} {less} {unit}"),
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        _ => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
    }
}

/// An estimate of a time: `less than 1 s`, `42 s`, `2 min 30 s`, `12 min`. It is rounded, to ten seconds from one minute on and to a
/// minute from ten minutes on.
pub fn estimated_time(estimate: Duration) -> String {
    let seconds = estimate.as_secs_f64();
    let step = match seconds {
        ..0.5 => return "less than 1 s".into(),
        ..60.0 => 1.0,
        ..600.0 => 10.0,
        _ => 60.0,
    };
    time(Duration::from_secs_f64((seconds / step).round() * step))
}

/// The number of terminal columns of a text.
pub fn width(text: &str) -> usize {
    get_line_width(text)
}

/// Cuts a text at its end to at most `limit` columns.
pub fn shorten(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_string();
    }
    let kept = take_fitting(text.chars(), limit.saturating_sub(1));
    format!("{}…", kept.into_iter().collect::<String>().trim_end())
}

/// Leaves out clauses at the end of a text, to at most `limit` columns. A clause ends with `; ` or `. ` outside backticks. If the
/// first clause alone is too long, the text is cut after a word, and `rest` names the command that shows it all; this command does
/// not count. So no text ends within a sentence without a word about the rest.
pub fn shorten_at_clause(text: &str, limit: usize, rest: &str) -> String {
    if width(text) <= limit {
        return text.to_string();
    }
    let ends = text.match_indices("; ").chain(text.match_indices(". ").map(|(at, end)| (at + 1, end)));
    let is_outside = |at: &usize| text[..*at].matches('`').count().is_multiple_of(2);
    let fitting = ends.map(|(at, _)| at).filter(is_outside).filter(|at| width(&text[..*at]) <= limit);
    if let Some(end) = fitting.max() {
        return text[..end].to_string();
    }
    let end = format!(" ... (all: `{rest}`)");
    if width(text) <= limit + width(&end) {
        return text.to_string();
    }
    let kept: String = take_fitting(text.chars(), limit).into_iter().collect();
    let words = kept.rfind(' ').map_or(kept.as_str(), |space| &kept[..space]);
    // A text between backticks, such as a command, is kept or left out as a whole.
    let words = match words.rfind('`') {
        Some(backtick) if words.matches('`').count() % 2 == 1 => &words[..backtick],
        _ => words,
    };
    format!("{}{end}", words.trim_end().trim_end_matches([',', ';', ':']))
}

/// Cuts a text at its beginning to at most `limit` columns, because the end of a path is more informative.
pub fn shorten_start(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_string();
    }
    let kept = take_fitting(text.chars().rev(), limit.saturating_sub(1));
    format!("…{}", kept.into_iter().rev().collect::<String>().trim_start())
}

fn take_fitting(chars: impl Iterator<Item = char>, limit: usize) -> Vec<char> {
    let mut used = 0;
    let fits = |char: &char| {
        used += width(char.encode_utf8(&mut [0; 4]));
        used <= limit
    };
    chars.take_while(fits).collect()
}

/// Breaks a text into lines of at most `limit` columns; each line after the first begins with `indent`. Paths and text between
/// backticks stay whole, so that they can be copied. Intervals stay whole, so that their ends are read together. Only a long
/// command of this program is broken: it continues in the next line after a backslash. Other long words are split. The crate
/// `textwrap` would break inside backticks and commands.
pub fn wrap(text: &str, limit: usize, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut current = String::new();
    let max_width = limit.saturating_sub(indent.len()).max(1);
    for word in unbroken_words(text).into_iter().flat_map(|word| split_long_word(word, max_width)) {
        let blank = current.trim().is_empty();
        if current.ends_with(CONTINUATION) || !blank && width(&current) + 1 + width(&word) > limit {
            lines.push(std::mem::replace(&mut current, indent.to_string()));
        } else if !blank {
            current.push(' ');
        }
        current.push_str(&word);
    }
    lines.push(current);
    lines
}

/// Breaks lines that are longer than `limit` columns; the rest of a broken line has two more columns of indent. Hints stay
/// whole, so that they can be pasted.
pub fn break_lines(text: &str, limit: usize) -> String {
    let break_line = |line: &str| {
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        if width(line) <= limit || text.starts_with("hint: ") {
            return format!("{line}\n");
        }
        let lines = wrap(text, limit.saturating_sub(indent).max(1), "  ").into_iter();
        lines.map(|part| format!("{:indent$}{part}\n", "")).collect()
    };
    text.lines().map(break_line).collect()
}

/// The end of a line of a command that continues in the next line. A shell reads it in the same way.
const CONTINUATION: &str = " \\";

/// A command of this program, broken into lines that can be pasted.
fn continued_lines(command: &str, max_width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut words = split_before_options(command);
    // If the words before the first option are too long for a line, they may be separated too.
    if let Some(first) = words.first().filter(|first| width(first) + CONTINUATION.len() > max_width) {
        let parts = split_at_spaces(first, |_| true);
        words.splice(..1, parts);
    }
    for word in words {
        let Some(last) = lines.last_mut() else { continue };
        if last.is_empty() {
            *last = word;
        } else if width(last) + 1 + width(&word) + CONTINUATION.len() <= max_width {
            *last = format!("{last} {word}");
        } else {
            last.push_str(CONTINUATION);
            lines.push(word);
        }
    }
    lines
}

/// Splits a command at each space that precedes an option and is outside quotes. So an option and its value stay together.
fn split_before_options(command: &str) -> Vec<String> {
    split_at_spaces(command, |next| next == Some(&'-'))
}

/// Splits a command at each space that is outside quotes, if `is_split` accepts the character after it.
fn split_at_spaces(command: &str, is_split: impl Fn(Option<&char>) -> bool) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut chars) = (false, command.chars().peekable());
    while let (Some(char), Some(word)) = (chars.next(), words.last_mut()) {
        match char {
            ' ' if !quoted && is_split(chars.peek()) => {
                words.push(String::new());
                continue;
            }
            '\'' => quoted = !quoted,
            _ => {}
        }
        word.push(char);
        if char == '\\' && !quoted {
            word.extend(chars.next());
        }
    }
    words
}

/// Whether a text between backticks is a command of this program, by its name or by the path of its file.
fn is_own_command(word: &str) -> bool {
    let Some(command) = word.strip_prefix('`') else { return false };
    let words = split_at_spaces(command, |_| true);
    let program = words.first().map_or("", |first| first.trim_matches('\''));
    words.len() > 1 && program.rsplit('/').next() == Some("orchestrate")
}

fn split_long_word(mut word: String, max_width: usize) -> Vec<String> {
    if width(&word) > max_width && is_own_command(&word) {
        return continued_lines(&word, max_width);
    }
    // An interval that is wider than a line is broken between its words.
    if width(&word) > max_width && begins_interval(&word[..word.find(' ').unwrap_or(0)]) {
        return word.split(' ').flat_map(|part| split_long_word(part.into(), max_width)).collect();
    }
    let mut pieces = Vec::new();
    while width(&word) > max_width && !word.contains(['/', '`']) {
        let piece: String = take_fitting(word.chars(), max_width).into_iter().collect();
        // A character that is wider than the limit stays.
        if piece.is_empty() {
            break;
        }
        word = word.split_off(piece.len());
        pieces.push(piece);
    }
    pieces.push(word);
    pieces
}

/// The words of a text. Text between backticks is one word, and so is an interval.
fn unbroken_words(text: &str) -> Vec<String> {
    let single = || text.split(' ').map(String::from).collect::<Vec<_>>();
    // If one backtick has no partner, no text counts as quoted.
    let is_in_quotes = |is_open: bool, word: &str| is_open ^ (word.matches('`').count() % 2 == 1);
    let words = joined_while(&single(), is_in_quotes).unwrap_or_else(single);
    let is_in_interval = |is_open: bool, word: &str| match is_open {
        true => !word.contains(']'),
        false => begins_interval(word),
    };
    joined_while(&words, is_in_interval).unwrap_or(words)
}

/// Joins each word with the next one if `is_open` holds after it. Its first argument is its value after the previous word. `None` if
/// it holds after the last word.
fn joined_while(words: &[String], is_open_after: impl Fn(bool, &str) -> bool) -> Option<Vec<String>> {
    let mut joined: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in words {
        match joined.last_mut() {
            Some(last) if is_open => {
                last.push(' ');
                last.push_str(word);
            }
            _ => joined.push(word.clone()),
        }
        is_open = is_open_after(is_open, word);
    }
    (!is_open).then_some(joined)
}

/// Whether a word is the beginning of an interval: `[1.2,`, `[8.7` or `[no`, as in `[no difference, 1.2x]`.
fn begins_interval(word: &str) -> bool {
    let first = word.trim_start_matches('(').strip_prefix('[').map(|rest| rest.trim_start_matches('-'));
    let is_bound = |it: &str| it == "no" || it.starts_with(|first: char| first.is_ascii_digit());
    first.is_some_and(|it| is_bound(it) && !it.contains(']'))
}

/// A value with three significant digits: `0.0312`, `4.13`, `41.3`, `413`, `4,130`.
pub fn three_digits(value: f64) -> String {
    significant_digits(value, 3)
}

/// A loss or a perplexity, so that a difference of 0.1 % shows: `6.1235`.
pub fn five_digits(value: f64) -> String {
    significant_digits(value, 5)
}

/// A value with this number of significant digits.
pub fn significant_digits(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "n/a".into() };
    }
    // The exponent after rounding: 9.996 is 10.0.
    let last = digits - 1;
    let written = format!("{value:.*e}", last as usize);
    let exponent: i32 = written.rsplit_once('e').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
    if exponent >= last {
        let step = 10f64.powi(exponent - last);
        let rounded = ((value / step).round() * step).abs();
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", with_commas(format_args!("{rounded:.0}")));
    }
    format!("{value:.*}", (last - exponent) as usize)
}

/// `a`, `b`, `c`
pub fn quoted(names: &[impl AsRef<str>]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// `a`, `b` or `c`
pub fn either(names: &[impl AsRef<str>]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} or `{}`", quoted(before), last.as_ref()),
        names => quoted(names),
    }
}

/// A count with its noun: `1 block`, `5 blocks`.
pub fn plural(count: impl std::fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A count with commas: `1,151`.
pub fn with_commas(count: impl std::fmt::Display) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_one_style_and_an_estimate_is_rounded() {
        let seconds = Duration::from_secs;
        let times = [0, 42, 60, 162, 4800, 7200].map(|it| time(seconds(it)));
        assert_eq!(times, ["0 s", "42 s", "1 min", "2 min 42 s", "1 h 20 min", "2 h"]);
        let estimates = [0, 9, 119, 147, 1300, 6000].map(|it| estimated_time(seconds(it)));
        assert_eq!(estimates, ["less than 1 s", "9 s", "2 min", "2 min 30 s", "22 min", "1 h 40 min"]);
    }

    #[test]
    fn a_text_is_shortened_by_whole_clauses_or_says_where_the_rest_is() {
        let text = "the machine was busy; run `orchestrate calibrate; x` again. Then compare";
        let cut = |limit| shorten_at_clause(text, limit, "orchestrate explain a");
        assert_eq!(cut(100), text);
        assert_eq!(cut(71), "the machine was busy; run `orchestrate calibrate; x` again.");
        assert_eq!([cut(58), cut(20)], ["the machine was busy"; 2]);
        let long = "one clause of `so many words` that has no end anywhere";
        let cut = |limit| shorten_at_clause(long, limit, "orchestrate explain a");
        assert_eq!(cut(18), "one clause of ... (all: `orchestrate explain a`)");
        assert_eq!(cut(30), long, "the command is no shorter than the rest of the text");
    }

    #[test]
    fn counts_above_999_have_commas() {
        assert_eq!([7, 128, 1151, 1_406_000].map(with_commas), ["7", "128", "1,151", "1,406,000"]);
    }

    #[test]
    fn a_long_command_is_continued_with_a_backslash() {
        let text = "a calibration: `orchestrate calibrate -e '/a b/c' -e reed:fast -s decode,ttft`";
        let lines = wrap(text, 40, "  ");
        assert_eq!(
            lines,
            ["a calibration:", "  `orchestrate calibrate -e '/a b/c' \\", "  -e reed:fast -s decode,ttft`"]
        );
        // Spaces inside quotes break no line, even if it is too long.
        let quoted = wrap("`orchestrate calibrate -e '/a -b -c -d -e -f -g/engine'`", 40, "  ");
        assert_eq!(quoted, ["`orchestrate calibrate \\", "  -e '/a -b -c -d -e -f -g/engine'`"]);
        // The words before the first option fit into the line, but not together with the backslash.
        let lines = wrap("more: `orchestrate report results/record.jsonl --full`", 41, "  ");
        assert_eq!(lines, ["more: `orchestrate report \\", "  results/record.jsonl --full`"]);
        assert_eq!(wrap("`orchestrate metrics`", 40, "  "), ["`orchestrate metrics`"]);
        // The program may be named by its path, and a path may need quotes.
        let lines = wrap("why: `'/a b/orchestrate' explain beacon results/record.jsonl`", 41, "  ");
        assert_eq!(lines, ["why: `'/a b/orchestrate' explain beacon \\", "  results/record.jsonl`"]);
    }

    #[test]
    fn a_wrapped_line_is_indented_further_and_a_hint_is_not_wrapped() {
        let text = "toy: not built\n    for cuda: not built (a long time, and much to fetch)\n    hint: ./bin/orchestrate setup toy\n";
        assert_eq!(
            break_lines(text, 30),
            "toy: not built\n    for cuda: not built (a\n      long time, and much to\n      fetch)\n    hint: ./bin/orchestrate setup toy\n"
        );
        assert_eq!(break_lines("", 30), "");
    }

    #[test]
    fn escape_sequences_and_control_characters_are_removed() {
        assert_eq!(line("a\u{1b}[31;1mred\u{1b}[0m b"), "ared b");
        assert_eq!(line("\u{1b}]0;title\u{7}x\u{1b}]8;;http://y\u{1b}\\link"), "xlink");
        assert_eq!(line("a\u{9b}2Jb\u{1b}(Bc\u{1b}cd"), "abcd");
        assert_eq!(line("one\r\n\ttwo\0three\u{8}\u{7f}"), "one twothree");
        assert_eq!(line("safe\u{202e}txt.exe\u{200b}"), "safetxt.exe");
        assert_eq!(line("ends with \u{1b}"), "ends with");
        assert_eq!(line("ends with \u{1b}["), "ends with");
        assert_eq!(line("ends with \u{1b}]0;"), "ends with");
        assert_eq!(line("größer 模型 🦀"), "größer 模型 🦀");
    }

    #[test]
    fn any_text_becomes_one_line_without_control_characters() {
        let pieces =
            ["\u{1b}", "[", "]", "3", "m", "\u{7}", "\\", "\u{9b}", "\n", "a", "é", "P", "(", "\u{9c}"];
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    let safe = line(&format!("{first}{second}{third}{first}"));
                    assert!(!safe.chars().any(char::is_control), "{first:?}{second:?}{third:?}: {safe:?}");
                }
            }
        }
    }

    #[test]
    fn shortened_text_never_exceeds_the_limit_with_wide_characters() {
        assert_eq!(shorten("beacon", 6), "beacon");
        assert_eq!(shorten("beacons", 6), "beaco…");
        assert_eq!(shorten_start("/a/very/long/path/engine", 12), "…path/engine");
        for limit in 1..20 {
            assert!(width(&shorten("模型模型模型模型 and more", limit)) <= limit);
            assert!(width(&shorten_start("模型模型模型模型 and more", limit)) <= limit);
        }
    }

    #[test]
    fn lines_are_wrapped_between_words() {
        assert_eq!(wrap("one two three", 8, "  "), ["one two", "  three"]);
        assert_eq!(wrap("a /long/path/that/is/whole b", 8, ""), ["a", "/long/path/that/is/whole", "b"]);
        assert_eq!(wrap("a stretched b", 6, " "), ["a", " stret", " ched", " b"]);
        assert_eq!(wrap("", 8, ""), [""]);
        assert_eq!(wrap("try `--warmup 4` now", 12, ""), ["try", "`--warmup 4`", "now"]);
        assert_eq!(wrap("a lone ` stays so", 8, ""), ["a lone `", "stays so"]);
    }

    #[test]
    fn an_interval_stays_on_one_line() {
        assert_eq!(wrap("2.0x [1.2, 3.1]; end", 11, ""), ["2.0x", "[1.2, 3.1];", "end"]);
        assert_eq!(
            wrap("it is [8.7 % slower, 1.3x] here", 22, "  "),
            ["it is", "  [8.7 % slower, 1.3x]", "  here"]
        );
        // Other brackets, and one without a partner, change nothing.
        assert_eq!(wrap("see [the page] now", 8, ""), ["see [the", "page]", "now"]);
        assert_eq!(wrap("from [1.2 on it", 9, ""), ["from [1.2", "on it"]);
        // An interval that no line can hold is broken between its words.
        assert_eq!(wrap("[8.7 % slower, 1.3x]", 8, ""), ["[8.7 %", "slower,", "1.3x]"]);
    }
}
